"""Memory that is free, but held by the allocators of this process, given back to the system.

A flush or a compaction takes tens of megabytes in pieces of all sizes, and lets go of them. The allocators (Arrow's,
and the C library's, which serves numpy and Python) keep what they got: hundreds of megabytes that nobody uses.

Most of it is wanted again at once, and to get it anew, page by page, costs: given back after every flush, it cost one
writer a sixth of his speed. So it is given back when the process has grown by much since the last time: Arrow's, which
is quick, every now and then; the rest, if that was not enough, once in some seconds. What has grown may also be a cache
that fills up: then it was tried in vain, a few times at most.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from ebla.clock import Clock

__all__ = ["MUCH_BYTES", "SpareMemory"]

MUCH_BYTES = 16 << 20
PAUSE_SECONDS = 0.5
TRIM_BYTES = 32 << 20
TRIM_PAUSE_SECONDS = 3.0


def _trimmer() -> Callable[[int], int] | None:
    """Return glibc's own call for it. Other C libraries have none, and need none."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_trim = _trimmer()
_PAGE_BYTES = 4096 if _trim is None else ctypes.CDLL(None).getpagesize()
_RESIDENT = Path("/proc/self/statm")


def _resident_bytes() -> int | None:
    """Return the resident memory of this process, None if the system does not tell it in passing."""
    if _trim is None:
        return None
    try:
        return int(_RESIDENT.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return None


def _release_arrow() -> None:
    pa.default_memory_pool().release_unused()


def _trim_rest() -> None:
    if _trim is not None:
        _trim(0)


class SpareMemory:
    """Gives spare memory back now and then. Safe to use from several threads.

    Arrow's allocator gives back best what the calling thread has used: so whoever works much calls it himself.
    """

    def __init__(
        self,
        clock: Clock,
        resident_bytes: Callable[[], int | None] = _resident_bytes,
        release: Callable[[], None] = _release_arrow,
        trim: Callable[[], None] = _trim_rest,
    ) -> None:
        # Set once.
        self._clock = clock
        self._resident_bytes = resident_bytes
        self._release = release
        self._trim = trim
        self._lock = threading.Lock()
        # Guarded by _lock. Of each of the two: when it may be tried again, and the least that was resident since.
        self._release_at = 0.0
        self._trim_at = 0.0
        self._released_bytes: int | None = None
        self._trimmed_bytes: int | None = None

    def look(self, *, quickly: bool = False) -> None:
        """Give it back if that is worth while. Whoever has let go of much calls this; it costs next to nothing.

        `quickly`: only what takes a millisecond, for somebody waits.
        """
        now = self._clock.monotonic_seconds()
        if now < self._release_at or not self._lock.acquire(blocking=False):
            return
        try:
            resident = self._resident_bytes()
            if resident is None:
                return
            self._released_bytes = _least(self._released_bytes, resident)
            self._trimmed_bytes = _least(self._trimmed_bytes, resident)
            if resident - self._released_bytes >= MUCH_BYTES:
                self._release()
                self._release_at = now + PAUSE_SECONDS
                self._released_bytes = resident = self._resident_bytes() or 0
            if not quickly and resident - self._trimmed_bytes >= TRIM_BYTES and now >= self._trim_at:
                self._give_back(now)
        finally:
            self._lock.release()

    def give_back(self) -> None:
        """Give it back in any case: nobody will want it soon."""
        with self._lock:
            self._release()
            self._give_back(self._clock.monotonic_seconds())

    def _give_back(self, now: float) -> None:
        self._trim()
        self._trim_at = now + TRIM_PAUSE_SECONDS
        self._trimmed_bytes = self._released_bytes = self._resident_bytes()


def _least(known: int | None, now: int) -> int:
    return now if known is None else min(known, now)
