"""The audit log of a process: a line of JSON for every admin request and every denial.

    {"at": "2026-01-31T12:00:00.123Z", "who": "user ada", "what": "DropTable", "table": "words", "outcome": "done",
     "peer": "ipv4:127.0.0.1:51234", "why": ""}

`outcome` is done, failed (its code), or denied. The file is begun anew at a size; the one before is kept as ``.1``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ebla.settings import MIB

__all__ = ["AUDIT_FILE", "Audit"]

AUDIT_FILE = "audit.jsonl"
BYTES_MAX = 64 * MIB

_log = logging.getLogger(__name__)


class Audit:
    """Appends lines to a file. Safe to use from several threads. What cannot be written goes to the process's log."""

    def __init__(self, file: Path, now: Callable[[], float], bytes_max: int = BYTES_MAX) -> None:
        # Set once.
        self._file = file
        self._now = now
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def note(self, *, who: str, what: str, table: str, outcome: str, peer: str, why: str = "") -> None:
        """Write who asked for what, and what came of it."""
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = msgspec.json.encode(
            {"at": at, "who": who, "what": what, "table": table, "outcome": outcome, "peer": peer, "why": why}
        )
        with self._lock:
            try:
                if self._file.exists() and self._file.stat().st_size > self._bytes_max:
                    self._file.replace(self._file.with_name(f"{self._file.name}.1"))
                with self._file.open("ab") as file:
                    file.write(line + b"\n")
            except OSError as error:
                _log.error("%s cannot be written (%s): %s", self._file, error, line.decode())
