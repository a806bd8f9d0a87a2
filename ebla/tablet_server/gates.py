"""The part of a server in a bulk commit over several servers: a gate closed, txns reserved, and opened by the outcome.

    close      [commit lock] txn t.., gate closed; drained; what is led is led still       --> t, to who commits
    decided    METADATA has the attempt: at a txn T, or as aborted (txn 0)
    open       T: the clock passes it, the new view is shown, committed = T                aborted: as if nothing was

Between the two, reads without a txn are before t, reads at t or later wait, and nobody gets a txn. *A gate never opens
by time alone*: who has waited long enough puts the attempt on record as aborted, in METADATA, by a change that is
refused if the attempt was committed; and the commit names the attempt, so that it is refused if that was aborted.

One thread for each attempt holds the lock of bulk commits from the first step to the last.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from ebla.clock import Clock
from ebla.errors import Closed, EblaError, StaleRoute, TimedOut, UnknownTable
from ebla.master.calls import CloseGate
from ebla.metadata.values.changes import RecordJob
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.tablet.engine import TabletStore
from ebla.tablet.jobs.unchanged import check_rows_unchanged
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit_log import CommitLog

__all__ = ["BulkGates"]

# METADATA is looked at this often, if nobody tells that there is an outcome.
LOOK_SECONDS = 0.25
# After so long without an outcome the attempt is put on record as aborted.
ABANDON_SECONDS = 10.0
# So many attempts are remembered, for requests that are repeated.
REMEMBERED_MAX = 64

_log = logging.getLogger(__name__)


class _Attempt:
    """One bulk commit under way."""

    def __init__(self, asked: CloseGate) -> None:
        self.asked = asked
        self.reserved: Future[int] = Future()
        self.news = threading.Event()
        self.over = threading.Event()  # the outcome is shown here, or never will be


class BulkGates:
    """Closes and opens the gate of a server for bulk commits. Safe to use from several threads."""

    def __init__(self, store: TabletStore, clock: Clock) -> None:
        # Set once.
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._attempts: dict[str, _Attempt] = {}  # guarded by _lock

    def close(self, asked: CloseGate, timeout_seconds: float) -> int:
        """Close the gate for an attempt, and return the first of the txns that are reserved for it."""
        with self._lock:
            one = self._attempts.get(asked.attempt)
            if one is None:
                one = self._attempts[asked.attempt] = _Attempt(asked)
                while len(self._attempts) > REMEMBERED_MAX:
                    del self._attempts[next(iter(self._attempts))]
                threading.Thread(target=self._run, args=(one,), name="ebla-bulk-gate", daemon=True).start()
        try:
            return one.reserved.result(timeout_seconds)
        except FutureTimeoutError:
            raise TimedOut("another bulk commit is under way here: retry") from None

    def tell(self, attempt: str, timeout_seconds: float) -> None:
        """Have METADATA looked at now, for there is an outcome; return when reads see it here."""
        with self._lock:
            one = self._attempts.get(attempt)
        if one is not None:
            one.news.set()
            if not one.over.wait(timeout_seconds):
                raise TimedOut(f"the outcome of bulk commit {attempt} is not shown here yet: ask again")

    # --- an attempt ---

    def _run(self, one: _Attempt) -> None:
        store = self._store
        try:
            with store.events.held(), store.passing.lock:
                table = self._table(one)
                first, log = self._reserve(one, table)
                outcome = self._outcome(one, log)
                if outcome is None:
                    with store.open_tables.lock:
                        store.gate.stay_closed()
                elif outcome[1] is None:
                    store.passing.open_again(first)
                else:
                    self._show(table, one.asked.attempt, *outcome)
            store.events.deliver()
        except EblaError as error:
            if not one.reserved.done():
                one.reserved.set_exception(error)
            else:
                _log.exception("a bulk commit has an outcome that cannot be shown: nothing more is written here")
                store.stop_writing(error)
        except BaseException as error:
            if not one.reserved.done():
                one.reserved.set_exception(error)
            store.stop_writing(Closed(f"a bulk commit ended in the middle: {error}"))
            raise
        finally:
            one.over.set()

    def _table(self, one: _Attempt) -> TableState:
        table = self._store.open_tables.find(one.asked.table)
        if table is None:
            raise StaleRoute("nothing of the table is led here: look its tablets up again")
        # It may have waited for another one, and been given up since.
        if self._store.metadata.refresh(table.id).job_txn(one.asked.attempt) is not None:
            raise TimedOut("this attempt of a bulk commit is over: begin another")
        return table

    def _reserve(self, one: _Attempt, table: TableState) -> tuple[int, CommitLog]:
        """Close the gate; return the first txn that is reserved. If this raises, it is open again."""
        store, asked = self._store, one.asked
        first = 0
        try:
            self._check_led(asked, table)
            if asked.is_flushed:
                store.late_schemas.switch(table)
                self._flush(asked, table)  # so that little is left to flush while writers wait
            log = store.state.writable_log()
            store.passing.wait_stable(log, store.sequencer.allocated)
            with store.open_tables.lock:
                log = store.state.writable_log()
                before = store.sequencer.allocated
                first = store.txn_clock.next_block(asked.layers)
                store.gate.close(first)
            store.passing.wait_stable(log, before)
            self._check_led(asked, table)
            if asked.is_flushed:
                self._flush(asked, table)
                if table.holds_unflushed({at.tablet for at in asked.tablets}):
                    raise TimedOut(f"tablets of {table.name!r} could not be flushed: nothing was done, retry")
            if asked.unchanged_since is not None:
                check_rows_unchanged(table, asked.fragments, asked.unchanged_since)
        except BaseException:
            store.passing.open_again(first)
            raise
        one.reserved.set_result(first)
        return first, log

    def _flush(self, asked: CloseGate, table: TableState) -> None:
        self._store.flusher.flush_table(table, {at.tablet for at in asked.tablets}, keeps_log=True)

    def _check_led(self, asked: CloseGate, table: TableState) -> None:
        """Raise `StaleRoute` unless the tablets are led here, in the epochs that the commit will name."""
        with self._store.open_tables.lock:
            metadata, led = table.view.metadata, table.led
            ids = None if led is None else led.ids
        for at in asked.tablets:
            tablet = metadata.by_id(at.tablet)
            if tablet is None or tablet.epoch != at.epoch or (ids is not None and at.tablet not in ids):
                raise StaleRoute(f"tablet {at.tablet} is changing hands: nothing was done, look it up again")

    def _outcome(self, one: _Attempt, log: CommitLog) -> tuple[TableMetadata | None, int | None] | None:
        """Return METADATA and the txn of a commit, None for the txn if it was aborted; None if this server stops."""
        asked = one.asked
        ends_at = self._clock.monotonic_seconds() + ABANDON_SECONDS
        while True:
            one.news.wait(LOOK_SECONDS)
            one.news.clear()
            if log.failure is not None:
                return None
            try:
                metadata = self._store.metadata.refresh(asked.table)
                txn = metadata.job_txn(asked.attempt)
                if txn is not None:
                    return metadata, txn or None
                if self._clock.monotonic_seconds() >= ends_at:
                    _log.warning("bulk commit %s has no outcome: it is aborted", asked.attempt)
                    self._store.metadata.commit(asked.table, [RecordJob(asked.attempt, 0)])
            except UnknownTable:
                return None, None  # dropped: nothing of it is ever seen
            except EblaError as error:
                _log.warning("the outcome of bulk commit %s is not known yet: %s", asked.attempt, error)

    def _show(self, table: TableState, attempt: str, metadata: TableMetadata | None, txn: int | None) -> None:
        assert metadata is not None and txn is not None
        store = self._store
        store.txn_clock.pass_by(txn)
        with store.open_tables.lock:
            table.use_metadata(metadata, store.server)
        while table.view.metadata.job_txn(attempt) is None:
            store.late_schemas.switch(table)  # the schema was changed since: the rows are seen under the new one
        with store.open_tables.lock:
            table.raise_floor(txn)
            table.row_cache.clear(txn)
            store.sequencer.allocate(txn)
            store.sequencer.commit(txn)
            store.gate.open()
