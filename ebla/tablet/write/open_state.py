"""How a store is open in this process: for writing, with a log; for reading; or not any more.

Whoever writes, reads or scans looks here whether he still may. The engine alone changes it: the log comes when the
store begins to take writes, and nothing opens again what is closing.
"""

from __future__ import annotations

from ebla.errors import Closed, ReadOnly
from ebla.tablet.write.commit_log import CommitLog

__all__ = ["OpenState"]


class OpenState:
    """Whether the store takes writes, and whether it is open at all. Written under the commit lock, read without it."""

    def __init__(self) -> None:
        self.log: CommitLog | None = None  # None where nothing is written
        self.is_closing = False
        self.is_inherited = False  # this process was forked from the one that opened the store

    def check_open(self) -> None:
        """Raise `Closed` if the store was closed, or is about to be."""
        if self.is_closing:
            raise self.closed()

    def closed(self) -> Closed:
        """Return the error for whoever comes when the store is closed here."""
        if self.is_inherited:
            return Closed(
                "a store belongs to the process that opened it, and this one was forked from it: open the store here "
                "with read_only=True, or let the other process write"
            )
        return Closed("the database was closed: open it again")

    def writable_log(self) -> CommitLog:
        """Return the log if it takes commits; else raise what keeps it from that."""
        if self.is_closing:
            raise self.closed()
        if self.log is None:
            raise ReadOnly("the store was opened read-only: open it without read_only to write")
        if self.log.failure is not None:
            raise self.log.failure
        return self.log
