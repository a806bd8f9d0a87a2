"""What a flush has to do where other servers keep the log, too: they let go of what METADATA says is in files.

before    the replies that clients were told go once more into the log, behind all that is flushed
point     the last entry that is older than all that stays in memory, and than those replies: saved with the flush
release   segments stay while a replica here, led or followed, needs them; the epochs that were seen go on
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from ebla.tablet.flush.serialize import FlushWork
from ebla.tablet.tables.kept_replies import KeptReplies
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState

__all__ = ["LoggedReplicas", "ReplicaFlush"]


class LoggedReplicas(Protocol):
    """The replicas of a server, as far as their log goes."""

    def flushed_point(self, table: str, tablet: str, below_txn: int | None) -> tuple[int, int] | None:
        """Return epoch and index of the last committed entry that is older than a txn; None if there is none."""

    def oldest_txn(self) -> int | None:
        """Return the oldest txn that the log has to keep for a replica; None if there is none."""

    @property
    def has_any(self) -> bool:
        """Whether there is a replica here, led or followed."""

    def stand_again(self) -> None:
        """Have the epochs of all replicas logged again, and synced."""


class ReplicaFlush:
    """What the flusher asks where tablets have replicas. Safe to use from several threads."""

    def __init__(self, tables: OpenTables, kept: KeptReplies, replicas: LoggedReplicas) -> None:
        # Set once.
        self._tables = tables
        self._kept = kept
        self._replicas = replicas
        self.before_release: Callable[[], None] = replicas.stand_again

    def keep_replies(self, table: TableState, tablets: Collection[str] | None) -> None:
        """Log the replies of tablets with replicas again, so that they stand behind all that is flushed."""
        held = [one for one in table.view.memory if tablets is None or one in tablets]
        self._kept.keep_of(table, held)

    def points(self, work: FlushWork, done: Collection[int] = ()) -> dict[str, tuple[int, int]]:
        """Return up to which entry all of a tablet is in files, once a flush is saved; groups that are done are."""
        table, found = work.table, {}
        for tablet, held in work.held.items():
            with self._tables.lock:
                state = table.tablet(tablet)
                if not state.is_replicated:
                    continue
                gone = {id(one) for one in (*held.blocks, *held.erasures)}
                txns = [] if state.replies is None else state.replies.logged_txns()
                for group, memory in table.view.memory.get(tablet, {}).items():
                    if group in done:
                        continue
                    is_own = group == work.group
                    txns += [one.txn_min for one in memory.blocks if not (is_own and id(one) in gone)]
                    txns += [one.txn for one in memory.erasures if not (is_own and id(one) in gone)]
            point = self._replicas.flushed_point(table.id, tablet, min(txns, default=None))
            if point is not None:
                found[tablet] = point
        return found

    @property
    def is_log_needed(self) -> bool:
        """Whether the log has to be there when the server starts again: replicas are nowhere else."""
        return self._replicas.has_any

    def needed_txn(self, otherwise: int) -> int:
        """Return from which txn on the log is needed."""
        oldest = self._replicas.oldest_txn()
        return otherwise if oldest is None else oldest
