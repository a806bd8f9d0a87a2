"""Messages to another server, over connections that break."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from ebla.replication.messages import Entry, Push
from ebla.rpc.caller import Caller
from ebla.rpc.channel import Channel
from ebla.rpc.limits import Limits
from ebla.rpc.server import RpcServer
from ebla.rpc.stream import Stream
from ebla.tablet_server.replicas import peers
from ebla.tablet_server.replicas.calls import REPLICA_METHODS, Deliver
from ebla.tablet_server.replicas.peers import Peers
from tests.tablet_server.servers import wait_until

MESSAGE_BYTES_MAX = 100_000


class Other:
    """The other server: it keeps the tablets that messages are about."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.rpc = RpcServer(REPLICA_METHODS, {Deliver: self._deliver})

    def _deliver(self, request: Deliver, caller: Caller) -> tuple[()]:
        self.heard += [message.tablet for message in request.messages if isinstance(message, Push)]
        return ()


@pytest.fixture
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.rpc.close(grace_seconds=0.5)


@pytest.fixture
def to_other(other: Other, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    monkeypatch.setattr(peers, "Channel", partial(Channel, limits=Limits(message_bytes_max=MESSAGE_BYTES_MAX)))
    made = Peers("one", lambda server: other.rpc.address, lambda server, messages: None)
    yield made
    made.close()


def message(tablet: str, part: bytes = b"") -> Push:
    return Push(tablet, "", 1, 1, (0, 0), (Entry(1, 1, 1, "write", part=part),), 0, 0, -1.0)


def test_a_connection_on_which_nothing_can_be_sent_is_left_for_another(other: Other, to_other: Peers) -> None:
    for number in range(3):
        to_other.send("other", [message(f"small {number}")])
        to_other.flush()
        wait_until(lambda number=number: f"small {number}" in other.heard)
        to_other.send("other", [message("large", bytes(MESSAGE_BYTES_MAX))])
        to_other.flush()
    to_other.send("other", [message("last")])
    to_other.flush()
    wait_until(lambda: "last" in other.heard)
    assert "large" not in other.heard
    wait_until(lambda: other.rpc.streams_open == 1)


def test_a_connection_that_breaks_while_more_waits_to_be_sent_holds_up_nobody(
    other: Other, to_other: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_other.send("other", [message("first")])
    to_other.flush()
    wait_until(lambda: other.heard == ["first"])
    cut = threading.Event()
    send_bytes = Stream.send_bytes

    def broken(self: Stream, data: bytes) -> None:
        if b"breaks" in data and not cut.is_set():
            cut.set()
            to_other.send("other", [message("more")])
            raise ConnectionError("the connection was cut")
        send_bytes(self, data)

    monkeypatch.setattr(Stream, "send_bytes", broken)

    def send(tablet: str) -> None:
        to_other.send("other", [message(tablet)])
        to_other.flush()

    for tablet in ("breaks", "later"):
        sending = threading.Thread(target=send, args=(tablet,), daemon=True)
        sending.start()
        sending.join(20.0)
        assert not sending.is_alive()
    wait_until(lambda: "later" in other.heard)
