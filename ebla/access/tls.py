"""TLS as a process uses it: whom it believes, and what it shows itself.

    clients       Tls(ca)                       they verify servers, and show tokens
    processes     Tls(ca, certificate, key)     they verify each other

Files are read once, when the process begins: whoever renews a certificate starts its process again.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

from ebla.access.certificates import Certificate, read_certificate
from ebla.arguments import checked_path
from ebla.errors import RequestError

__all__ = ["Tls", "TlsFiles", "client_tls", "server_tls"]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate of a process is, its key, and that of the authority."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Tls:
    """The authority that is believed; certificate and key of a process; `certificate_says` who it is."""

    ca: bytes
    ca_file: Path
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    files: TlsFiles | None = None
    certificate_says: Certificate | None = None

    @property
    def uuid(self) -> str | None:
        """Which process the certificate is of; None for clients."""
        return None if self.certificate_says is None else self.certificate_says.uuid

    def check_is_of(self, uuid: str, data: Path) -> None:
        """Raise `RequestError` unless the certificate is of the process with that uuid."""
        if self.uuid != uuid:
            name = self.files.certificate if self.files is not None else "the certificate"
            raise RequestError(
                f"{name} is of the process {self.uuid}, and {data} is that of {uuid}: give the one that belongs to it, "
                f"or make one by `ebla certs server --uuid {uuid}`"
            )


def client_tls(ca: str | PathLike[str]) -> Tls:
    """Return how a client that believes an authority verifies servers."""
    file = checked_path("tls_ca", ca)
    return Tls(_read(file, "the certificate of the authority (tls_ca)"), file)


def server_tls(files: TlsFiles, now: datetime | None = None) -> Tls:
    """Return how a process verifies others and is verified; `RequestError` if its files would not do."""
    now = now or datetime.now(UTC)
    ca = _read(files.ca, "the certificate of the authority (--tls-ca)")
    certificate = _read(files.certificate, "the certificate (--tls-cert)")
    key = _read(files.key, "the key of the certificate (--tls-key)")
    if files.key.stat().st_mode & 0o007:
        raise RequestError(f"everybody can read the key {files.key}: `chmod 600` it, or make another")
    said = read_certificate(files.certificate)
    if said.uuid is None:
        raise RequestError(f"{files.certificate} does not name a process of a cluster: make one by `ebla certs server`")
    if not (said.serves and said.asks):
        raise RequestError(
            f"{files.certificate} is not for servers that also connect to others: make one by `ebla certs server`"
        )
    if said.ends <= now:
        raise RequestError(f"{files.certificate} has expired at {said.ends:%Y-%m-%d %H:%M} UTC: `ebla certs renew` it")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
    except (ssl.SSLError, OSError) as error:
        raise RequestError(
            f"{files.key} is not the key of {files.certificate}: name the two that belong together"
        ) from (error)
    _check_issuer(files)
    return Tls(ca, files.ca, certificate, key, files, said)


def _check_issuer(files: TlsFiles) -> None:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    authorities = x509.load_pem_x509_certificates(files.ca.read_bytes())
    chain = x509.load_pem_x509_certificates(files.certificate.read_bytes())
    for authority in authorities:
        try:
            chain[-1].verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return
    raise RequestError(f"{files.certificate} was not signed by {files.ca}: name the authority that signed it")


def _read(file: Path, what: str) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RequestError(f"{what}, {file}, cannot be read: {error.strerror}: see `ebla certs`") from None
    if b"-----BEGIN " not in data:
        raise RequestError(f"{what}, {file}, is not PEM: see `ebla certs`")
    return data
