"""What is current: the METADATA of tables as this server saw it last, and how it looks again.

    get     what is known by heart; a table that is not is looked at
    look    which transaction is current now, by the coordination service; its files are read unless it is known

What was seen has the version of the table's node, so that something older never takes the place of something newer.

Should somebody have saved a schema that cannot be, those who read are told. Those who commit keep the last valid one:
their transaction is saved as a whole, and has the schema under which what they bring was written.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import msgspec

from ebla.errors import MissingFile, SchemaError, Unavailable, UnknownTable
from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import InvalidMetadata, TableMetadata
from ebla.model.schema import TableSchema

__all__ = ["Current", "CurrentMetadata"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Current:
    """A table as it was when its node had `version`."""

    config: TableConfig
    version: int
    metadata: TableMetadata
    invalid: SchemaError | None = None  # what is wrong with the schema that was saved: the last valid one is kept


class CurrentMetadata:
    """All tables that this server has seen, by id. Safe to use from several threads."""

    def __init__(self, directory: TableDirectory, store: MetadataStore, attempts_max: int) -> None:
        # Set once.
        self._directory = directory
        self._store = store
        self._attempts_max = attempts_max
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._known: dict[str, Current] = {}
        self._valid: dict[str, TableSchema] = {}  # the schemas that tables had last

    def get(self, table_id: str, *, keep: bool = False) -> Current:
        """Return what is known of a table; `keep` as `look` has it."""
        with self._lock:
            current = self._known.get(table_id)
        return current or self.look(table_id, keep=keep)

    def look(self, table_id: str, *, keep: bool = False) -> Current:
        """Ask the coordination service which transaction is current, and load it unless it is known.

        `SchemaError` if it has a schema that cannot be; with `keep`, the last one that could be is kept in its place.
        """
        missing: MissingFile | None = None
        looked_for: str | None = None
        for _ in range(self._attempts_max):
            try:
                config, version = self._directory.read(table_id)
            except UnknownTable:
                self.forget(table_id)
                raise
            if missing is not None and config.metadata_txnid == looked_for:
                raise missing
            with self._lock:
                known = self._known.get(table_id)
            if known is not None and known.invalid is not None:
                if known.version == version and keep:
                    return known
                known = None  # what was kept is not what others build upon
            try:
                metadata = self._store.load(table_id, config.metadata_txnid, known.metadata if known else None)
            except MissingFile as error:
                # It may have been pruned since: then there is a newer transaction by now.
                missing, looked_for = error, config.metadata_txnid
                continue
            except SchemaError as error:
                if not keep:
                    raise
                kept = self._under_last_valid(table_id, config.metadata_txnid, error)
                return self.remember(table_id, Current(config, version, kept, invalid=error))
            return self.remember(table_id, Current(config, version, metadata))
        raise Unavailable(f"the metadata of table {table_id} changed faster than it could be loaded: try again")

    def remember(self, table_id: str, current: Current) -> Current:
        """Keep what was seen unless something newer was seen meanwhile; return what is kept."""
        with self._lock:
            known = self._known.get(table_id)
            if known is not None and known.version > current.version:
                return known
            self._known[table_id] = current
            self._valid[table_id] = current.metadata.schema
        return current

    def _under_last_valid(self, table_id: str, txnid: str, error: SchemaError) -> TableMetadata:
        """Return what a transaction says of a table, under the last valid schema instead of one that cannot be."""
        with self._lock:
            schema = self._valid.get(table_id)
        if schema is None:
            raise error
        found, problem = self._store.load_anyway(table_id, txnid)
        kept = msgspec.structs.replace(found, schema=schema)
        try:
            kept.check()
        except InvalidMetadata as reason:
            problem = str(reason)
        if problem:
            raise error
        _log.warning(
            "table %s: schema version %s is ignored, and version %s kept: %s",
            table_id,
            found.schema.version,
            schema.version,
            error,
        )
        return kept

    def forget(self, table_id: str) -> None:
        """Ask for a table again when it is needed next."""
        with self._lock:
            self._known.pop(table_id, None)

    def let_go(self, table_id: str) -> None:
        """Forget a table that is gone."""
        with self._lock:
            self._known.pop(table_id, None)
            self._valid.pop(table_id, None)
