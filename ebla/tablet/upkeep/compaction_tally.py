"""The tally of compactions: those that were carried out, here and by jobs, as `stats()` and the counters tell them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import asdict, dataclass

from ebla.tablet.upkeep.compaction import Reason

__all__ = ["Compaction", "CompactionTally"]

RECENT_MAX = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compaction:
    """One compaction that was carried out, as `stats()` tells it."""

    table: str
    tablet: str
    group: str
    reason: Reason
    is_rooted: bool
    fragments_read: int
    fragments_written: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_written: int
    history_bytes_written: int = 0  # of the bytes written, those that only reads of the past need
    seconds: float = 0.0


class CompactionTally:
    """Counts compactions. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Written by whoever holds _lock, read by others.
        self.recent: deque[Compaction] = deque(maxlen=RECENT_MAX)
        self.count = 0
        self.seconds = 0.0
        self.bytes_read = 0
        self.bytes_written = 0
        self.history_bytes_written = 0

    def note(self, done: Compaction) -> None:
        """Count a compaction that was carried out, here or by a job."""
        with self._lock:
            self.recent.append(done)
            self.count += 1
            self.seconds += done.seconds
            self.bytes_read += done.bytes_read
            self.bytes_written += done.bytes_written
            self.history_bytes_written += done.history_bytes_written
        _log.info(
            "compacted %s (%s), %s: %d files, %d bytes, %d records to %d files, %d bytes, %d records in %.3f s",
            done.table,
            done.group,
            done.reason,
            done.fragments_read,
            done.bytes_read,
            done.records_read,
            done.fragments_written,
            done.bytes_written,
            done.records_written,
            done.seconds,
        )

    def told(self) -> list[dict[str, object]]:
        """Return the latest compactions, with their reasons."""
        with self._lock:
            recent = list(self.recent)
        return [asdict(one) for one in recent]
