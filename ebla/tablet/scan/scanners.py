"""The scans that are under way, least recently used first. Too many, or unused for too long: they let go of what they
hold, and notice nothing.

    enter        a scan begins
    touch        it is about to read on                 to the end of the line
    let go       first in line when there are too many, or untouched for `expiry_seconds`
    leave        it has ended

What a scan holds is rows that were read ahead, and a plan of what to read next. All it needs to go on is its txn and
the last row it gave; the snapshot stays pinned until it ends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Protocol

from ebla.clock import Clock

__all__ = ["Released", "Scanners"]


class Released(Protocol):
    """What can let go of what it holds, at any time and on any thread."""

    def release(self) -> None:
        """Let go."""


class Scanners:
    """A byte-free LRU: scans by when they were last used. Safe to use from several threads."""

    def __init__(self, clock: Clock, scanners_max: int, expiry_seconds: float) -> None:
        # Set once.
        self._clock = clock
        self._max = scanners_max
        self._expiry_seconds = expiry_seconds
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._live: OrderedDict[int, tuple[Released, float]] = OrderedDict()
        # What has ended, and is not taken out of the others yet. Anybody adds to it, without the lock.
        self._left: deque[Released] = deque()
        self._entered = 0
        self._evicted = 0
        self._expired = 0

    def touch(self, scanner: Released) -> None:
        """Say that a scan is being used; it enters if it is not there, or was let go."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            self._settle()
            if self._live.pop(id(scanner), None) is None:
                self._entered += 1
            self._live[id(scanner)] = (scanner, now)
            released = self._due(now)
        for one in released:
            one.release()

    def leave(self, scanner: Released) -> None:
        """Say that a scan has ended.

        It takes no lock: a scan that nobody wants any more ends where Python clears it away, which may be anywhere.
        """
        self._left.append(scanner)

    def _settle(self) -> None:
        """Take out what has ended. The lock is held."""
        while self._left:
            self._live.pop(id(self._left.popleft()), None)

    def expire(self) -> None:
        """Let go of what was not used for too long."""
        with self._lock:
            self._settle()
            released = self._due(self._clock.monotonic_seconds())
        for one in released:
            one.release()

    def _due(self, now: float) -> list[Released]:
        """Take out what is to be let go. The lock is held; `release` is called without it."""
        due = []
        while self._live:
            key, (scanner, used_at) = next(iter(self._live.items()))
            is_old = now - used_at >= self._expiry_seconds
            if not is_old and len(self._live) <= self._max:
                break
            del self._live[key]
            self._expired += is_old
            self._evicted += not is_old
            due.append(scanner)
        return due

    def stats(self) -> dict[str, int]:
        """Return how many scans are under way, and how many were let go."""
        with self._lock:
            self._settle()
            return {"live": len(self._live), "evicted": self._evicted, "expired": self._expired}
