"""A master and a tablet server in this process that want tokens and speak TLS, on two addresses of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ebla
from ebla.access.tokens import new_token
from ebla.access.user_list import UserList
from ebla.access.users import Users
from ebla.clock import SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.master_server.process import MasterProcess
from ebla.tablet_server.process import TabletServerProcess
from tests.access.guarded import wait_until
from tests.access.made_certificates import Made


@dataclass
class Secured:
    nodes: MemoryStore
    made: Made
    master: MasterProcess
    server: TabletServerProcess
    admin: str
    secret: bytes
    users: UserList

    def user(self, name: str, **grants: str) -> str:
        """Make a user, and return its token when all processes know it."""
        token, stored = new_token(name, None)

        def changed(users: Users) -> Users:
            users = users.with_token(name, stored)
            for table, right in grants.items():
                users = users.granted(name, table, right)
            return users

        self.users.change(changed)
        known = [process._access._users for process in (self.master, self.server)]
        wait_until(lambda: all(one.users == self.users.read() for one in known))
        return token

    @property
    def ca(self) -> Path:
        return self.made.directory / "ca.pem"


@contextmanager
def secured_cluster(directory: Path) -> Iterator[Secured]:
    made = Made(directory / "certs")
    nodes, clock = MemoryStore(), SystemClock()
    users = UserList(MemoryCoordination(nodes, clock))
    admin, stored = new_token("root", None)
    users.change(lambda now: now.with_token("root", stored).granted("root", "*", "admin"))
    root = directory / "root"
    master = MasterProcess(
        MemoryCoordination(nodes, clock), directory / "master", root, auth=True, tls=made.process("master")
    )
    server = TabletServerProcess(
        MemoryCoordination(nodes, clock),
        directory / "server",
        root,
        auth=True,
        host="127.0.0.2",
        tls=made.process("server", "127.0.0.2"),
    )
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        with ebla.connect(master.address, token=admin, tls_ca=made.directory / "ca.pem") as db:
            words = db.create_table("words", ebla.Schema(key={"word": "string"}, columns={"n": "int64"}))
            words.put({"word": "a", "n": 1})
        yield Secured(nodes, made, master, server, admin, users.secret(), users)
    finally:
        server.stop()
        thread.join(20)
        master.close()
