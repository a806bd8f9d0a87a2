"""Certificates of the processes of a cluster, and the authority that signs them.

    DIR/ca.pem, ca.key              the authority; whoever has the key can be any process of the cluster
    DIR/<name>.pem, <name>.key      a master or a tablet server

The certificate of a process names, in this order: ``ebla://server/<uuid>``, which is who it is for others of the
cluster, then the host names and addresses that it is reached by. Flight tells of a certificate nothing but the first
name. Keys are elliptic (P-256), readable by their owner alone, and never replaced by accident.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from ebla.errors import RequestError, StoreNotFound, shown
from ebla.extras import needing

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = [
    "CA_DAYS",
    "CA_FILE",
    "DAYS",
    "SERVER_URI",
    "Certificate",
    "list_certificates",
    "make_authority",
    "make_certificate",
    "read_certificate",
    "renew_certificate",
]

SERVER_URI = "ebla://server/"
CA_FILE = "ca.pem"
CA_DAYS = 3_650.0
DAYS = 365.0

_CA = "ca"
_NAME = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.\-]{0,251}[A-Za-z0-9])?")
# Clocks of hosts differ a little: a certificate is valid before it was made.
_BACKDATED = timedelta(minutes=10)
_WHAT = "a certificate"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says: whose it is (None: of no process), where it is reached, and how long it holds."""

    name: str
    uuid: str | None
    hosts: tuple[str, ...]
    begins: datetime
    ends: datetime
    is_authority: bool
    serves: bool  # whether it may be shown by whoever listens, and
    asks: bool  # by whoever connects

    def days_left(self, now: datetime) -> float:
        """Return for how many days it still holds; below 0 if it does no more."""
        return (self.ends - now).total_seconds() / 86_400


def make_authority(directory: Path, days: float = CA_DAYS, now: datetime | None = None) -> Certificate:
    """Make the authority of a cluster; `RequestError` if there is one."""
    with needing("cryptography", _WHAT):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID
    now = now or datetime.now(UTC)
    _check_free(directory, _CA)
    key = _new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Ebla authority {uuid4().hex[:8]}")])
    made = (
        _builder(name, name, key, now, _days(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(directory, _CA, made, key)
    return read_certificate(directory / CA_FILE)


def make_certificate(
    directory: Path,
    name: str,
    hosts: Sequence[str],
    *,
    uuid: str | None = None,
    days: float = DAYS,
    now: datetime | None = None,
) -> Certificate:
    """Make the certificate of a process that is reached by host names or addresses; its uuid is new unless given."""
    if name == _CA or not _NAME.fullmatch(name):
        raise RequestError(f"the name of a certificate has letters, digits, '_' and '-', not {shown(name)}")
    _check_free(directory, name)
    _make(directory, name, hosts, uuid, _days(days), now or datetime.now(UTC))
    return read_certificate(directory / f"{name}.pem")


def renew_certificate(directory: Path, name: str, days: float = DAYS, now: datetime | None = None) -> Certificate:
    """Make a certificate anew, for the same process and hosts, with another key. The former ones are kept as .old."""
    if name == _CA:
        raise RequestError(
            "the authority is not renewed, all certificates hang on it: make another directory of certificates"
        )
    had = read_certificate(directory / f"{name}.pem")
    _make(directory, name, had.hosts, had.uuid, _days(days), now or datetime.now(UTC), replaces=True)
    return read_certificate(directory / f"{name}.pem")


def list_certificates(directory: Path) -> list[Certificate]:
    """Return all certificates of a directory, that of the authority first."""
    if not (directory / CA_FILE).exists():
        raise StoreNotFound(f"{directory} has no {CA_FILE}: `ebla certs ca {directory}` makes an authority")
    found = [read_certificate(file) for file in sorted(directory.glob("*.pem"))]
    return sorted(found, key=lambda one: not one.is_authority)


def read_certificate(file: Path) -> Certificate:
    """Return what the first certificate of a file says; `RequestError` if it has none."""
    return described(file, _loaded(file))


def described(file: Path, found: x509.Certificate) -> Certificate:
    """Return what a certificate says, in our words."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    extensions = {type(one.value): one.value for one in found.extensions}
    names = extensions.get(x509.SubjectAlternativeName)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names is not None else []
    hosts = [] if names is None else names.get_values_for_type(x509.DNSName)
    hosts += [] if names is None else [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    basic, usage = extensions.get(x509.BasicConstraints), extensions.get(x509.ExtendedKeyUsage)
    # Flight tells the first name alone: another one of a process would never be seen.
    first = next(iter(names), None) if names is not None else None
    is_process = bool(uris) and first is not None and first.value == uris[0] and uris[0].startswith(SERVER_URI)
    return Certificate(
        file.stem,
        uris[0].removeprefix(SERVER_URI) if is_process else None,
        tuple(hosts),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        is_authority=basic is not None and basic.ca,
        serves=usage is None or ExtendedKeyUsageOID.SERVER_AUTH in usage,
        asks=usage is None or ExtendedKeyUsageOID.CLIENT_AUTH in usage,
    )


# --- making ------------------------------------------------------------------------------------------


def _make(
    directory: Path,
    name: str,
    hosts: Sequence[str],
    uuid: str | None,
    days: timedelta,
    now: datetime,
    *,
    replaces: bool = False,
) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority = _loaded(directory / CA_FILE)
    try:
        ca_key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise RequestError(f"{directory / 'ca.key'} cannot be used: {error}: sign where the key is kept") from None
    if not isinstance(ca_key, EllipticCurvePrivateKey) or ca_key.public_key() != authority.public_key():
        raise RequestError(f"{directory / 'ca.key'} is not the key of {directory / CA_FILE}: bring the two together")
    who = _uuid(uuid)
    if not hosts:
        raise RequestError("say by which host names or addresses the process is reached: --host, once for each")
    names = [x509.UniformResourceIdentifier(f"{SERVER_URI}{who}"), *(_host(one) for one in hosts)]
    key = _new_key()
    made = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]), authority.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    if replaces:
        for ending in ("pem", "key"):
            with suppress(FileNotFoundError):
                (directory / f"{name}.{ending}").replace(directory / f"{name}.{ending}.old")
    _write(directory, name, made, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, now: datetime, days: timedelta
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + days)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if not _HOST.fullmatch(host) or ".." in host:
            raise RequestError(f"a host is a name or an address, without a port, not {shown(host)}") from None
        return x509.DNSName(host)


def _uuid(uuid: str | None) -> str:
    try:
        return str(uuid4() if uuid is None else UUID(uuid))
    except ValueError:
        raise RequestError(f"a uuid looks like {uuid4()}, not like {shown(uuid)}") from None


def _days(days: float) -> timedelta:
    if not 0 < days <= 36_500:
        raise RequestError(f"a certificate holds for more than 0 and at most 36500 days, not {shown(days)}")
    return timedelta(days=days)


# --- files -------------------------------------------------------------------------------------------


def _loaded(file: Path) -> x509.Certificate:
    with needing("cryptography", _WHAT):
        from cryptography import x509
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise RequestError(f"the certificate {file} cannot be read: {error.strerror}: see `ebla certs`") from None
    except ValueError:
        raise RequestError(f"{file} is no certificate in PEM: see `ebla certs`") from None


def _check_free(directory: Path, name: str) -> None:
    for ending in ("pem", "key"):
        if (directory / f"{name}.{ending}").exists():
            raise RequestError(
                f"{directory / f'{name}.{ending}'} is there already, and is not overwritten: choose another name, or "
                "renew it with `ebla certs renew`"
            )


def _write(directory: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file, data, mode in (
            (directory / f"{name}.key", private, 0o600),
            (directory / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644),
        ):
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
                opened.write(data)
    except OSError as error:
        raise RequestError(f"{directory} cannot be written to: {error.strerror}: mend that, or name another") from None
