"""Pins: snapshots that somebody still reads, from which compaction keeps its hands off.

    held by this process    scans under way, and snapshots without a name       in memory
    held by name            until it is released, by whichever process          pins/<name> in the coordination service
    held by streams         by name, moved forward as they go on; until it expires, if they do not
    held by jobs            by name, renewed for as long as they run; with files that they read by their names

A pin is registered before its holder reads anything. That of this process is at the newest commit of that moment, and
history never ends later than that, so there is nothing to check. Jobs of other processes look at `horizon` afterwards.

Files lie in nodes of their own, ``held/<name>.<n>``, written once, and count as long as the pin of that name does.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import (
    CoordinationConflict,
    CoordinationService,
    Create,
    NodeExists,
    NodeMissing,
    VersionConflict,
)
from ebla.errors import Corruption, OutcomeUnknown, RequestError, Unavailable, shown
from ebla.model.declaration import check_table_name
from ebla.retry import RACES

PINS = "pins"
FILES = "held"
# So many names of files fit into a node.
FILES_IN_NODE_MAX = 4_000
# A pin that has lost less than this part of its time is as good as new.
FRESH_SHARE = 8


class Pin(msgspec.Struct, frozen=True):
    """A snapshot that is held by name."""

    name: str
    txn: int
    created_microseconds: int
    expires_microseconds: int | None = None  # None: never
    reader: str = ""  # the job that reads at it; people know what their snapshots are for
    files: int = 0  # so many files are held with it


class Pins:
    """What is held, by this process and by name. Safe to use from several threads."""

    def __init__(self, coordination: CoordinationService, clock: Clock) -> None:
        # Set once.
        self._coordination = coordination
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._held: Counter[int] = Counter()
        # What was let go of, and is not taken out of the others yet. Anybody adds to it, without the lock.
        self._let_go: deque[int] = deque()

    # --- held by this process ---

    def hold(self, txn: int) -> None:
        """Keep what a reader at `txn` needs until `let_go`."""
        with self._lock:
            self._settle()
            self._held[txn] += 1

    def let_go(self, txn: int) -> None:
        """End one `hold` of `txn`.

        It takes no lock: a scan that nobody wants any more ends where Python clears it away, which may be anywhere.
        """
        self._let_go.append(txn)

    def _settle(self) -> None:
        """Take out what was let go of. The lock is held."""
        while self._let_go:
            txn = self._let_go.popleft()
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
            self._settle()
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

    def renew(self, name: str, txn: int, expires_seconds: float, reader: str = "") -> Pin:
        """Hold `txn` under a name for so long from now on; what it held before is let go if it is older.

        A later txn that it holds already stays: a pin only moves forward. Whoever lets one expire may find, when it is
        renewed, that history has ended meanwhile.
        """
        path = _path(name)
        for _ in RACES:
            now = self._clock.microseconds()
            expires = now + round(expires_seconds * 1e6)
            node = self._coordination.read(path)
            with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # the next look tells
                if node is None:
                    pin = Pin(name, txn, now, expires, reader)
                    self._coordination.create(path, msgspec.json.encode(pin))
                    return pin
                there = _decode(name, node.value)
                if there.txn >= txn and _is_fresh(there, now, expires_seconds):
                    return there
                pin = msgspec.structs.replace(there, txn=max(txn, there.txn), expires_microseconds=expires)
                self._coordination.compare_and_set(path, msgspec.json.encode(pin), node.version)
                return pin
        raise Unavailable(f"others keep changing the snapshot {name!r}: try again")

    def begin(self, name: str, txn: int, expires_seconds: float, reader: str, files: Collection[str] = ()) -> Pin:
        """Hold `txn` and files under a name that is new, for so long from now on.

        Files are kept if METADATA still names them when this has returned: whoever holds them looks then.
        """
        now = self._clock.microseconds()
        pin = Pin(name, txn, now, now + round(expires_seconds * 1e6), reader, len(files))
        named = sorted(files)
        parts = [
            Create(path, msgspec.msgpack.encode(named[n * FILES_IN_NODE_MAX : (n + 1) * FILES_IN_NODE_MAX]))
            for n, path in enumerate(_file_paths(pin))
        ]
        self._coordination.multi([Create(_path(name), msgspec.json.encode(pin)), *parts[:1]])
        for part in parts[1:]:  # all at once might be too much
            self._coordination.multi([part])
        return pin

    def extend(self, name: str, expires_seconds: float) -> bool:
        """Hold what a name holds for so long from now on; False if it holds nothing any more."""
        path = _path(name)
        for _ in RACES:
            node = self._coordination.read(path)
            if node is None:
                return False
            now = self._clock.microseconds()
            there = _decode(name, node.value)
            if _is_fresh(there, now, expires_seconds):
                return True
            pin = msgspec.structs.replace(there, expires_microseconds=now + round(expires_seconds * 1e6))
            with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # the next look tells
                self._coordination.compare_and_set(path, msgspec.json.encode(pin), node.version)
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
        # Listed before the pins are: a pin is never made later than its files.
        listed = self._coordination.list(FILES)
        names = {path.removeprefix(f"{PINS}/") for path in self._coordination.list(PINS)}
        self._remove_files(path for path in listed if _name_of(path) not in names)
        return removed

    def _remove_files(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # the next round tries again
                self._coordination.delete(path, 1)  # they are never changed

    def txn_of(self, name: str) -> int:
        """Return the txn that a name holds; `RequestError` if it holds nothing."""
        pin = self.find(name)
        if pin is None:
            raise RequestError(
                f"as_of names the snapshot {name!r}, and there is none of that name: see snapshots(); or give "
                "a time as a datetime"
            )
        return pin.txn

    def release(self, name: str) -> None:
        """Let go of what a name holds; nothing happens if it holds nothing."""
        path = _path(name)
        for _ in RACES:
            node = self._coordination.read(path)
            if node is None:
                return
            try:
                self._coordination.delete(path, node.version)
            except NodeMissing:
                return
            except VersionConflict:
                continue
            self._remove_files(_file_paths(_decode(path, node.value)))
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

    def files(self) -> frozenset[str]:
        """Return the files that are held by name."""
        alive = {pin.name for pin in self.all() if pin.files}
        found: set[str] = set()
        for path in self._coordination.list(FILES) if alive else ():
            node = self._coordination.read(path) if _name_of(path) in alive else None
            if node is not None:
                found.update(_decode_files(path, node.value))
        return frozenset(found)

    def oldest(self) -> int | None:
        """Return the oldest txn that is held by anybody, None if nothing is."""
        with self._lock:
            self._settle()
            txns = list(self._held)
        return min([*txns, *(pin.txn for pin in self.all())], default=None)


def _path(name: str) -> str:
    try:
        return f"{PINS}/{check_table_name(name)}"
    except RequestError:
        raise RequestError(
            f"a snapshot cannot be called {shown(name)}: use letters, digits, '_', '.' and '-', as for tables"
        ) from None


def _file_paths(pin: Pin) -> list[str]:
    return [f"{FILES}/{pin.name}.{n}" for n in range(-(-pin.files // FILES_IN_NODE_MAX))]


def _name_of(path: str) -> str:
    return path.removeprefix(f"{FILES}/").rpartition(".")[0]


def _is_fresh(pin: Pin, now: int, expires_seconds: float) -> bool:
    """Tell whether a pin would gain nothing worth a write by being held for so long from now on."""
    if pin.expires_microseconds is None:
        return True
    return pin.expires_microseconds - now > expires_seconds * 1e6 * (1 - 1 / FRESH_SHARE)


def _decode_files(path: str, value: bytes) -> list[str]:
    try:
        return msgspec.msgpack.decode(value, type=list[str])
    except msgspec.MsgspecError as error:
        raise Corruption(path, f"not a list of files: {error}") from error


def _decode(path: str, value: bytes) -> Pin:
    try:
        return msgspec.json.decode(value, type=Pin)
    except msgspec.MsgspecError as error:
        raise Corruption(path, f"not a snapshot: {error}") from error
