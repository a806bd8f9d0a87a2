"""A network that swallows requests, replies or both, and cuts connections: what was acknowledged happened once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from ebla.client.database import service_of
from ebla.rpc.server import RpcServer
from ebla.rpc.serving.service_handlers import ServiceHandlers
from ebla.rpc.wire.messages import SERVICE_METHODS
from tests.support.proxy import Proxy

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})
ROUNDS = 3


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    with ebla.open(tmp_path / "store") as store:
        handlers = ServiceHandlers(service_of(store))
        server = RpcServer(SERVICE_METHODS, handlers.by_type(), name="one")
        made = Proxy(int(server.address.rpartition(":")[2]))
        try:
            yield made
        finally:
            made.close()
            handlers.close()
            server.close()


@pytest.mark.parametrize("ways", [("requests",), ("replies",), ("requests", "replies")], ids="-".join)
def test_increments_through_a_wire_that_is_cut_one_way_or_both_happen_once_each(
    proxy: Proxy, ways: tuple[str, ...]
) -> None:
    with ebla.connect(proxy.address, timeout_seconds=60.0) as db:
        table = db.create_table("t", SCHEMA)
        acknowledged: list[int] = []
        stopping = threading.Event()

        def count() -> None:
            while not stopping.is_set():
                acknowledged.append(table.increment(1, "n"))

        counting = threading.Thread(target=count)
        counting.start()
        try:
            for _ in range(ROUNDS):
                gates = [getattr(proxy, way) for way in ways]
                before = len(acknowledged)
                for gate in gates:
                    gate.close()
                assert gates[0].held.wait(20), "something is on the way, and does not arrive"
                proxy.cut()  # and never will
                for gate in gates:
                    gate.open()
                while len(acknowledged) < before + 5:
                    assert counting.is_alive()
                    stopping.wait(0.01)
        finally:
            for gate in (proxy.requests, proxy.replies):
                gate.open()
            stopping.set()
            counting.join(60)
        assert acknowledged == list(range(1, len(acknowledged) + 1)), "each once, in order"
        assert table.get(1)["n"] == len(acknowledged)  # type: ignore[index]
