"""Certificates of a cluster of this host: made with the cluster, renewed when it is started.

DIR/certs/ca.pem, ca.key                the authority; clients need ca.pem
DIR/certs/master-1.pem, master-1.key    each process, by the name of its directory
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from ebla.access.certificates import CA_FILE, make_authority, make_certificate, read_certificate, renew_certificate
from ebla.errors import RequestError

__all__ = ["CERTS", "authority_of", "certificate_options"]

CERTS = "certs"
HOSTS = ("127.0.0.1", "localhost", "::1")
# A certificate that would expire sooner is renewed when the cluster is started.
RENEW_DAYS = 90.0


def authority_of(directory: Path) -> Path | None:
    """Return the file of the authority of a cluster's directory; None if the cluster has no TLS."""
    file = directory / CERTS / CA_FILE
    return file if file.exists() else None


def certificate_options(directory: Path, data: Path) -> list[str]:
    """Return the options by which the process of a data directory has TLS; what it needs is made."""
    certs, name = directory / CERTS, data.name
    if authority_of(directory) is None:
        make_authority(certs)
    file = certs / f"{name}.pem"
    if not file.exists():
        make_certificate(certs, name, HOSTS, uuid=_uuid_of(data))
    elif read_certificate(file).days_left(datetime.now(UTC)) < RENEW_DAYS:
        renew_certificate(certs, name)
    return ["--tls-cert", str(file), "--tls-key", str(certs / f"{name}.key"), "--tls-ca", str(certs / CA_FILE)]


def _uuid_of(data: Path) -> str | None:
    """Return who the process of a directory is; None if it was never started."""
    for file, field in (("master.json", "master"), ("server.json", "server")):
        try:
            return str(json.loads((data / file).read_text())[field])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError):
            raise RequestError(f"{data / file} does not say who the process is: see `ebla verify`") from None
    return None
