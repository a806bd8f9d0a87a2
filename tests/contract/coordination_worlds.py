"""The implementations that the contract of the coordination service is checked on: one world for each.

To add an implementation, write a world and add it to `WORLDS` and `make_world`.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Protocol

import pytest

from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.coordination.service import CoordinationService
from ebla.coordination.sqlite import FILE_NAME, SqliteCoordination
from ebla.coordination.zookeeper import ZooKeeperCoordination
from tests.support.zookeeper import ZooKeeperServer


class World(Protocol):
    """One coordination service, which several clients share."""

    def client(self) -> CoordinationService: ...

    def reader(self) -> CoordinationService:
        """A client that may only read."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass for leases."""

    def close(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()

    def client(self) -> CoordinationService:
        return MemoryCoordination(self.store, self.clock)

    def reader(self) -> CoordinationService:
        return MemoryCoordination(self.store, self.clock, read_only=True)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        pass


class SqliteWorld:
    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.file = directory / FILE_NAME
        self.clients: list[SqliteCoordination] = []

    def client(self) -> CoordinationService:
        self.clients.append(SqliteCoordination(self.file, self.clock, poll_seconds=0.005))
        return self.clients[-1]

    def reader(self) -> CoordinationService:
        self.client().close()  # a reader does not make the file
        self.clients.append(SqliteCoordination(self.file, self.clock, read_only=True, poll_seconds=0.005))
        return self.clients[-1]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for client in self.clients:
            client.close()


class ZooKeeperWorld:
    """A tree of its own on a server that all tests share. Time passes for leases by a clock of the test's."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.clock = ManualClock()
        self.server = server
        self.root = f"/{uuid.uuid4()}"
        self.clients: list[ZooKeeperCoordination] = []

    def client(self) -> CoordinationService:
        return self._connect(read_only=False)

    def reader(self) -> CoordinationService:
        return self._connect(read_only=True)

    def _connect(self, *, read_only: bool) -> CoordinationService:
        self.clients.append(
            ZooKeeperCoordination(
                self.server.address,
                self.clock,
                root=self.root,
                read_only=read_only,
                shared_microseconds=self.clock.microseconds,
            )
        )
        return self.clients[-1]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for client in self.clients:
            client.close()


WORLDS = ["memory", "sqlite", "zookeeper"]


def make_world(name: str, request: pytest.FixtureRequest) -> World:
    """The world of that name; a server is started only if it needs one."""
    match name:
        case "memory":
            return MemoryWorld()
        case "sqlite":
            return SqliteWorld(request.getfixturevalue("tmp_path"))
        case _:
            return ZooKeeperWorld(request.getfixturevalue("zookeeper_server"))
