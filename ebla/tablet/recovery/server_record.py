"""What is on record of a server outside of its log: a bound above the txns that it gave out, and what its log holds.

    clocks/<server>   1837849465249319936                                          above every txn given out
    logs/<server>     {"bound": 1837849465249319936, "first": 7, "last": 9, ...}   a LogExtent (log_extent.py)
    a file            7 5120                                                       how far it reaches (log_reach.py)

The bound is written every few seconds while there are commits, and how far the log reached by then goes with it, in the
same transaction. Beside that, the extent is written when a segment is made, before some are removed, when there were no
commits for a while, and when the store is closed: then it has the exact end. The file is overwritten after every sync.

*What the extent says is true whenever a crash comes*: see there. Whoever owns the store alone writes both, and each
change names the versions that it replaces: one who lost the store to another can neither give out txns nor remove
segments any more.

A version of Ebla that knows nothing of extents moves the bound alone. An extent whose bound is not that of the clock is
out of date, and counts for nothing; the next who opens the store for writing puts a new one in its place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import msgspec

from ebla.coordination.service import (
    CompareAndSet,
    CoordinationConflict,
    CoordinationFailed,
    CoordinationService,
    Create,
    Node,
    Operation,
)
from ebla.errors import Corruption, OutcomeUnknown, StoreError, Unavailable
from ebla.retry import RACES
from ebla.storage.files.files import Files
from ebla.storage.log.log_extent import NOTHING, LogExtent
from ebla.storage.log.log_format import SEGMENT_HEADER_BYTES, SegmentInfo
from ebla.storage.log.log_reach import LogReach, read_reach

__all__ = ["ServerRecord", "read_bound", "read_extent"]

_log = logging.getLogger(__name__)


class _Recorded(msgspec.Struct, frozen=True):
    """The value of a ``logs`` node: an extent, and the bound of the clock that was written with it or before."""

    bound: int
    first: int
    last: int
    synced: int
    lost: tuple[int, ...] = ()

    @property
    def extent(self) -> LogExtent:
        return LogExtent(self.first, self.last, self.synced, self.lost)


def read_extent(coordination: CoordinationService, files: Files, server: str) -> LogExtent:
    """Return what the log of a server must hold: nothing, if there is no record of it. Its owner may be at work."""
    for _ in RACES:
        reach = read_reach(files, server)
        recorded = _recorded(server, coordination.read(f"logs/{server}"))
        if recorded is None:
            return NOTHING
        clock = coordination.read(f"clocks/{server}")
        if _bound(server, clock) == recorded.bound:
            return recorded.extent.reaching(*reach)
        if _recorded(server, coordination.read(f"logs/{server}")) == recorded:
            return NOTHING
    raise Unavailable("the record of the log changes faster than it can be read: try again")


def read_bound(coordination: CoordinationService, server: str) -> int:
    """Return a bound above every txn that a server gave out; 0 if it gave out none."""
    return _bound(server, coordination.read(f"clocks/{server}"))


class ServerRecord:
    """The record of one server, for the owner of the store. Safe to use from several threads.

    It is the `LogWitness` of the log, and what the clock reserves its txns with.
    """

    def __init__(self, coordination: CoordinationService, files: Files, server: str) -> None:
        # Set once.
        self._coordination = coordination
        self._server = server
        self._reach = LogReach(files, server)
        # Guarded by _lock.
        self._lock = threading.Lock()
        self._is_unsure = False  # a write of ours may have happened, or may yet
        self._reached = (0, 0)  # the newest segment, and how much of it is durable; set without the lock
        self._read()
        # Taken from what was read first: later it is what is to be written.
        self.txn = self._bound
        self.extent = NOTHING if self._written is None else self._written.reaching(*read_reach(files, server))
        self.is_known = self._written is not None

    def check(self, newest: int) -> None:
        """Raise `Corruption` if the store has a txn beyond the bound: new commits would be hidden by what is there."""
        if newest > self.txn:
            reason = f"it allows txns up to {self.txn}, and the store has {newest}: restore the newer one"
            raise Corruption(f"clocks/{self._server} in the coordination service", reason)

    def recovered(self, segments: Sequence[SegmentInfo], next_sequence: int) -> None:
        """Note what a recovery found and made durable; put it on record if there was no record of it."""
        with self._lock:
            if not self.is_known:
                first = segments[0].sequence if segments else next_sequence
                self.extent = LogExtent(first, next_sequence - 1)
            if segments and segments[-1].sequence == next_sequence - 1:
                self._reached = (segments[-1].sequence, segments[-1].bytes)
            is_new, self.is_known = not self.is_known, True
        if is_new and segments:
            self.save()

    def accept(self, extent: LogExtent) -> None:
        """Put another extent in the place of the one that is on record: the owner goes on without what is lost."""
        try:
            self._reach.forget()
        except OSError as error:
            raise StoreError(f"what was lost cannot be given up: {error}: mend the cause, then try again") from error
        with self._lock:
            self.extent, self.is_known, self._reached = extent, True, (0, 0)
        self.save()

    def reserve(self, bound: int) -> None:
        """Persist a new bound, and with it how far the log reaches."""
        with self._lock:
            self._write(bound)

    def save(self) -> None:
        """Put on record how far the log reaches, if that is not there yet."""
        with self._lock:
            if self._next() != self._written:
                self._write(None)

    def reached(self, sequence: int, synced: int) -> None:
        """Remember that so many bytes of a segment are durable."""
        self._reached = (sequence, synced)
        self._reach.tell(sequence, synced)

    def begun(self, sequence: int) -> None:
        """Put on record that a new segment is there. If that is not possible now, the next reservation does it."""
        self.reached(sequence, SEGMENT_HEADER_BYTES)
        try:
            self.save()
        except (Unavailable, OutcomeUnknown, CoordinationFailed) as error:
            _log.warning("segment %d of the log is not on record yet: %s", sequence, error)

    def removing(self, first: int) -> None:
        """Put on record that segments below `first` are needed no more."""
        with self._lock:
            self.extent = self.extent.beginning_at(first)
        self.save()

    def closed(self) -> None:
        """Close the file that tells how far the log reaches."""
        self._reach.close()

    def _next(self) -> LogExtent:
        """Return what is to be on record now. The lock is held."""
        self.extent = self.extent.reaching(*self._reached)
        return self.extent

    def _read(self) -> None:
        clock = self._coordination.read(f"clocks/{self._server}")
        node = self._coordination.read(f"logs/{self._server}")
        recorded = _recorded(self._server, node)
        self._bound = _bound(self._server, clock)
        self._clock_version = None if clock is None else clock.version
        self._version = None if node is None else node.version
        self._written = recorded.extent if recorded is not None and recorded.bound == self._bound else None

    def _write(self, bound: int | None) -> None:
        """Write the extent, and a new bound if there is one. The lock is held."""
        for _ in RACES:
            operations: list[Operation] = []
            extent = self._next()
            new_bound = self._bound if bound is None else bound
            if bound is not None:
                operations.append(_put(f"clocks/{self._server}", str(bound).encode(), self._clock_version))
            if self.is_known:
                value = _Recorded(new_bound, extent.first, extent.last, extent.synced, extent.lost)
                operations.append(_put(f"logs/{self._server}", msgspec.json.encode(value), self._version))
            if not operations:
                return
            try:
                versions = self._coordination.multi(operations)
            except OutcomeUnknown:
                self._is_unsure = True
            except KeyboardInterrupt:  # perhaps between the write and its reply
                self._is_unsure = True
                raise
            except CoordinationConflict as error:
                # Our own write, whose reply was lost, may have moved the version on; anybody else's must not have.
                if not self._is_unsure:
                    raise StoreError(
                        f"another process writes this store as well: {error}; close one of them"
                    ) from error
                self._read()
            else:
                self._bound = new_bound
                if bound is not None:
                    self._clock_version = versions.pop(0)
                if versions:
                    self._version, self._written = versions.pop(), extent
                return
        raise Unavailable(
            "nothing can be put on record, the coordination service does not answer: nothing was written, retry"
        )


def _put(path: str, value: bytes, version: int | None) -> Operation:
    return Create(path, value) if version is None else CompareAndSet(path, value, version)


def _bound(server: str, node: Node | None) -> int:
    try:
        return 0 if node is None else int(node.value)
    except ValueError as error:
        raise Corruption(f"clocks/{server} in the coordination service", f"not a txn: {error}") from error


def _recorded(server: str, node: Node | None) -> _Recorded | None:
    try:
        return None if node is None else msgspec.json.decode(node.value, type=_Recorded)
    except msgspec.MsgspecError as error:
        raise Corruption(f"logs/{server} in the coordination service", f"not the record of a log: {error}") from error
