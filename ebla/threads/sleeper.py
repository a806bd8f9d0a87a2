"""Somebody who waits until another wakes him, once: a condition of his own, cheaper than one that all share."""

from __future__ import annotations

import threading

__all__ = ["Sleeper"]


class Sleeper:
    """Waits in one thread, is woken by another, in whichever order."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout_seconds: float = -1) -> bool:
        """Return when somebody has called `wake`; False if nobody has within so many seconds."""
        return self._lock.acquire(timeout=timeout_seconds)

    def wake(self) -> None:
        """Let the one who waits go on, or not wait at all. Call it once."""
        self._lock.release()
