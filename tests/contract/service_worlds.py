"""The implementations that the contract of a service is checked on: one world for each.

To add an implementation, write a world and add it to `WORLDS` and `make_world`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

import ebla
from ebla.client.database import service_of
from ebla.rpc.server import RpcServer
from ebla.rpc.serving.service_handlers import ServiceHandlers
from ebla.rpc.wire.messages import SERVICE_METHODS
from ebla.service.service import Service

SETTINGS = ebla.Settings(background_compaction=False, history_seconds=3600.0)


class World(Protocol):
    """Tables that somebody serves, reached by any number of clients."""

    def service(self) -> Service:
        """Return a service that takes writes, always of the same tables."""

    def reader(self) -> Service:
        """Return a service that takes no writes, and sees what is durable now."""

    def restart(self) -> None:
        """End whoever serves without any warning, and begin anew."""

    def close(self) -> None: ...


class EmbeddedWorld:
    """A store in this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: list[ebla.Database] = []

    def service(self) -> Service:
        return self._open(read_only=False)

    def reader(self) -> Service:
        return self._open(read_only=True)

    def restart(self) -> None:
        from tests.support.inside import abandon

        for opened in self._opened:
            abandon(opened)
        self._opened.clear()

    def close(self) -> None:
        for opened in self._opened:
            opened.close()

    def _open(self, *, read_only: bool) -> Service:
        opened = ebla.open(self._directory, read_only=read_only, settings=SETTINGS)
        self._opened.append(opened)
        return service_of(opened)


class RemoteWorld:
    """A store in this process, behind RPC."""

    def __init__(self, directory: Path) -> None:
        self._embedded = EmbeddedWorld(directory)
        self._servers: list[RpcServer] = []
        self._clients: list[Service] = []
        self._writer: RpcServer | None = None

    def service(self) -> Service:
        if self._writer is None:
            self._writer = self._serve(self._embedded.service())
        return self._connect(self._writer)

    def reader(self) -> Service:
        return self._connect(self._serve(self._embedded.reader()))

    def restart(self) -> None:
        self._embedded.restart()
        self._stop()
        self._writer = None

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._stop()
        self._embedded.close()

    def _stop(self) -> None:
        for server in self._servers:
            server.close(grace_seconds=0.5)
        self._servers.clear()

    def _serve(self, service: Service) -> RpcServer:
        server = RpcServer(SERVICE_METHODS, ServiceHandlers(service).by_type(), name="world")
        self._servers.append(server)
        return server

    def _connect(self, server: RpcServer) -> Service:
        client = service_of(ebla.connect(server.address, timeout_seconds=10.0))
        self._clients.append(client)
        return client


WORLDS = ("embedded", "remote")


def make_world(name: str, request: pytest.FixtureRequest) -> World:
    """Return a new world with no tables."""
    assert name in WORLDS
    directory: Path = request.getfixturevalue("tmp_path")
    return EmbeddedWorld(directory) if name == "embedded" else RemoteWorld(directory)
