"""The tables that a store finds in METADATA when it is opened: whole, damaged in part, or not to be had.

    names -> table ids -> METADATA      whole: served
                                        its tablets do not fit together: those that do are read, nothing is changed
                                        unreadable, an impossible schema, a name that means nothing: refused

What is wrong with one table is told to those who ask for it, and keeps no other from being served.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ebla.errors import Corruption, EblaError, MissingFile, SchemaError, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.table_config import TableConfig, name_path
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.tablet.engine import TabletStore
from ebla.tablet.tables.refused_tables import UNLINKED

__all__ = ["FoundTable", "add_tables", "read_tables"]


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that a name means: its METADATA, or why it cannot be had; `damage` if it is not whole."""

    name: str
    table_id: str
    metadata: TableMetadata | None
    error: EblaError | None = None
    damage: str = ""
    named_txn: int = 0  # since when it has its name
    is_unlinked: bool = False  # it has lost its name, and can be brought back

    @property
    def txnid(self) -> str | None:
        """Its current METADATA transaction, None if that cannot be had."""
        return None if self.metadata is None else self.metadata.txnid

    @property
    def newest_job_txn(self) -> int:
        """The txn of its newest bulk job, 0 if none is known."""
        return 0 if self.metadata is None else self.metadata.newest_job_txn

    @property
    def passed_txn(self) -> int:
        """A txn up to which everything was committed when METADATA was saved: that of its newest bulk job, of its
        creation, since when it has its name, or that at which its history begins: a commit to a table that is gone.
        """
        if self.metadata is None:
            return 0
        floors = (state.floor_txn for tablet in self.metadata.tablets for state in tablet.groups)
        return max(self.newest_job_txn, self.metadata.created_txn, self.named_txn, max(floors, default=0))

    @property
    def newest_txn(self) -> int:
        """The newest txn of anything that METADATA knows of."""
        return 0 if self.metadata is None else max(self.metadata.newest_txn, self.passed_txn)


def read_tables(metadata: MetadataAccess) -> list[FoundTable]:
    """Read METADATA of all tables. What is wrong with one of them is no reason to stop; an error of the disk is."""
    found = []
    for name, table_id in metadata.list_tables():
        try:
            known = metadata.read_named(name, table_id)
            found.append(FoundTable(name, table_id, known, named_txn=metadata.named_txn(table_id)))
        except SchemaError as error:
            found.append(FoundTable(name, table_id, None, error))
        except (Corruption, MissingFile) as error:
            found.append(_in_part(metadata, name, table_id, error))
    return found + [_unlinked(metadata, table_id, config.name) for table_id, config in _retained(metadata)]


def _retained(metadata: MetadataAccess) -> list[tuple[str, TableConfig]]:
    return sorted(metadata.directory.retained().items())


def _unlinked(metadata: MetadataAccess, table_id: str, name: str) -> FoundTable:
    """Return a table that was dropped and is retained: its log and its files count like those of any other."""
    try:
        return FoundTable(name, table_id, metadata.refresh(table_id), is_unlinked=True)
    except (SchemaError, Corruption, MissingFile) as error:
        # By a name that no table can have: it is refused, and keeps its log, without being in another's way.
        return FoundTable(f"{name}{UNLINKED}{table_id}", table_id, None, error, is_unlinked=True)


def _in_part(metadata: MetadataAccess, name: str, table_id: str, error: Corruption | MissingFile) -> FoundTable:
    if isinstance(error, Corruption) and error.file == name_path(name):
        return FoundTable(name, "", None, error)  # there may be such a table, by another name
    try:
        return FoundTable(name, table_id, metadata.read_in_part(table_id), error, str(error))
    except (Corruption, MissingFile, UnknownTable):
        return FoundTable(name, table_id, None, error)


def add_tables(store: TabletStore, found: Iterable[FoundTable]) -> None:
    """Open what can be opened, and refuse the rest."""
    for one in found:
        if one.metadata is None:
            assert one.error is not None
            store.opener.refuse(one.name, one.table_id, one.error)
            continue
        try:
            store.add_table(one.name, one.metadata, one.damage, is_unlinked=one.is_unlinked)
        except SchemaError as error:
            store.opener.refuse(one.name, one.table_id, error)
