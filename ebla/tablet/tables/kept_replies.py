"""Replies that outlive what they stand in: the log is about to go, or the tablet that remembers them is.

    flush        below n the log goes          replies that stand only there are logged again
    split, join  tablets become others         what they were told to have done, the others are
    take-over    a tablet comes from a server  what that one told its clients is logged here

They are logged before the log goes, and before METADATA has the other tablets: a replay finds them, whenever a crash
comes. Where it finds them for a tablet that METADATA does not know, the split or join never was, and they count for
nothing.

*Former* replies are of no tablet: a version before this one gave them. They answer for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from ebla.clock import TxnClock
from ebla.storage.log.log_entry import LogEntry, LogPart, Reply
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit import Commit, StagedPart
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.replies import REPLY_BYTES, Replies
from ebla.tablet.write.sequencer import Sequencer
from ebla.tablet.write.tablet_state import TabletState

__all__ = ["KeptReplies"]


class KeptReplies:
    """Logs replies again. Safe to use from several threads; takes the commit lock."""

    def __init__(
        self, tables: OpenTables, gate: Gate, sequencer: Sequencer, txn_clock: TxnClock, state: OpenState
    ) -> None:
        # Set once.
        self._tables = tables
        self._gate = gate
        self._sequencer = sequencer
        self._txn_clock = txn_clock
        self._state = state
        # Guarded by the commit lock.
        self.former = Replies()

    def keep(self, needed: int) -> None:
        """Log the replies again that stand only below `needed`, where the log is about to go."""
        with self._tables.lock:
            if not self._only_below(needed) and not self.former.only_below(needed):
                return
            log = self._writable_log()
            parts, former = self._only_below(needed), self.former.only_below(needed)  # the lock was given up in between
            txn = self._push(log, parts, former)
        log.wait(txn)

    def keep_of(self, table: TableState, tablets: Collection[str]) -> None:
        """Log the replies again of those of some tablets that other servers keep, too."""
        with self._tables.lock:
            if not any(table.tablet(one).is_replicated for one in tablets):
                return
            log = self._writable_log()
            newest = self._sequencer.allocated
            parts = []
            for tablet in tablets:
                state = table.tablet(tablet)
                old = state.replies.only_below(newest) if state.is_replicated and state.replies is not None else []
                if old:
                    parts.append(_part_of(table, tablet, state, old))
            txn = self._push(log, parts) if parts else 0
        log.wait(txn)

    def bequeath(self, table: TableState, heirs: Mapping[str, Sequence[str]]) -> None:
        """Log for tablets that are about to come what those told their clients whose rows they get."""
        with self._tables.lock:
            log = self._writable_log()
            states = {}
            parts = []
            for heir, tablets in heirs.items():
                before = [table.tablet(tablet) for tablet in tablets]
                states[heir] = state = TabletState(max(one.floor_txn for one in before))
                for one in before:
                    if one.replies is not None:
                        state.remember(one.replies.all())
                if state.replies is not None:
                    parts.append(_part_of(table, heir, state, state.replies.all()))
            table.expect(states)
            txn = self._push(log, parts) if parts else 0
        log.wait(txn)

    def adopt(self, table: TableState, replies: Mapping[str, Sequence[Reply]], epochs: Mapping[str, int]) -> None:
        """Remember, and log here, what another server has told of tablets that are about to come from it.

        `epochs` are those that they are going to be led at: a later replay counts nothing of lower ones.
        """
        with self._tables.lock:
            log = self._writable_log()
            parts = [
                _part_of(table, tablet, table.tablet(tablet), told, epochs[tablet])
                for tablet, told in replies.items()
                if told
            ]
            for part in parts:
                part.state.remember(part.replies)
            txn = self._push(log, parts) if parts else 0
        log.wait(txn)

    def entry(self, txn: int) -> LogEntry:
        """Return an entry that has all replies and nothing else."""
        with self._tables.lock:
            parts = [
                LogPart.of_replies(table.id, tablet.id, txn, state.replies.all())
                for table in self._tables.all_held()
                for tablet, state in table.states()
                if state.replies is not None
            ]
            return LogEntry(txn, tuple(parts), tuple(self.former.all()))

    def _only_below(self, needed: int) -> list[StagedPart]:
        return [
            _part_of(table, tablet.id, state, old)
            for table in self._tables.all_held()
            for tablet, state in table.states()
            if state.replies is not None and (old := state.replies.only_below(needed))
        ]

    def _writable_log(self) -> CommitLog:
        """Return the log once a txn can be had. The commit lock is held, and may be given up meanwhile."""
        log = self._state.writable_log()
        self._gate.wait(log)
        return log

    def _push(self, log: CommitLog, parts: Sequence[StagedPart], former: Sequence[Reply] = ()) -> int:
        """Queue replies for the log, note that it has them again, and return the txn of that. The lock is held."""
        txn = self._txn_clock.next()
        size = REPLY_BYTES * (len(former) + sum(len(part.replies) for part in parts))
        try:
            self._sequencer.allocate(txn)
            parts = [_with_index(part, txn) if part.state.is_replicated else part for part in parts]
            log.push(Commit(txn, size, tuple(parts), tuple(former)), attended=True)
        except BaseException as error:
            log.fail(error)  # nobody may wait for a txn that will never be in the log
            raise
        self.former.logged_again(former, txn)
        for part in parts:
            assert part.state.replies is not None, "whose replies they are, remembers them"
            part.state.replies.logged_again(part.replies, txn)
        return txn


def _with_index(part: StagedPart, txn: int) -> StagedPart:
    """Return a part that takes an index: what other servers keep is told apart by it."""
    return msgspec.structs.replace(part, index=part.state.allocate(txn), takes_index=True)


def _part_of(
    table: TableState, tablet: str, state: TabletState, replies: Sequence[Reply], epoch: int | None = None
) -> StagedPart:
    version = table.view.schema.version
    known = table.view.metadata.by_id(tablet)
    if epoch is None:
        epoch = 1 if known is None else known.epoch
    return StagedPart(table.id, tablet, state, epoch, version, state.index, replies=[*replies], takes_index=False)
