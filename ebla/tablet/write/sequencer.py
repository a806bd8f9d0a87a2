"""The sequencer: which transactions are allocated, committed and stable, and who waits for them.

    allocated   a txn was given out; its records are in memory, not yet in the log
    committed   the log holds it, synced, and everything before it
    stable      committed, and every METADATA change that it depends on is saved, and so for everything before it

A txn may *depend* on changes that are still to come: the first write to a tablet depends on METADATA naming this
server's log for it, for otherwise nobody would replay that log. `add_future_dependencies` announces how many there
are; `resolve_future_dependencies` says that some of them became part of a later txn, or (txn 0) are durable already.

The state is small and has no I/O; everything in it is guarded by one lock, and callbacks run after it is released.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable
from itertools import count

from ebla.errors import EblaError, TimedOut

Callback = Callable[[EblaError | None], None]


class Sequencer:
    """Tracks commits in txn order. Allocation and commit must happen in ascending order of txn."""

    def __init__(self, committed: int = 0) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Guarded by _lock.
        self._allocated = committed
        self._committed = committed
        self._stable = committed
        self._failure: EblaError | None = None
        self._unresolved: dict[int, int] = {}  # txn -> how many future dependencies are open
        self._depends_on: dict[int, int] = {}  # txn -> the latest txn that its resolved dependencies are part of
        self._callbacks: list[tuple[int, int, Callback]] = []
        self._tie = count()

    @property
    def allocated(self) -> int:
        """The newest txn given out."""
        return self._allocated

    @property
    def committed(self) -> int:
        """The newest txn that the log holds, and everything before it."""
        return self._committed

    @property
    def stable(self) -> int:
        """The newest txn that no crash can undo, and everything before it."""
        return self._stable

    def allocate(self, txn: int) -> None:
        """Note that `txn` was given out."""
        with self._lock:
            assert txn > self._allocated, "txns are allocated in order"
            self._allocated = txn

    def commit(self, txn: int) -> None:
        """Note that everything up to `txn` is in the log."""
        with self._lock:
            assert self._committed <= txn <= self._allocated, "txns are committed in order"
            self._committed = txn
            due = self._advance()
            self._changed.notify_all()
        _run(due, None)

    def fail(self, error: EblaError) -> None:
        """Give up: nothing that is not committed will be. Everybody who waits gets `error`."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            due = [callback for _, _, callback in self._callbacks]
            self._callbacks.clear()
            self._changed.notify_all()
        _run(due, error)

    def add_commit_callback(self, txn: int, callback: Callback) -> None:
        """Call `callback(None)` once `txn` is committed, at once if it is; `callback(error)` if it never will be."""
        with self._lock:
            failure = self._failure if txn > self._committed else None
            if failure is None and txn > self._committed:
                heapq.heappush(self._callbacks, (txn, next(self._tie), callback))
                return
        callback(failure)

    def add_future_dependencies(self, txn: int, number: int) -> None:
        """Hold `txn` and everything after it back from stable until `number` more dependencies are resolved."""
        with self._lock:
            self._unresolved[txn] = self._unresolved.get(txn, 0) + number

    def resolve_future_dependencies(self, txn: int, number: int, future_txn: int = 0) -> None:
        """Say that `number` dependencies of `txn` are part of `future_txn`; 0 means that they are durable already."""
        with self._lock:
            left = self._unresolved[txn] - number
            assert left >= 0, "more dependencies resolved than were announced"
            if future_txn:
                self._depends_on[txn] = max(future_txn, self._depends_on.get(txn, 0))
            if left:
                self._unresolved[txn] = left
            else:
                del self._unresolved[txn]
            due = self._advance()
            self._changed.notify_all()
        _run(due, None)

    def wait_committed(self, txn: int, timeout_seconds: float | None = None) -> None:
        """Return once `txn` is in the log. Raises what made that impossible, or `TimedOut`."""
        if self._committed >= txn:
            return
        self._wait(lambda: self._committed >= txn, timeout_seconds)

    def wait_stable(self, txn: int, timeout_seconds: float | None = None) -> None:
        """Return once `txn` is stable. Raises what made that impossible, or `TimedOut`."""
        if self._stable >= txn:
            return
        self._wait(lambda: self._stable >= txn, timeout_seconds)

    def _wait(self, done: Callable[[], bool], timeout_seconds: float | None) -> None:
        with self._lock:
            self._changed.wait_for(lambda: done() or self._failure is not None, timeout_seconds)
            if done():
                return
            if self._failure is not None:
                raise self._failure
        raise TimedOut(
            f"not durable after {timeout_seconds} s: the log or METADATA is slow; call sync() to wait longer"
        )

    def _advance(self) -> list[Callback]:
        """Move `stable` as far as it can go; return the callbacks that are due. The lock is held."""
        stable = self._committed
        if not (self._unresolved or self._depends_on or self._callbacks):
            self._stable = max(self._stable, stable)
            return []
        if self._unresolved:
            stable = min(stable, min(self._unresolved) - 1)
        for txn in sorted(self._depends_on):
            if txn > stable:
                break
            if self._depends_on[txn] > self._committed:
                stable = min(stable, txn - 1)
                break
            del self._depends_on[txn]
        self._stable = max(self._stable, stable)
        due = []
        while self._callbacks and self._callbacks[0][0] <= self._committed:
            due.append(heapq.heappop(self._callbacks)[2])
        return due


def _run(callbacks: Iterable[Callback], error: EblaError | None) -> None:
    for callback in callbacks:
        callback(error)
