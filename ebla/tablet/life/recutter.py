"""Cutting tables anew: splits and joins of tablets, while reads and writes go on.

    choose     the row or the neighbours, before anything is closed                       split_row.py, pure
    begin      METADATA gets the plan: row, ids of the tablets to come                    metadata recutting.py, pure
    flush      what the tablets have in memory, while writes go on
    pause      writers of the table wait; what they wrote meanwhile reaches the log, and fragments
    finish     METADATA gets the new tablets, which refer to the fragments of the old
    go on      writers are told nothing: what they write now is staged for the new tablets

No data is copied, so the time it takes does not grow with the tablet. A crash at any step leaves the tablets as they
were or the new ones, and perhaps a plan, which is taken up again: by the background worker, by the next call, or after
the store is opened again; with the row that was chosen. A step that fails undoes the plan. If it cannot be told whether
METADATA has the new tablets, the table takes no writes until it can: the log must not name tablets that are gone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from ebla.clock import Clock
from ebla.errors import CannotJoin, CannotSplit, EblaError, OutcomeUnknown, StoreError, UnknownTable, shown
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import Change, RequirementFailed, TabletAt
from ebla.metadata.values.recutting import (
    BeginJoin,
    BeginSplit,
    CancelJoin,
    CancelSplit,
    FinishJoin,
    FinishSplit,
)
from ebla.metadata.values.table_metadata import JoinPlan, TableMetadata, TabletMetadata
from ebla.model.ranges import KeyRange
from ebla.retry import SAVES
from ebla.storage.record.records import ROW
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.life.loader import Loader
from ebla.tablet.life.split_row import BlockIndex, choose_row, marks_of, payload
from ebla.tablet.tables.kept_replies import KeptReplies
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.pauses import Pauses
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.sequencer import Sequencer
from ebla.timing import now_seconds

# In a tablet of fewer blocks than this, single rows are looked at, so that a small one is divided evenly too.
FINE_BLOCKS_MAX = 32
FINE_MARKS = 64

_log = logging.getLogger(__name__)


class Recutter:
    """Splits and joins tablets, one at a time. Lock order: its own lock, the flush lock, then the commit lock."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataAccess,
        flusher: Flusher,
        sequencer: Sequencer,
        pauses: Pauses,
        replies: KeptReplies,
        clock: Clock,
        server: str,
        state: OpenState,
        loader: Loader,
        new_id: Callable[[], str],
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._flusher = flusher
        self._sequencer = sequencer
        self._pauses = pauses
        self._replies = replies
        self._clock = clock
        self._server = server
        self._state = state
        self._loader = loader
        self._new_id = new_id
        self._lock = threading.RLock()
        # Written by whoever holds _lock, read by others.
        self.splits = 0
        self.joins = 0

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Let no tablet be cut, and no table be held still by others, within a block."""
        with self._tables.events.held(), self._lock:
            yield

    # --- split ---

    def split(self, table: TableState, row: bytes | None, tablet_id: str | None = None) -> tuple[str, str]:
        """Split the tablet that has `row`, or the one named, at that row; return the ids of its two children.

        Without a row, one is chosen that divides the tablet evenly; without a tablet, the largest that can be divided.
        """
        with self._tables.events.held(), self._lock:
            log = self._prepare(table)
            metadata = table.view.metadata
            if metadata.is_fixed:
                raise CannotSplit(f"the table {table.name!r} is fixed: its tablets are never split")
            tablet, row = self._divide(table, row, tablet_id)
            self._loader.admit(table, tablet.range)
            children = (self._new_id(), self._new_id())
            self._save(table, BeginSplit(TabletAt(tablet.id, tablet.epoch), row, children), CannotSplit)
            self._finish_split(table, tablet, log)
            return children

    def _divide(self, table: TableState, row: bytes | None, tablet_id: str | None) -> tuple[TabletMetadata, bytes]:
        """Choose what was not given, and check what was."""
        metadata = table.view.metadata
        named = metadata.by_id(tablet_id) if isinstance(tablet_id, str) else None
        if tablet_id is not None and named is None:
            raise CannotSplit(f"the table {table.name!r} has no tablet {shown(tablet_id)}: see tablets()")
        if row is not None:
            tablet = named or metadata.tablet_for(row)
            if not tablet.range.contains(row):
                raise CannotSplit(
                    f"tablet {tablet.id} does not have {table.codec.shown_bound(row)!r}: it is outside of its range"
                )
            if tablet.first == row:
                raise CannotSplit(
                    f"a tablet of {table.name!r} begins at {table.codec.shown_bound(row)!r} already: there is nothing "
                    "to divide"
                )
            return tablet, row
        self._flusher.flush_table(table)  # so that there are fragments to choose from
        metadata = table.view.metadata
        named = None if tablet_id is None else metadata.by_id(tablet_id)
        for tablet in [named] if named is not None else self._largest_first(table):
            chosen = self.choose(table, tablet)
            if chosen is not None:
                return tablet, chosen
        raise CannotSplit(f"no row divides a tablet of {table.name!r}: it has fewer than two rows, or none in files")

    def _largest_first(self, table: TableState) -> list[TabletMetadata]:
        def size(tablet: TabletMetadata) -> int:
            return sum(weight for row, weight in self._marks(table, tablet) if tablet.range.contains(row))

        return sorted(table.own_tablets(table.view.metadata), key=size, reverse=True)

    def choose(self, table: TableState, tablet: TabletMetadata) -> bytes | None:
        """Return the row that divides a tablet most evenly, None if there is none."""
        return choose_row(self._marks(table, tablet), tablet.range)

    def _marks(self, table: TableState, tablet: TabletMetadata) -> list[tuple[bytes, int]]:
        marks: list[tuple[bytes, int]] = []
        for state in tablet.groups:
            for ref in state.current:
                fragment = table.reader.fragment(ref)
                marks += marks_of(BlockIndex(ref, fragment.first_rows, fragment.block_rows), tablet.range)
        return marks if len(marks) > FINE_BLOCKS_MAX else self._fine_marks(table, tablet)

    def _fine_marks(self, table: TableState, tablet: TabletMetadata) -> list[tuple[bytes, int]]:
        marks: list[tuple[bytes, int]] = []
        for state in tablet.groups:
            for ref in state.current:
                counted = ref.within(tablet.range)
                run = counted and table.reader.fragment(ref).read_range(counted.first, counted.last, [ROW])
                rows = run.column(ROW) if run else None
                if rows is None or not len(rows):
                    continue
                stride = -(-len(rows) // FINE_MARKS)
                record_bytes = max(1, ref.bytes // max(1, ref.rows))
                places = range(0, len(rows), stride)
                marks += [(rows[at].as_py(), min(stride, len(rows) - at) * record_bytes) for at in places]
                marks.append((rows[-1].as_py(), 0))
        return marks

    def payload(self, table: TableState, tablet: TabletMetadata) -> int:
        """Return about how many bytes a tablet would have if it were compacted."""
        indexes = {}
        for state in tablet.groups:
            for ref in state.current:
                fragment = table.reader.fragment(ref)
                indexes[ref] = BlockIndex(ref, fragment.first_rows, fragment.block_rows)
        return payload(tablet, indexes)

    def _finish_split(self, table: TableState, tablet: TabletMetadata, log: CommitLog) -> None:
        at = TabletAt(tablet.id, tablet.epoch)
        began = now_seconds()
        planned = table.view.metadata.by_id(tablet.id)
        children = () if planned is None or planned.split is None else planned.split.children
        heirs = {child: [tablet.id] for child in children}
        self._finish(table, log, [at], heirs, lambda txn, log_from: FinishSplit(at, txn, log_from), CancelSplit(at))
        self.splits += 1
        _log.info("split tablet %s of %s in %.3f s", tablet.id, table.name, now_seconds() - began)

    # --- join ---

    def join(self, table: TableState, left: TabletMetadata, right: TabletMetadata) -> str:
        """Make one tablet of two neighbours; return its id."""
        with self._tables.events.held(), self._lock:
            log = self._prepare(table)
            if table.view.metadata.is_fixed:
                raise CannotJoin(f"the table {table.name!r} is fixed: its tablets are never joined")
            self._loader.admit(table, KeyRange(left.first, right.last))
            plan = JoinPlan(left.id, right.id, self._new_id())
            begin = BeginJoin(TabletAt(left.id, left.epoch), TabletAt(right.id, right.epoch), plan.child)
            self._save(table, begin, CannotJoin)
            self._finish_join(table, plan, log)
            return plan.child

    def _finish_join(self, table: TableState, plan: JoinPlan, log: CommitLog) -> None:
        both = [table.view.metadata.by_id(tablet_id) for tablet_id in (plan.left, plan.right)]
        left, right = (TabletAt(tablet.id, tablet.epoch) for tablet in both if tablet is not None)
        began = now_seconds()
        self._finish(
            table,
            log,
            [left, right],
            {plan.child: [plan.left, plan.right]},
            lambda txn, log_from: FinishJoin(left, right, txn, log_from),
            CancelJoin(left, right),
        )
        self.joins += 1
        _log.info("joined tablets %s and %s of %s in %.3f s", plan.left, plan.right, table.name, now_seconds() - began)

    @contextlib.contextmanager
    def held_still(self, table: TableState) -> Iterator[None]:
        """Keep a table as it is for a moment: all of it in fragments, no tablet being cut, and its writers waiting."""
        with self._tables.events.held(), self._lock:
            log = self._prepare(table)
            with self._paused(table, [tablet.id for tablet in table.view.metadata.tablets], log):
                yield

    @contextlib.contextmanager
    def _paused(self, table: TableState, tablets: Sequence[str], log: CommitLog) -> Iterator[int]:
        """Have all of some tablets in fragments, and their writers wait; lend the txn above which they have nothing."""
        self._flusher.flush_table(table, tablets)  # most of it, before others have to wait for us
        try:
            with self._tables.lock:
                self._pauses.begin(table, tablets)
                before = self._sequencer.allocated
            log.wait(before)
            self._sequencer.wait_stable(before)  # so that no change is on its way that names the tablets
            self._flusher.flush_table(table, tablets)
            if table.is_dropped or table.holds_unflushed(tablets):
                raise self._not_flushed(table)
            yield before
        finally:
            table.paused = frozenset()  # first: an interrupt must not leave the writers waiting
            with self._tables.lock:
                self._pauses.end(table)
            self._pauses.count()

    @contextlib.contextmanager
    def paused_as_is(self, table: TableState) -> Iterator[None]:
        """Have the writers of a table wait, and all that they have committed in the log; its memory stays as it is."""
        log = self._state.writable_log()
        try:
            with self._tables.lock:
                self._pauses.begin(table, [tablet.id for tablet in table.view.metadata.tablets])
                before = self._sequencer.allocated
            log.wait(before)
            self._sequencer.wait_stable(before)
            yield
        finally:
            table.paused = frozenset()  # first: an interrupt must not leave the writers waiting
            with self._tables.lock:
                self._pauses.end(table)
            self._pauses.count()

    def _not_flushed(self, table: TableState) -> EblaError:
        """Return the error for a table of which something stays in memory; perhaps it is about to be dropped."""
        with contextlib.suppress(UnknownTable):
            self._metadata.refresh(table.id)
            return StoreError(f"{table.name!r} could not be flushed: nothing was changed, retry")
        return UnknownTable(f"the table {table.name!r} was dropped")

    # --- what was begun ---

    def _prepare(self, table: TableState) -> CommitLog:
        """Settle and finish what an earlier attempt has left, so that there is no plan but the one to come."""
        log = self._state.writable_log()
        self.settle(table)
        self.finish_begun(table)
        return log

    def finish_begun(self, table: TableState) -> bool:
        """Finish the splits and joins that were begun in a table; False if there are none."""
        found = False
        with self._tables.events.held(), self._lock:
            for tablet in table.own_tablets(table.view.metadata):
                if tablet.split is not None:
                    self._finish_split(table, tablet, self._state.writable_log())
                    found = True
                elif tablet.join is not None and tablet.join.left == tablet.id:
                    self._finish_join(table, tablet.join, self._state.writable_log())
                    found = True
        return found

    def _finish(
        self,
        table: TableState,
        log: CommitLog,
        gone: Sequence[TabletAt],
        heirs: Mapping[str, Sequence[str]],
        change: Callable[[int, int], Change],
        cancel: Change,
    ) -> None:
        """Flush, pause, and save the last change; if that fails, undo the plan. `heirs`: who gets whose rows."""
        try:
            with self._paused(table, [at.tablet for at in gone], log) as before:
                self._replies.bequeath(table, heirs)
                self._save_last(table, change(before, self._flusher.log_from(before + 1)), gone)
        except OutcomeUnknown:
            raise
        except BaseException:
            if not table.is_unsettled:
                with contextlib.suppress(EblaError):  # then the plan stays, and is taken up again
                    self._use(table, self._metadata.commit(table.id, [cancel]))
            raise

    def _save(self, table: TableState, change: Change, error: type[EblaError]) -> None:
        """Save the plan."""
        try:
            self._use(table, self._metadata.commit(table.id, [change]))
        except RequirementFailed as refused:
            raise error(f"{table.name!r}: {refused}") from refused

    def _save_last(self, table: TableState, change: Change, gone: Sequence[TabletAt]) -> None:
        """Save the change that replaces tablets. If it cannot be told whether it is there, the table is unsettled."""
        table.is_unsettled = True
        unknown: OutcomeUnknown | None = None
        for attempt in SAVES.attempts(self._clock):
            try:
                saved = self._metadata.refresh(table.id) if attempt else None
                if saved is None or saved.by_id(gone[0].tablet) is not None:
                    saved = self._metadata.commit(table.id, [change])
            except OutcomeUnknown as error:
                unknown = error
            except EblaError:
                if unknown is None:
                    table.is_unsettled = False  # it was refused, and never will be there
                    raise
            else:
                self._use(table, saved)
                table.is_unsettled = False
                return
        raise OutcomeUnknown(
            f"it is not known whether tablets of {table.name!r} were split or joined ({unknown}): the table takes no "
            "writes until that is known; nothing is lost, retry"
        ) from unknown

    def settle(self, table: TableState) -> None:
        """Find out what became of a split or join of unknown outcome; raises as METADATA does if that fails."""
        with self._tables.events.held(), self._lock:
            if not table.is_unsettled:
                return
            known = {tablet.id: tablet for tablet in table.view.metadata.tablets}
            current = self._metadata.refresh(table.id)
            waiting = [tablet for tablet in known.values() if current.by_id(tablet.id) is not None]
            cancel = [change for tablet in waiting if (change := _cancel(tablet, known)) is not None]
            if cancel:
                # Not there, and it must not come late: a later transaction sees to that.
                with contextlib.suppress(RequirementFailed):
                    current = self._metadata.commit(table.id, cancel)
                current = self._metadata.refresh(table.id)
            self._use(table, current)
            table.is_unsettled = False

    def _use(self, table: TableState, metadata: TableMetadata) -> None:
        self._tables.use_metadata(table, metadata, self._server)


def _cancel(tablet: TabletMetadata, known: dict[str, TabletMetadata]) -> Change | None:
    if tablet.split is not None:
        return CancelSplit(TabletAt(tablet.id, tablet.epoch))
    if tablet.join is not None and tablet.join.left == tablet.id:
        right = known[tablet.join.right]
        return CancelJoin(TabletAt(tablet.id, tablet.epoch), TabletAt(right.id, right.epoch))
    return None
