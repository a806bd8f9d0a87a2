"""The implementations that the contract of a service is checked on: one world for each.

To add an implementation, write a world and add it to `WORLDS` and `make_world`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

import ebla
from ebla.client.database import service_of
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


WORLDS = ("embedded",)


def make_world(name: str, request: pytest.FixtureRequest) -> World:
    """Return a new world with no tables."""
    assert name in WORLDS
    return EmbeddedWorld(request.getfixturevalue("tmp_path"))
