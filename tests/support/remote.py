"""A store of this process behind RPC servers, for tests: one or several, whose answers can be tampered with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ebla
from ebla.client.database import service_of
from ebla.errors import StaleRoute
from ebla.model.ranges import KeyRange, successor
from ebla.rpc.caller import Caller
from ebla.rpc.server import RpcServer
from ebla.rpc.server_stream import Handler
from ebla.rpc.serving.service_handlers import ServiceHandlers
from ebla.rpc.wire.messages import (
    SERVICE_METHODS,
    BeginScan,
    CountRows,
    GetRow,
    ModifyRow,
    ReadOne,
    ScanOn,
    TabletLocation,
)
from ebla.service.service import TableService

# Wraps the handler of a kind of message: is given the handler, the message and who sent it.
Tamper = Callable[[Handler, Any, Caller], Any]


class Behind:
    """A store behind two servers; which of them a tablet is said to be on is for the test to choose."""

    def __init__(self, directory: Path) -> None:
        self.db = ebla.open(directory, settings=ebla.Settings(background_compaction=False, scan_batch_rows=1_024))
        self.tampered: dict[type, Tamper] = {}
        self.asked: list[tuple[int, str]] = []  # which server was asked what
        self.cuts: list[tuple[bytes, int]] = [(b"", 0)]  # first rows of tablets, and the numbers of their servers
        self.handlers = [ServiceHandlers(service_of(self.db), self._located) for _ in range(2)]
        self.servers = [self.serve(number) for number in range(2)]

    def serve(self, number: int, port: int = 0) -> RpcServer:
        handlers = {
            kind: self._through(number, kind, handler) for kind, handler in self.handlers[number].by_type().items()
        }
        return RpcServer(SERVICE_METHODS, handlers, port=port, name=f"server {number}")

    def connect(self, **options: Any) -> ebla.Database:
        return ebla.connect(self.servers[0].address, **{"timeout_seconds": 10.0} | options)

    def close(self) -> None:
        for server in self.servers:
            server.close(grace_seconds=0.5)
        self.db.close()

    def _located(self, table: TableService) -> list[TabletLocation]:
        return [
            TabletLocation(f"t{at}", first, 1, self.servers[server].address)
            for at, (first, server) in enumerate(self.cuts)
        ]

    def _check_led(self, number: int, message: Any) -> None:
        """Refuse rows and ranges that are on the other server, as a tablet server does."""
        if isinstance(message, (BeginScan, ScanOn, CountRows)):
            wanted = KeyRange(message.scan.first, message.scan.last)
        elif isinstance(message, (GetRow, ReadOne, ModifyRow)):
            wanted = KeyRange(message.row, successor(message.row))
        else:
            return
        ends = [first for first, _ in self.cuts[1:]]
        for (first, server), last in zip(self.cuts, [*ends, None], strict=True):
            share = wanted.intersect(KeyRange(first, last))
            if share is not None and not share.is_empty and server != number:
                raise StaleRoute("these rows are on the other server")

    def _through(self, number: int, kind: type, handler: Handler) -> Handler:
        def answered(message: Any, caller: Caller) -> Any:
            self.asked.append((number, kind.__name__))
            self._check_led(number, message)
            tamper = self.tampered.get(kind)
            return handler(message, caller) if tamper is None else tamper(handler, message, caller)

        return answered


@contextmanager
def behind(directory: Path) -> Iterator[Behind]:
    """Serve a new store."""
    world = Behind(directory)
    try:
        yield world
    finally:
        world.close()


class Opened:
    """`ebla.open` as others would have it: the store is opened here, served, and what is returned is a client."""

    def __init__(self) -> None:
        self._open = ebla.open
        self._stores: dict[str, RpcServer] = {}
        self._opened: list[ebla.Database] = []

    def __call__(self, path: str = "data", *, read_only: bool = False, **options: Any) -> ebla.Database:
        place = f"{Path(path).resolve()} {read_only}"
        if place not in self._stores:
            store = self._open(path, read_only=read_only, **options)
            handlers = ServiceHandlers(service_of(store), root=str(path)).by_type()
            self._opened.append(store)
            self._stores[place] = RpcServer(SERVICE_METHODS, handlers)
        return ebla.connect(self._stores[place].address)

    def close(self) -> None:
        for server in self._stores.values():
            server.close(grace_seconds=0.5)
        for store in self._opened:
            store.close()
