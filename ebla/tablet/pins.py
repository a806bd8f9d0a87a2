"""Pins: snapshots that somebody still reads, from which compaction keeps its hands off.

    held by this process    scans under way, and snapshots without a name       in memory
    held by name            until it is released, by whichever process          pins/<name> in the coordination service
    held by streams         by name, moved forward as they go on; until it expires, if they do not

A pin is registered before its holder reads anything. It is at the newest commit of that moment, and history never ends
later than that, so there is nothing to check.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import (
    CoordinationConflict,
    CoordinationService,
    NodeExists,
    NodeMissing,
    VersionConflict,
)
from ebla.errors import Corruption, OutcomeUnknown, RequestError, Unavailable
from ebla.schema import check_table_name

PINS = "pins"
ATTEMPTS_MAX = 8


class Pin(msgspec.Struct, frozen=True):
    """A snapshot that is held by name."""

    name: str
    txn: int
    created_microseconds: int
    expires_microseconds: int | None = None  # None: never


class Pins:
    """What is held, by this process and by name. Safe to use from several threads."""

    def __init__(self, coordination: CoordinationService, clock: Clock) -> None:
        # Set once.
        self._coordination = coordination
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._held: Counter[int] = Counter()

    # --- held by this process ---

    def hold(self, txn: int) -> None:
        """Keep what a reader at `txn` needs until `let_go`."""
        with self._lock:
            self._held[txn] += 1

    def let_go(self, txn: int) -> None:
        """End one `hold` of `txn`."""
        with self._lock:
            self._held[txn] -= 1
            if self._held[txn] <= 0:
                del self._held[txn]

    @contextmanager
    def held(self, txn: int) -> Iterator[None]:
        """Hold `txn` for as long as the block runs."""
        self.hold(txn)
        try:
            yield
        finally:
            self.let_go(txn)

    def held_here(self) -> dict[int, int]:
        """Return the txns that this process holds without a name, and how often each."""
        with self._lock:
            return dict(self._held)

    # --- held by name ---

    def pin(self, name: str, txn: int) -> Pin:
        """Hold `txn` under a name; if the name is there already, return what it holds."""
        path = _path(name)
        pin = Pin(name, txn, self._clock.microseconds())
        with self.held(txn):
            try:
                self._coordination.create(path, msgspec.json.encode(pin))
            except NodeExists:
                found = self.find(name)
                if found is None:
                    self.remove_expired()
                    return self.pin(name, txn)
                return found
        return pin

    def renew(self, name: str, txn: int, expires_seconds: float) -> Pin:
        """Hold `txn` under a name for so long from now on; what it held before is let go if it is older.

        A later txn that it holds already stays: a pin only moves forward. Whoever lets one expire may find, when it is
        renewed, that history has ended meanwhile.
        """
        path = _path(name)
        for _ in range(ATTEMPTS_MAX):
            now = self._clock.microseconds()
            expires = now + round(expires_seconds * 1e6)
            node = self._coordination.read(path)
            with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # the next look tells
                if node is None:
                    pin = Pin(name, txn, now, expires)
                    self._coordination.create(path, msgspec.json.encode(pin))
                    return pin
                there = _decode(name, node.value)
                pin = Pin(name, max(txn, there.txn), there.created_microseconds, expires)
                self._coordination.compare_and_set(path, msgspec.json.encode(pin), node.version)
                return pin
        raise Unavailable(f"others keep changing the snapshot {name!r}: try again")

    def find(self, name: str) -> Pin | None:
        """Return what a name holds, or None."""
        node = self._coordination.read(_path(name))
        pin = None if node is None else _decode(name, node.value)
        return None if pin is None or self._is_over(pin) else pin

    def _is_over(self, pin: Pin) -> bool:
        return pin.expires_microseconds is not None and pin.expires_microseconds <= self._clock.microseconds()

    def remove_expired(self) -> list[str]:
        """Remove pins whose time is over, and return their names. One that is renewed at this moment stays."""
        removed = []
        for path in self._coordination.list(PINS):
            node = self._coordination.read(path)
            if node is not None and self._is_over(pin := _decode(path, node.value)):
                with contextlib.suppress(CoordinationConflict, OutcomeUnknown):
                    self._coordination.delete(path, node.version)
                    removed.append(pin.name)
        return removed

    def txn_of(self, name: str) -> int:
        """Return the txn that a name holds; `RequestError` if it holds nothing."""
        pin = self.find(name)
        if pin is None:
            raise RequestError(f"as_of names the snapshot {name!r}, and there is none of that name: see snapshots()")
        return pin.txn

    def release(self, name: str) -> None:
        """Let go of what a name holds; nothing happens if it holds nothing."""
        path = _path(name)
        for _ in range(ATTEMPTS_MAX):
            node = self._coordination.read(path)
            if node is None:
                return
            try:
                self._coordination.delete(path, node.version)
            except NodeMissing:
                return
            except VersionConflict:
                continue
            return
        raise Unavailable(f"others keep changing the snapshot {name!r}: try again")

    def all(self) -> list[Pin]:
        """Return everything that is held by name."""
        found = []
        for path in self._coordination.list(PINS):
            node = self._coordination.read(path)
            if node is not None and not self._is_over(pin := _decode(path, node.value)):
                found.append(pin)
        return found

    def oldest(self) -> int | None:
        """Return the oldest txn that is held by anybody, None if nothing is."""
        with self._lock:
            txns = list(self._held)
        return min([*txns, *(pin.txn for pin in self.all())], default=None)


def _path(name: str) -> str:
    try:
        return f"{PINS}/{check_table_name(name)}"
    except RequestError:
        raise RequestError(
            f"a snapshot cannot be called {name!r}: use letters, digits, '_', '.' and '-', as for tables"
        ) from None


def _decode(path: str, value: bytes) -> Pin:
    try:
        return msgspec.json.decode(value, type=Pin)
    except msgspec.MsgspecError as error:
        raise Corruption(path, f"not a snapshot: {error}") from error
