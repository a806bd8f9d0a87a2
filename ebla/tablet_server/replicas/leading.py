"""Leading tablets that others keep, too: an epoch begins with what the replica here has, and ends when it is given up.

    chosen    METADATA: led by this run, at epoch e
    1  txns above the floor of the tablet, and above all that the log has
    2  memory: all entries that are in no file; they were never shown here, and are committed with 3, or never
    3  an empty commit of epoch e, behind all of them; every in-sync replica has it: everything before it is committed;
       it is shown here, in its turn among the commits of all tablets: reads see everything before it
    4  what the log has under former schemas becomes fragments of these (former_parts.py)
    5  served

    given up  no write is taken --> all is committed --> no read is taken, memory is dropped --> masters are told
    over      METADATA has a later epoch: memory is dropped; what was not committed is lost to this server

What is given up is flushed by nobody: the log of every in-sync replica has it, also that of this server, which follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from ebla.errors import EblaError, StoreError
from ebla.metadata.values.changes import Change, Flush, FlushedTablet
from ebla.metadata.values.replicating import SetWanted, TabletNumber
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.storage.merge.memory import Memory
from ebla.tablet.engine import TabletStore
from ebla.tablet.lead.taking_over import newest_txn
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit import Commit, StagedPart
from ebla.tablet_server.replicas.filling import fill
from ebla.tablet_server.replicas.former_parts import flush_former
from ebla.tablet_server.replicas.here import ReplicasHere

__all__ = ["TabletLeader"]

_log = logging.getLogger(__name__)


class TabletLeader:
    """Begins and ends the leading of replicated tablets. One thread at a time."""

    def __init__(self, store: TabletStore, replicas: ReplicasHere, on_committed: Callable[[], None]) -> None:
        """`on_committed` is called, from any thread, when an epoch that was begun can be served."""
        # Set once.
        self._store = store
        self._replicas = replicas
        self._on_committed = on_committed
        # For the one thread. By table and tablet: the newest epoch that was begun, and the index of its first entry.
        self._firsts: dict[tuple[str, str], tuple[int, int]] = {}

    def begin(self, metadata: TableMetadata, tablets: Sequence[str]) -> None:
        """Begin the epochs of tablets that are to be led here."""
        table = self._open(metadata)
        self._store.open_tables.use_metadata(table, metadata, self._store.server)
        self._store.late_schemas.switch(table)
        for tablet_id in tablets:
            chosen, tablet = metadata.by_id(tablet_id), table.view.metadata.by_id(tablet_id)
            is_current = chosen is not None and tablet is not None and tablet.epoch == chosen.epoch
            if tablet is not None and is_current and not self._has_begun(table, tablet):
                self._begin(table, tablet)

    def _has_begun(self, table: TableState, tablet: TabletMetadata) -> bool:
        """Tell whether the first entry of a tablet's epoch was queued for the log, or is in it."""
        return self._firsts.get((table.id, tablet.id), (0, 0))[0] == tablet.epoch

    def _open(self, metadata: TableMetadata) -> TableState:
        table = self._store.open_tables.find(metadata.table_id)
        if table is None:
            table = self._store.add_table(self._store.metadata.name_of(metadata.table_id), metadata)
        return table

    def _begin(self, table: TableState, tablet: TabletMetadata) -> None:
        store = self._store
        parts = self._replicas.tail(table.id, tablet.id)
        inherited = [] if parts else self._replicas.inherited(table.id, tablet.id)
        txns = [part.txn for part in parts]
        made = table.view.metadata.created_txn
        store.txn_clock.pass_by(max([made, tablet.txn_floor, newest_txn(tablet), *txns]))
        log = store.state.writable_log()
        with store.open_tables.lock:
            with store.open_tables.counted(table):
                fill(table, tablet, parts)
            state = table.tablet(tablet.id)
            for part in inherited:
                state.remember(part.replies)
            state.begin_epoch(
                [(part.index, part.txn) for part in parts], self._replicas.last_index(table.id, tablet.id)
            )
            store.gate.wait(log)
            txn = store.txn_clock.next()
            try:
                store.sequencer.allocate(txn)
                version = table.view.schema.version
                index = state.allocate(txn)
                # Where nothing of it is in the log, as of a child of a split, what clients were told comes first.
                told = state.replies.all() if state.replies is not None and not parts else []
                if state.replies is not None and told:
                    state.replies.logged_again(told, txn)
                first = StagedPart(table.id, tablet.id, state, tablet.epoch, version, index, replies=told)
                log.push(Commit(txn, 0, (first,)), attended=False)
            except BaseException as error:
                log.fail(error)
                raise
        self._firsts[table.id, tablet.id] = tablet.epoch, index
        store.sequencer.add_commit_callback(txn, self._committed)
        _log.info("begins epoch %d of %s with %d entries of the log", tablet.epoch, tablet.id, len(parts))

    def _committed(self, error: EblaError | None) -> None:
        if error is None:
            self._on_committed()

    def serve(self, table: TableState) -> None:
        """Serve the tablets of a table whose epochs have begun."""
        led = table.led
        assert led is not None, "a server does not lead everything"
        metadata, run = table.view.metadata, self._store.server
        ready = [
            tablet
            for tablet in metadata.tablets
            if tablet.is_replicated
            and tablet.log == run
            and not led.has_begun(tablet)
            and self._replicas.is_serving(table.id, tablet.id, tablet.epoch)
            and self._is_shown(table, tablet)
        ]
        ready = [tablet for tablet in ready if self._is_of_today(table, tablet)]
        if not ready:
            return
        with self._store.open_tables.lock:
            led.begun(ready, table.view.metadata)
            table.gain([one.id for one in ready], self._store.sequencer.allocated)
        _log.info("leads %s of %s", ", ".join(one.id for one in ready), table.name)

    def _is_shown(self, table: TableState, tablet: TabletMetadata) -> bool:
        """Tell whether reads here see the first entry of an epoch, and so everything before it.

        Replicas may have it while commits of other tablets, which come first, are waited for.
        """
        epoch, first = self._firsts.get((table.id, tablet.id), (0, 0))
        with self._store.open_tables.lock:
            return epoch == tablet.epoch and table.tablet(tablet.id).committed_index >= first

    def _is_of_today(self, table: TableState, tablet: TabletMetadata) -> bool:
        """Save what a tablet has under former schemas, if METADATA keeps some; False if that is to be tried again."""
        store = self._store
        if not table.view.metadata.former:
            return True
        try:
            saved = flush_former(store, table, tablet, self._replicas.tail(table.id, tablet.id))
        except EblaError as error:
            _log.warning("tablet %s of %s is not served yet: rows of a former schema: %s", tablet.id, table.name, error)
            return False
        if saved is not None:
            store.open_tables.use_metadata(table, saved, store.server)
            _log.info("tablet %s of %s had rows of a former schema, which are in files now", tablet.id, table.name)
        return True

    def let_go(self, metadata: TableMetadata) -> None:
        """Let go of what is in memory of tablets whose epoch here is over: their logs have it, or never will."""
        table = self._store.open_tables.find(metadata.table_id)
        if table is None:
            return
        over = [
            tablet.id
            for tablet in metadata.tablets
            if tablet.is_replicated and self._firsts.get((table.id, tablet.id), (tablet.epoch, 0))[0] < tablet.epoch
        ]
        with self._store.open_tables.lock:
            for tablet_id in over:
                del self._firsts[table.id, tablet_id]
            if table.led is not None:
                table.led.resign(over)
            kept = [one for one in over if one in table.view.memory]
            with self._store.open_tables.counted(table):
                _empty(table, kept)
            table.lose(kept, self._store.sequencer.allocated)

    # --- from one replica to several -------------------------------------------------------------

    def replicate(self, table: TableState, tablet_id: str, wanted: int, server: str) -> TableMetadata | None:
        """Have a tablet that is led here alone want replicas; None if it is not led here.

        It is flushed first, and paused: what is only in its log is in no replica's.
        """
        led = table.led
        assert led is not None, "a store that leads everything has no replicas"
        store = self._store
        with store.recutter.exclusively():
            with store.open_tables.lock:
                if tablet_id not in led.ids:
                    return None
                led.freeze([tablet_id])
                before = store.sequencer.allocated
            try:
                store.state.writable_log().wait(before)
                store.sequencer.wait_stable(before)
                store.late_schemas.switch(table)
                store.flusher.flush_table(table, [tablet_id])
                if table.holds_unflushed([tablet_id]):
                    raise StoreError(f"tablet {tablet_id} could not be flushed, and gets no replicas now: retry")
                saved = store.metadata.commit(table.id, self._replicating(table, tablet_id, wanted, server))
            except BaseException:
                with store.open_tables.lock:
                    led.thaw([tablet_id])
                raise
            store.open_tables.use_metadata(table, saved, store.server)
        _log.info("tablet %s of %s is to have %d replicas", tablet_id, table.name, wanted)
        return saved

    def _replicating(self, table: TableState, tablet_id: str, wanted: int, server: str) -> list[Change]:
        """Return what says that all so far is in files, by an index above all that was given, and what is wanted."""
        metadata = table.view.metadata
        tablet = metadata.by_id(tablet_id)
        assert tablet is not None, "it is led here"
        index = table.tablet(tablet_id).index + 1
        flushed = FlushedTablet(tablet_id, tablet.epoch, index, flushed_epoch=tablet.epoch, flushed_index=index)
        return [
            Flush(metadata.schema.groups[0].id, (), (flushed,), metadata.schema.version),
            SetWanted((TabletNumber(tablet_id, tablet.number),), wanted, ((server, self._replicas.log_id),)),
        ]

    # --- giving up -------------------------------------------------------------------------------

    def give_up(self, table: TableState, tablets: Collection[str], successor: str | None = None) -> None:
        """Lead tablets no more, and have masters told so; those that are not led here are passed over."""
        led = table.led
        assert led is not None, "a store that leads everything gives nothing up"
        store = self._store
        with store.recutter.exclusively():
            with store.open_tables.lock:
                own = led.ids.intersection(tablets)
                led.freeze(own)
                before = store.sequencer.allocated
            if not own:
                return
            try:
                store.state.writable_log().wait(before)
                store.sequencer.wait_stable(before)
            except BaseException:
                with store.open_tables.lock:
                    led.thaw(own)
                raise
            with store.open_tables.lock:
                led.resign(own)
                with store.open_tables.counted(table):
                    _empty(table, own)
                table.lose(own, store.sequencer.allocated)
            for tablet in sorted(own):
                self._replicas.resign(table.id, tablet, store.txn_clock.last, successor)
        _log.info("gave up %s of %s", ", ".join(sorted(own)), table.name)


def _empty(table: TableState, tablets: Collection[str]) -> None:
    """Let go of what tablets have in memory: their logs have it. The commit lock is held."""
    for tablet in tablets:
        for group in [*table.view.memory.get(tablet, {})]:
            table.set_memory(tablet, group, Memory())
        table.tablet(tablet).follow()
