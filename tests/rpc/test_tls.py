"""Encrypted connections: who is believed, who is not, and what the other end is told."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ebla.access.credentials import Credentials
from ebla.access.guard import Guard
from ebla.access.rights import MEMBER, ServersOnly, always
from ebla.access.tls import Tls
from ebla.errors import Denied, TlsError, Unavailable
from ebla.rpc.channel import Channel
from ebla.rpc.frames import Hello
from ebla.rpc.limits import DEFAULT
from ebla.rpc.link import Link
from ebla.rpc.methods import Method, Methods
from ebla.rpc.server import RpcServer
from tests.access.made_certificates import Made
from tests.rpc.echo import METHODS, Add, Echo, EchoService, Sleep, serve

SENDER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
GUARDED = Methods(
    [
        Method(Echo, is_repeatable=True, is_quick=True, needs=always(MEMBER)),
        Method(Sleep, is_repeatable=True, needs=always(ServersOnly())),
        Method(Add, needs=always(ServersOnly(SENDER))),
    ]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("tls") / "certs")
    made.process("server")
    made.process("sender", uuid=SENDER)
    made.process("other")
    made.process("elsewhere", "127.0.0.9", "db1.example.org")
    made.expired("expired")
    made.of_a_client("somebody")
    return made


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Another authority."""
    made = Made(tmp_path_factory.mktemp("stranger") / "certs")
    made.process("server")
    return made


@pytest.fixture(scope="module")
def server(made: Made) -> Iterator[RpcServer]:
    guard = Guard(None, needs_certificates=True)
    service = EchoService()
    service.go_on.set()
    handlers = {kind: handler for kind, handler in service.handlers().items() if kind in (Echo, Sleep, Add)}
    with RpcServer(GUARDED, handlers, name="server", tls=made.unchecked("server"), guard=guard) as server:
        yield server


def asked(address: str, tls: Tls | None, request: object = Echo(b"x"), methods: Methods = GUARDED) -> object:
    with Channel(methods, address, credentials=Credentials(tls=tls)) as channel:
        return channel.call(request, timeout_seconds=20)


def test_a_client_that_believes_the_authority_is_answered(server: RpcServer, made: Made) -> None:
    assert asked(server.address, made.client) == b"x"


def test_what_goes_over_the_wire_is_tls(server: RpcServer, made: Made) -> None:
    context = ssl.create_default_context(cafile=str(made.directory / "ca.pem"))
    context.set_alpn_protocols(["h2"])
    host, port = server.address.split(":")
    with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as secured:
        assert secured.version() in ("TLSv1.2", "TLSv1.3")


def test_a_client_with_another_authority_believes_nobody(server: RpcServer, stranger: Made) -> None:
    with pytest.raises(TlsError, match=r"not to be trusted.*was not signed by .*ca\.pem"):
        asked(server.address, stranger.client)


def test_a_server_whose_certificate_has_expired_is_not_believed(made: Made) -> None:
    with (
        serve(tls=made.unchecked("expired")) as server,
        pytest.raises(TlsError, match="expired: `ebla certs renew`"),
    ):
        asked(server.address, made.client, methods=METHODS)


def test_a_server_whose_certificate_is_for_other_hosts_is_not_believed(made: Made) -> None:
    with (
        serve(tls=made.unchecked("elsewhere")) as server,
        pytest.raises(TlsError, match=r"for other hosts than 127\.0\.0\.1"),
    ):
        asked(server.address, made.client, methods=METHODS)


def test_a_plain_client_is_told_that_the_server_speaks_tls(server: RpcServer) -> None:
    with pytest.raises(TlsError, match="speaks TLS, and this client does not"):
        asked(server.address, None)


def test_a_client_with_tls_is_told_that_the_server_has_none(made: Made) -> None:
    with serve() as server, pytest.raises(TlsError, match="does not speak TLS"):
        asked(server.address, made.client, methods=METHODS)


def test_a_server_that_is_away_is_away_with_tls_too(made: Made) -> None:
    with serve(tls=made.unchecked("server")) as server:
        address = server.address
    with pytest.raises(Unavailable):
        asked(address, made.client)


def test_clients_have_no_certificate_and_ask_for_nothing_that_is_for_processes(server: RpcServer, made: Made) -> None:
    with pytest.raises(Denied, match="its certificate names none"):
        asked(server.address, made.client, Sleep(0))


def test_processes_show_certificates_at_the_port_that_is_for_them(server: RpcServer, made: Made) -> None:
    assert isinstance(asked(server.address, made.unchecked("other"), Sleep(0)), str)
    assert asked(server.address, made.unchecked("sender"), Add(1)) >= 1


def test_a_process_with_a_certificate_of_another_uuid_is_not_the_sender_it_names(server: RpcServer, made: Made) -> None:
    with pytest.raises(Denied, match=f"says that it is of {SENDER}, and was shown to be of somebody else"):
        asked(server.address, made.unchecked("other"), Add(1))


def test_a_process_with_a_certificate_of_a_client_is_no_process_of_the_cluster(server: RpcServer, made: Made) -> None:
    with pytest.raises(Denied, match="its certificate names none"):
        asked(server.address, made.unchecked("somebody"), Sleep(0))


@pytest.mark.parametrize("whose", ["nobody", "a stranger", "one that has expired"])
def test_the_port_for_processes_is_closed_to_who_shows_no_good_certificate(
    server: RpcServer, made: Made, stranger: Made, whose: str
) -> None:
    tls = {
        "nobody": lambda: made.client,
        "a stranger": lambda: replace(stranger.unchecked("server"), ca=made.client.ca),
        "one that has expired": lambda: made.unchecked("expired"),
    }[whose]()

    with pytest.raises(TlsError, match="does not take the certificate"):
        Link(f"127.0.0.1:{server.peer_port}", Hello(1, 1, "c", "test"), DEFAULT, Credentials(tls=tls)).wait_for_welcome(
            20
        )


def test_a_process_goes_on_trying_where_a_client_is_told_to_mend_it(made: Made) -> None:
    # Whoever renews the other's certificate need not start this one again.
    with serve(tls=made.unchecked("expired")) as server, pytest.raises(Unavailable, match="expired"):
        asked(server.address, made.unchecked("other"), methods=METHODS)


def test_an_encrypted_server_may_be_reached_by_other_addresses_but_not_by_all(made: Made) -> None:
    with serve(tls=made.unchecked("elsewhere"), host="127.0.0.9") as server:
        assert asked(server.address, made.client, methods=METHODS) == b"x"
