"""Which masters a cluster has, and where: a node of each in the coordination service.

    masters/<uuid>     {"address": "10.0.0.7:7070"}      written by the master when it starts; it stays when it stops

A master that is away still counts: a majority is one of all masters.
"""

from __future__ import annotations

import threading

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import Corruption, Unavailable

__all__ = ["MASTERS", "MasterList"]

MASTERS = "masters"
# What was read is used for so long: where a master is seldom changes.
KEPT_SECONDS = 1.0


class _Master(msgspec.Struct, frozen=True):
    address: str


class MasterList:
    """The masters of a cluster. Safe to use from several threads."""

    def __init__(self, coordination: CoordinationService, clock: Clock) -> None:
        # Set once.
        self._coordination = coordination
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._known: dict[str, str] = {}
        self._read_at: float | None = None

    def register(self, uuid: str, address: str) -> None:
        """Say where a master is."""
        path = f"{MASTERS}/{uuid}"
        node = self._coordination.read(path)
        value = msgspec.json.encode(_Master(address))
        if node is None or node.value != value:
            self._coordination.put(path, value, None if node is None else node.version)
        with self._lock:
            self._read_at = None

    def all(self) -> dict[str, str]:
        """Return the addresses of all masters by uuid, sorted."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            if self._read_at is not None and now - self._read_at < KEPT_SECONDS:
                return self._known
        try:
            paths = self._coordination.list(MASTERS)
            known = {path.removeprefix(f"{MASTERS}/"): self._read(path) for path in paths}
        except Unavailable:
            with self._lock:
                if self._known:
                    return self._known  # the coordination service is away: they are where they were
            raise
        with self._lock:
            self._known, self._read_at = {uuid: address for uuid, address in known.items() if address}, now
            return self._known

    def uuids(self) -> tuple[str, ...]:
        """Return the masters, sorted."""
        return tuple(self.all())

    def addresses(self) -> list[str]:
        """Return where the masters are."""
        return [*self.all().values()]

    def address_of(self, uuid: str) -> str | None:
        """Return where a master is; None if it is none."""
        return self.all().get(uuid)

    def _read(self, path: str) -> str:
        node = self._coordination.read(path)
        if node is None:
            return ""
        try:
            return msgspec.json.decode(node.value, type=_Master).address
        except msgspec.MsgspecError as error:
            raise Corruption(path, f"it does not say where a master is: {error}") from error
