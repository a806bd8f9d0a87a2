"""What the process that has a store open tells others of itself: a small file, rewritten now and then.

    STATUS    who: process, host, since when, which version     how: the counters of the store, what is wrong with it

It is written when the store is opened, every few seconds while it is open, and once more when it is closed, which is
how others tell a store that was closed from one whose process died. Nothing relies on it: it is replaced in one step,
never synced, and a store without it is as good. Who holds the store is decided by the lock, and by nothing in here:
the kernel, which lists all locks, is asked who; where it does not, the process that told last is looked for.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import msgspec

from ebla.client.embedded.owning import LOCK_FILE
from ebla.clock import Clock
from ebla.service.counters import Counters
from ebla.tablet.engine import TabletStore

__all__ = ["STATUS_FILE", "Publisher", "Status", "counters_of_owner", "is_locked", "read_status"]

STATUS_FILE = "STATUS"
PUBLISH_SECONDS = 5.0
# The kernel's list of locks, on Linux.
LOCKS = Path("/proc/locks")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What was told last by the process that has the store open, or had it."""

    pid: int
    host: str
    version: str
    opened_microseconds: int
    told_microseconds: int
    is_closed: bool
    failures: tuple[str, ...]
    counters: Counters


class Publisher:
    """Writes the status of a store that this process has open for writing. Used by one thread at a time."""

    def __init__(self, root: Path, store: TabletStore, clock: Clock, version: str) -> None:
        self._root = root
        self._store = store
        self._clock = clock
        self._version = version
        self._opened_microseconds = clock.microseconds()
        self._written_seconds = float("-inf")
        self._publish(is_closed=False)
        store.rounds.add(self.publish)

    def publish(self) -> None:
        """Tell how the store is, unless that was done a moment ago."""
        if self._clock.monotonic_seconds() - self._written_seconds >= PUBLISH_SECONDS:
            self._publish(is_closed=False)

    def closed(self) -> None:
        """Tell that the store was closed; nothing of it runs any more, and the lock is still held."""
        self._publish(is_closed=True)

    def _publish(self, *, is_closed: bool) -> None:
        self._written_seconds = self._clock.monotonic_seconds()
        told = Status(
            pid=os.getpid(),
            host=socket.gethostname(),
            version=self._version,
            opened_microseconds=self._opened_microseconds,
            told_microseconds=self._clock.microseconds(),
            is_closed=is_closed,
            failures=tuple(self._store.report.failures()),
            counters=self._store.report.counters(),
        )
        fresh = self._root / f"{STATUS_FILE}.new"
        with contextlib.suppress(OSError):  # a full disk: the next one may have more luck
            fresh.write_bytes(msgspec.json.encode(told))
            os.replace(fresh, self._root / STATUS_FILE)


def read_status(root: Path) -> Status | None:
    """Return what was told last; None if nothing was, or nothing that this version can read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((root / STATUS_FILE).read_bytes(), type=Status)
    return None


def counters_of_owner(root: Path) -> Counters | None:
    """Return what the process told last that has the store open now; None if none has."""
    told = read_status(root)
    return told.counters if told is not None and not told.is_closed and is_locked(root, told) else None


def is_locked(root: Path, told: Status | None) -> bool:
    """Tell whether a process of this host holds the lock, without touching it: who tried it would be in the way."""
    with contextlib.suppress(OSError, ValueError):
        found = (root / LOCK_FILE).stat()
        wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        return any("FLOCK" in line and wanted in line.split() for line in LOCKS.read_text().splitlines())
    return told is not None and not told.is_closed and told.host == socket.gethostname() and _runs(told.pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and there
    return True
