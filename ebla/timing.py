"""How often something was done and how long that took; what was slow is told to the log.

One `Timing` belongs to whoever does the thing: two additions and one comparison, beside work that waits for a disk. The
numbers go to `stats`, `metrics` and the status of the store.

A warning of one kind comes once in a while, with how many there were since the last: a disk that has become slow is
told of, and does not fill the log of the process.
"""

from __future__ import annotations

import logging
import threading
import time

__all__ = ["QUIET_SECONDS", "Timing", "Warner", "now_seconds"]

# So long a warning is not repeated.
QUIET_SECONDS = 10.0

now_seconds = time.perf_counter


class Warner:
    """Warns of one kind of trouble, once in a while; of two threads at the same moment both may."""

    __slots__ = ("_kept_back", "_logger", "_told_at")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told_at: float | None = None
        self._kept_back = 0

    def warn(self, text: str, *values: object) -> None:
        """Log a warning, or count it if one was logged a moment ago."""
        now = now_seconds()
        if self._told_at is not None and now - self._told_at < QUIET_SECONDS:
            self._kept_back += 1
            return
        if self._kept_back:
            text += f" ({self._kept_back} more of these since the last one was told)"
        self._told_at, self._kept_back = now, 0
        self._logger.warning(text, *values)


class Timing:
    """Counts something that is done again and again, and its seconds. Safe to use from several threads."""

    __slots__ = ("_lock", "_warner", "_what", "count", "seconds", "slow_seconds")

    def __init__(self, logger: logging.Logger, what: str, slow_seconds: float = 0.0) -> None:
        """`what` stands in the warning; nothing is slow if `slow_seconds` is 0."""
        self._what = what
        self._warner = Warner(logger)
        self._lock = threading.Lock()
        self.slow_seconds = slow_seconds
        # Guarded by _lock, read without it.
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one that took so long, and warn if it was slow; call it with no lock held that others wait for."""
        with self._lock:
            self.count += 1
            self.seconds += seconds
        if seconds >= self.slow_seconds > 0:
            self._warner.warn("slow: %s took %.3f s", self._what, seconds)
