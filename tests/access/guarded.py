"""A master and a tablet server that want tokens, in this process, and requests of every kind."""

from __future__ import annotations

import importlib
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields

import ebla
from ebla.access.tokens import Claim, new_token, signed
from ebla.access.user_list import UserList
from ebla.client.database import service_of
from ebla.clock import SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.master.calls import CloseGate, OpenGate, SendHeartbeat, SendRequests, UnloadHere
from ebla.master.messages import Heartbeat, Instance, Requests
from ebla.master_server.process import MasterProcess
from ebla.metadata_rpc.calls import AskMetadata, KeepTransaction, Tell
from ebla.rpc.methods import Method, Methods
from ebla.rpc.wire.messages import (
    BeginScan,
    CaptureTable,
    CarryOut,
    CountRows,
    DeriveToken,
    EndScan,
    GetRow,
    Inform,
    ListTables,
    Locate,
    ModifyRow,
    NextEvents,
    ReadMany,
    ReadOne,
    ScanForm,
    ScanOn,
    WriteForm,
    WriteRows,
)
from ebla.service.requests import Moment
from ebla.tablet_server.process import TabletServerProcess

SCAN = ScanForm(b"", None, None, 1, None, None, False, Moment(), False, None)


def requests_of(table: str) -> dict[type, Any]:
    """Return a request of every method, each of which would be answered if whoever sent it had the right."""
    empty = msgspec.Raw(msgspec.msgpack.encode({}))
    found = [
        Inform(),
        ListTables(),
        Locate("words"),
        GetRow(table, b"a"),
        ReadOne(table, b"a", None, Moment(), 1),
        ReadMany(table, memoryview(b""), None, Moment()),
        BeginScan(table, SCAN, None),
        ScanOn(table, SCAN, 1, "cursor", 0, 1000),
        EndScan("cursor"),
        CountRows(table, SCAN, 1),
        WriteRows(table, WriteForm("put", rows=[{"word": "x", "n": 1}]), ("lane", 1)),
        ModifyRow(table, b"a", "n", "increment", 1, "durable", ("lane", 2)),
        CaptureTable(table, None, None, False),
        CarryOut(("lane", 3), table, "DescribeTable", empty),
        NextEvents(None),
        DeriveToken(60.0),
        SendHeartbeat(Heartbeat("cluster", Instance("somebody", 1))),
        SendRequests(Requests(1, "somebody", ())),
        CloseGate("attempt", table, (), 1),
        OpenGate("attempt"),
        UnloadHere(table, ()),
        Tell("somebody", ()),
        KeepTransaction(table, "txnid", b""),
        AskMetadata("somebody", table, b""),
    ]
    made = {type(request): request for request in found}
    return {method.request: made.get(method.request) or sample(method.request) for method in every_method().values()}


def sample(kind: Any, name: str = "") -> Any:
    """Return a value of a type, by the types of its fields: so a method that is new is tried without being told of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{one.name: sample(hints[one.name], one.name) for one in fields(kind) if one.required})
    if get_origin(kind) is not None:
        return (
            (get_origin(kind) if isinstance(get_origin(kind), type) else dict)()
            if NoneType not in get_args(kind)
            else None
        )
    simple = {str: "somebody", int: 1, float: 1.0, bool: False, bytes: b"", memoryview: memoryview(b"")}
    assert kind in simple, f"{name}: say in `requests_of` what a request with a {kind} looks like"
    return simple[kind]


@cache
def every_method() -> dict[str, Method]:
    """Return the methods of all sets that there are in the package, by name."""
    found: dict[str, Method] = {}
    for module in pkgutil.walk_packages(ebla.__path__, "ebla."):
        if module.name.startswith(("ebla.pipeline", "ebla.cli", "ebla.demo", "ebla.__main__")):
            continue  # what needs Spark, and what runs when it is imported; a method is known by who serves it
        for value in list(vars(importlib.import_module(module.name)).values()):
            if isinstance(value, Methods):
                found |= {method.name: method for method in value}
    return found


@dataclass
class Guarded:
    """The processes, the table `words` that they serve, and tokens."""

    master: MasterProcess
    server: TabletServerProcess
    users: UserList
    secret: bytes
    table: str
    admin: str
    made: dict[str, str]
    directory: Path

    def user(self, name: str, expires: float | None = None, **grants: str) -> str:
        if name in self.made:
            return self.made[name]
        token, stored = new_token(name, expires)
        self.made[name] = token

        def changed(users: Any) -> Any:
            users = users.with_token(name, stored)
            for table, right in grants.items():
                users = users.granted(name, table, right)
            return users

        self.users.change(changed)
        self._until_known(token)
        return token

    def server_token(self, name: str, seconds: float = 60.0) -> str:
        return signed(Claim("server", name, time.time() + seconds), self.secret)

    def audit_of_master(self, name: str) -> Path:
        return self.directory / "master" / name

    def _until_known(self, token: str) -> None:
        wait_until(lambda: all(known.users == self.users.read() for known in self._known()))

    def _known(self) -> list[Any]:
        return [process._access._users for process in (self.master, self.server)]


def wait_until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.02)


@contextmanager
def guarded_cluster(directory: Path) -> Iterator[Guarded]:
    nodes, clock = MemoryStore(), SystemClock()
    users = UserList(MemoryCoordination(nodes, clock))
    admin, stored = new_token("root", None)
    users.change(lambda now: now.with_token("root", stored).granted("root", "*", "admin"))
    secret = users.secret()
    root = directory / "root"
    master = MasterProcess(MemoryCoordination(nodes, clock), directory / "master", root, auth=True)
    server = TabletServerProcess(MemoryCoordination(nodes, clock), directory / "server", root, auth=True)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        with ebla.connect(master.address, token=admin) as db:
            schema = ebla.Schema(key={"word": "string"}, columns={"n": "int64"})
            words = db.create_table("words", schema)
            words.put({"word": "a", "n": 1})
            db.create_table("other", schema).put({"word": "secret", "n": 1})
            yield Guarded(
                master,
                server,
                users,
                secret,
                service_of(db).table("words").id,
                admin,
                {},
                directory,
            )
    finally:
        server.stop()
        thread.join(20)
        master.close()
