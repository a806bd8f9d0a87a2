"""Changing the schema of a table while it is read and written.

    check      the new schema, before anything happens                                     model/schema_change.py, pure
    hold still what is in memory goes to fragments; then the table's writers wait a moment for the rest   recutter.py
    save       METADATA gets the schema, and references that count for its groups          metadata altering.py, pure
    go on      who waited is told that the schema changed, and admits his rows again

All that was written under the old schema is in fragments when the new one comes, and METADATA says that the log is not
needed for it: nothing in memory or in the log ever has to be understood under another schema. No data is copied, so the
time it takes does not grow with the table. A failure or a crash at any step leaves the old schema or the new one. If it
cannot be told which, the table takes no writes until it can.
"""

from __future__ import annotations

import logging
import threading

from ebla.clock import Clock
from ebla.errors import Conflict, EblaError, OutcomeUnknown, StoreError, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import AlterSchema, FlushedTablet, RequirementFailed, RequireSchema
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.schema import TableSchema
from ebla.model.schema_change import Alteration, altered
from ebla.retry import SAVES
from ebla.tablet.life.preloader import Preloader
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.sequencer import Sequencer

_log = logging.getLogger(__name__)


class Alterer:
    """Changes schemas, one at a time. Lock order: its own lock, then those of the recutter."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataAccess,
        recutter: Recutter,
        preloader: Preloader,
        sequencer: Sequencer,
        clock: Clock,
        server: str,
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._recutter = recutter
        self._preloader = preloader
        self._sequencer = sequencer
        self._clock = clock
        self._server = server
        self._lock = threading.Lock()

    def alter(self, table: TableState, request: Alteration) -> TableSchema:
        """Change the schema of a table and return the new one.

        Raises `SchemaError` or `UnknownColumn`, before anything has happened, if it cannot be; `OutcomeUnknown` if it
        cannot be told whether it was done.
        """
        table.check_whole()
        with self._tables.events.held(), self._lock:
            self._settle(table)
            altered(table.view.schema, request)
            with self._recutter.held_still(table):
                if table.is_dropped:
                    raise UnknownTable(f"the table {table.name!r} was dropped")
                schema = altered(table.view.schema, request, self._sequencer.allocated)
                self._save(table, schema)
            _log.info("altered table %s, schema version %d", table.name, schema.version)
        self._preloader.start(table)
        return schema

    def _save(self, table: TableState, schema: TableSchema) -> None:
        """Save the METADATA transaction, and use it. After an error the table is as it was, or in doubt.

        An interrupt may come when METADATA has the schema already: it leaves the doubt, as a lost reply does.
        """
        metadata = table.view.metadata
        tablets = tuple(FlushedTablet(t.id, t.epoch, table.tablet(t.id).index) for t in metadata.tablets)
        change = AlterSchema(metadata.schema.version, schema, tablets)
        table.is_schema_in_doubt = True
        try:
            self._use(table, self._metadata.commit(table.id, [change]))
        except OutcomeUnknown as error:
            self._find_out(table, schema, error)
        except RequirementFailed as refused:
            table.is_schema_in_doubt = False
            raise Conflict(f"{table.name!r} changed while its schema was to be changed ({refused}): retry") from refused
        except EblaError:
            table.is_schema_in_doubt = False
            raise
        table.is_schema_in_doubt = False

    def _find_out(self, table: TableState, schema: TableSchema, unknown: OutcomeUnknown) -> None:
        for _ in SAVES.attempts(self._clock):
            try:
                self._settle(table)
            except EblaError:
                continue
            if table.view.schema.version == schema.version:
                return
            raise StoreError(f"the schema of {table.name!r} was not changed: {unknown}: retry") from unknown
        raise OutcomeUnknown(
            f"it is not known whether the schema of {table.name!r} was changed ({unknown}): the table takes no writes "
            "until that is known; nothing is lost, look at its schema and retry"
        ) from unknown

    def settle(self, table: TableState) -> None:
        """Find out what became of a change of unknown outcome; raises as METADATA does if that fails."""
        if table.is_schema_in_doubt:
            with self._tables.events.held(), self._lock:
                self._settle(table)

    def _settle(self, table: TableState) -> None:
        if not table.is_schema_in_doubt:
            return
        # A transaction of ours on the old schema, once it is there, keeps the lost one from ever coming.
        try:
            known = self._metadata.commit(table.id, [RequireSchema(table.view.schema.version)])
        except RequirementFailed:
            known = self._metadata.refresh(table.id)
        self._use(table, known)
        table.is_schema_in_doubt = False

    def _use(self, table: TableState, metadata: TableMetadata) -> None:
        with self._tables.lock:
            table.use_metadata(metadata, self._server)
