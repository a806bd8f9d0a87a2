"""Taking tables offline, and bringing them back.

unload    read-only, flushed, METADATA says that nobody has it, gone; requests are told to come back later
load      METADATA read and checked, nothing to replay, METADATA says that it is served, and so on as at an open
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ebla.clock import Clock
from ebla.errors import EblaError, OutcomeUnknown, ReadOnly, RequestError, Unavailable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import RequirementFailed, TabletAt
from ebla.metadata.values.serving import UNLOADED, LoadTablets, Serving, UnloadTablets
from ebla.retry import SAVES
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.tablet.life.loader import Loader, is_unloaded
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.tables.tablet_stages import LifeEvent, TabletStage
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.sequencer import Sequencer

__all__ = ["Unloader"]

_BEING_LOADED = (TabletStage.CONFIG_LOADING, TabletStage.LOG_REPLAYING, TabletStage.CONFIG_SAVING)

_log = logging.getLogger(__name__)


class Unloader:
    """Takes tables offline and brings them back. Lock order: that of the recutter."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataAccess,
        sequencer: Sequencer,
        loader: Loader,
        recutter: Recutter,
        state: OpenState,
        clock: Clock,
        server: str,
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._sequencer = sequencer
        self._loader = loader
        self._recutter = recutter
        self._state = state
        self._clock = clock
        self._server = server

    def unload(self, table: TableState) -> None:
        """Take a table offline: nothing of it is in memory or in the log any more, and requests are refused."""
        table.check_whole()
        with self._recutter.exclusively():
            if table.is_offline:
                if table.door.common is TabletStage.UNKNOWN and is_unloaded(self._metadata.refresh(table.id)):
                    return
                self.load(table)  # METADATA may or may not have it as unloaded, after an outcome that was not known
            try:
                with self._tables.lock:
                    table.is_offline = True
                table.door.move_all(LifeEvent.UNLOAD, "it is being unloaded: load it with load_table")
                with self._recutter.held_still(table):
                    table.door.move_all(LifeEvent.FLUSHED)
                    self._save(table, UnloadTablets, UNLOADED)
            except BaseException as error:
                is_certain = isinstance(error, EblaError) and not isinstance(error, OutcomeUnknown)
                if not is_certain and table.door.common is TabletStage.FINAL_SAVING:
                    raise  # METADATA may say so, told or interrupted: it stays as it is, until it is loaded or unloaded
                if table.door.common in (TabletStage.READ_ONLY, TabletStage.FINAL_SAVING):
                    table.door.move_all(LifeEvent.FAILED)
                    table.door.begin(tablet.id for tablet in table.view.metadata.tablets)
                with self._tables.lock:
                    table.is_offline = False
                raise
            table.door.move_all(LifeEvent.FINAL_SAVED, "load it with load_table")
            self._forget(table)
        _log.info("took table %s offline", table.name)
        self._tables.events.deliver()

    def _forget(self, table: TableState) -> None:
        with self._tables.lock:
            table.forget_logs()
            self._tables.events.note_unloaded(table.view.metadata)
        table.row_cache.clear(TXN_MAX)  # for good: a reader that is late must not put a row in that is then served
        self._loader.let_go(set(table.view.metadata.files()))

    def bring_back(self, table: TableState) -> None:
        """Bring a table back that was taken offline; load it wholly if it was not."""
        table.check_whole()
        if table.is_offline:
            if self._state.log is None:
                raise ReadOnly("the store was opened read-only: open it without read_only to load a table")
            self.load(table)
        elif self._state.log is not None:
            # What cannot be is told to the caller, and the last schema that could be stays in force.
            self._tables.use_metadata(table, self._metadata.refresh(table.id), self._server)
        self._loader.load_all(table)

    def load(self, table: TableState) -> None:
        """Bring a table back. What was deferred meanwhile goes on; if it fails, it stays offline."""
        table.check_whole()
        with self._recutter.exclusively():
            if not table.is_offline:
                return
            try:
                table.door.move_all(LifeEvent.LOAD)
                with self._tables.lock:
                    table.forget_logs()  # METADATA may have forgotten them, though nobody was told
                self._tables.use_metadata(table, self._metadata.refresh(table.id), self._server)
                for tablet in table.view.metadata.tablets:
                    self._loader.load(table, tablet)
                table.door.move_all(LifeEvent.CONFIG_LOADED)
                if table.memory_bytes:
                    raise Unavailable(f"{table.name!r} is not wholly unloaded: unload it again")
                table.door.move_all(LifeEvent.LOG_REPLAYED)  # there was nothing: it was flushed before it was unloaded
                self._save(table, LoadTablets, "running")
            except BaseException as error:
                if table.door.common in _BEING_LOADED:
                    told = f"loading failed ({error}): mend that, load it with load_table"
                    table.door.move_all(LifeEvent.FAILED, told)
                raise
            try:
                self._serve(table)
            except BaseException:
                self._serve(table)  # METADATA has it: an interrupt must not leave those waiting who were deferred
                raise
            _log.info("brought table %s back online", table.name)

    def _serve(self, table: TableState) -> None:
        """Let requests pass to a table that METADATA has as loaded; what was interrupted is taken up."""
        table.row_cache.reopen(self._sequencer.allocated)
        with self._tables.lock:
            table.is_offline = False
        if table.door.common is TabletStage.CONFIG_SAVING:
            table.door.move_all(LifeEvent.CONFIG_SAVED)
        if table.door.common is TabletStage.FRAGMENTS_LOADING:
            table.door.begin(tablet.id for tablet in table.view.metadata.tablets)

    def _save(self, table: TableState, change: Callable[[tuple[TabletAt, ...]], Serving], wanted: str) -> None:
        """Save the state of all tablets; it may be repeated as often as one likes."""
        unknown: EblaError | None = None
        for attempt in SAVES.attempts(self._clock):
            try:
                metadata = self._metadata.refresh(table.id) if attempt else table.view.metadata
                tablets = tuple(TabletAt(one.id, one.epoch) for one in metadata.tablets if one.state != wanted)
                saved = self._metadata.commit(table.id, [change(tablets)]) if tablets else metadata
            except OutcomeUnknown as error:
                unknown = error
            except RequirementFailed as error:
                raise RequestError(f"{table.name!r}: {error}") from error
            except EblaError:
                if unknown is None:
                    raise
            else:
                self._tables.use_metadata(table, saved, self._server)
                return
        raise OutcomeUnknown(
            f"it is not known whether METADATA of {table.name!r} was saved ({unknown}): nothing is lost; load or "
            "unload it again"
        ) from unknown
