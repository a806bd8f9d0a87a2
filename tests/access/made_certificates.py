"""Certificates for tests, among them some that `ebla certs` does not make."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ebla.access.certificates import make_authority, make_certificate, read_certificate
from ebla.access.tls import Tls, TlsFiles, client_tls, server_tls


class Made:
    """The directory of an authority, and what it has signed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        make_authority(directory)

    @property
    def client(self) -> Tls:
        return client_tls(self.directory / "ca.pem")

    def files(self, name: str) -> TlsFiles:
        return TlsFiles(self.directory / "ca.pem", self.directory / f"{name}.pem", self.directory / f"{name}.key")

    def process(self, name: str, *hosts: str, uuid: str | None = None) -> Tls:
        make_certificate(self.directory, name, hosts or ("127.0.0.1",), uuid=uuid)
        return server_tls(self.files(name))

    def expired(self, name: str) -> Tls:
        past = datetime.now(UTC) - timedelta(days=2)
        make_certificate(self.directory, name, ["127.0.0.1"], days=1, now=past)
        return self.unchecked(name)

    def of_a_client(self, name: str) -> Tls:
        """A certificate that the authority has signed for somebody who is no process of the cluster."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        ca = x509.load_pem_x509_certificate((self.directory / "ca.pem").read_bytes())
        ca_key = serialization.load_pem_private_key((self.directory / "ca.key").read_bytes(), None)
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"{name}.example.org")]), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        (self.directory / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        file = self.directory / f"{name}.key"
        file.touch(0o600)
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return self.unchecked(name)

    def unchecked(self, name: str) -> Tls:
        """What a process would have that does not look at its own files."""
        files = self.files(name)
        said = read_certificate(files.certificate)
        return replace(
            self.client,
            certificate=files.certificate.read_bytes(),
            key=files.key.read_bytes(),
            files=files,
            certificate_says=said,
        )
