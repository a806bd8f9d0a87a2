"""Why a connection came to nothing: whether TLS was the reason, and which of its reasons.

To Flight, a server that is away and one that nobody believes are the same: unavailable. So when a server was never
heard of, the handshake is made once more by Python's own TLS, which tells what is wrong with it.
"""

from __future__ import annotations

import socket
import ssl

from ebla.access.tls import Tls
from ebla.errors import TlsError

__all__ = ["is_listened_at", "tls_problem"]

PROBE_SECONDS = 2.0
# A server that refuses a certificate says so after the handshake; one that accepts it says something at once, too.
_ALERT_SECONDS = 0.5


def is_listened_at(address: str) -> bool:
    """Tell whether anybody takes connections at an address, whoever that is."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def tls_problem(address: str, tls: Tls | None) -> TlsError | None:
    """Return what is wrong with TLS between this process and a server; None if nothing is, or nobody listens there."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        for _ in range(2):  # one that is just leaving hangs up, too, and is not there any more at the second attempt
            with socket.create_connection((host, int(port)), PROBE_SECONDS) as connection:
                problem = _without(connection, address) if tls is None else _with(connection, address, host, tls)
            if not isinstance(problem, _HungUp):
                return problem
    except OSError:
        return None
    return TlsError(
        f"{address} does not take the certificate of this process, or wants one: see `ebla certs show`; it is the port "
        "for processes of a cluster if it was given as --peer-port"
    )


class _HungUp(TlsError):
    """The handshake was made, and nothing was said after it: how Flight refuses certificates."""


def _without(connection: socket.socket, address: str) -> TlsError | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        if not _is_alert(error):
            return None
    return TlsError(
        f"{address} speaks TLS, and this client does not: give it the certificate of the cluster's authority, as in "
        'ebla.connect(..., tls_ca="ca.pem")'
    )


def _with(connection: socket.socket, address: str, host: str, tls: Tls) -> TlsError | None:
    try:
        context = ssl.create_default_context(cadata=tls.ca.decode("ascii", errors="replace"))
        context.set_alpn_protocols(["h2"])
        if tls.files is not None:
            context.load_cert_chain(tls.files.certificate, tls.files.key)
    except (ssl.SSLError, OSError) as error:
        return TlsError(f"the certificates of this process cannot be used ({error}): see `ebla certs`")
    try:
        with context.wrap_socket(connection, server_hostname=host) as secured:
            secured.settimeout(_ALERT_SECONDS)
            if not secured.recv(1):
                return _HungUp()
    except TimeoutError:
        return None
    except (ConnectionError, ssl.SSLEOFError):
        return _HungUp()
    except ssl.SSLCertVerificationError as error:
        return TlsError(f"the certificate of {address} is not to be trusted: {_why(error, host, tls)}")
    except ssl.SSLError as error:
        if _is_alert(error):
            said = (error.reason or "").lower().replace("_", " ").partition("alert ")[2]
            return TlsError(f"{address} does not take the certificate of this process ({said}): see `ebla certs show`")
        return TlsError(
            f"{address} does not speak TLS: start its process with --tls-cert, --tls-key and --tls-ca, or connect "
            "without tls_ca"
        )
    return None


def _why(error: ssl.SSLCertVerificationError, host: str, tls: Tls) -> str:
    message = error.verify_message or str(error)
    if error.verify_code in (62, 64):  # the host name, the address
        return f"it is for other hosts than {host}: make one with --host {host}, or connect to a host that it names"
    if error.verify_code in (9, 10):
        return f"{message}: `ebla certs renew` it and start that process again, and see that clocks agree"
    return f"it was not signed by {tls.ca_file} ({message}): give the authority of that cluster"


def _is_alert(error: ssl.SSLError) -> bool:
    return "ALERT" in (error.reason or "")
