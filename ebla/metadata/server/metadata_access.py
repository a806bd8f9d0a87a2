"""What an engine uses of METADATA, whoever coordinates its transactions: a server in this process, or others far away.

    TabletStore --> MetadataAccess <-- MetadataServer     in the process that keeps METADATA
                                   <-- one that asks the metadata servers of a cluster for changes

A method that raises `OutcomeUnknown` may have changed METADATA, or may yet; any other error says that it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_config import TableEntry
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.timing import Timing

__all__ = ["MetadataAccess"]


class MetadataAccess(Protocol):
    """Reads METADATA of all tables, and has it changed. Safe to use from several threads."""

    @property
    def directory(self) -> TableDirectory:
        """The tables by name and id, in the coordination service."""
        ...

    @property
    def committing(self) -> Timing:
        """How long transactions took."""
        ...

    # --- reading ---

    def list_tables(self) -> list[TableEntry]:
        """Return the tables that are there, sorted by name."""
        ...

    def read(self, table_id: str) -> TableMetadata:
        """Return the metadata as it was seen last; it is asked for only if nothing is known of the table yet."""
        ...

    def refresh(self, table_id: str) -> TableMetadata:
        """Return the metadata as it is now, whoever changed it; `UnknownTable` if the table was dropped."""
        ...

    def reload(self, table_id: str) -> None:
        """Forget what is known of a table: its METADATA was changed past the metadata servers."""
        ...

    def read_named(self, name: str, table_id: str) -> TableMetadata:
        """Return the metadata of a table as it is now, if it is the one that `name` means.

        `UnknownTable` if it was dropped or renamed meanwhile; `Corruption` if the name means what it should not.
        """
        ...

    def read_in_part(self, table_id: str) -> TableMetadata:
        """Return metadata that breaks its invariants, for reading alone; `Corruption` if even that cannot be."""
        ...

    def named_txn(self, table_id: str) -> int:
        """Return since when a table has its name, as it was seen last; 0 if that is not known."""
        ...

    def is_retained(self, table_id: str) -> bool:
        """Tell whether a table has lost its name and can be brought back."""
        ...

    def name_of(self, table_id: str) -> str:
        """Return what a table is called now; `UnknownTable` if it was dropped."""
        ...

    # --- changing one table ---

    def commit(self, table_id: str, changes: Sequence[Change]) -> TableMetadata:
        """Apply the changes in one transaction, all or none of them, and return the metadata with them in it.

        Raises `RequirementFailed` or `InvalidMetadata` if they do not fit, and `UnknownTable` if the table was dropped.
        """
        ...

    def finish_pruning(self) -> None:
        """Return when no old transaction is being removed any more, before the files are left to somebody else."""
        ...

    # --- tables come and go ---

    def create_table(
        self,
        name: str,
        table_id: str,
        initial: TableMetadata,
        *,
        replacing: str | None = None,
        named_txn: int = 0,
    ) -> TableMetadata:
        """Create a table that has the metadata `initial`; `TableExists` if the name is taken.

        `replacing` is the id of the table that has the name now and is dropped in the same step.
        """
        ...

    def drop_table(self, name: str) -> str:
        """Drop the table called `name` and return its id. Its METADATA stays until it is cleaned up."""
        ...

    def unlink_table(self, name: str, microseconds: int, kept_until_microseconds: int) -> str:
        """Take the name from a table, and return its id: it is there until it is purged, or gets a name again."""
        ...

    def undelete_table(self, table_id: str, name: str, named_txn: int = 0) -> None:
        """Give a table that was unlinked a name again; `TableExists` if it is taken, `UnknownTable` if it is purged."""
        ...

    def purge_table(self, table_id: str) -> None:
        """Let go of a table that was unlinked. Its METADATA stays until it is cleaned up."""
        ...

    def rename_table(self, table_id: str, name: str, named_txn: int = 0) -> None:
        """Give a table another name, which it has since `named_txn`; `TableExists` if it is taken."""
        ...

    def settle(self, name: str, table_id: str) -> bool:
        """After a creation or drop of unknown outcome: tell whether the table is there, for good."""
        ...

    def discard(self, table_id: str, txnid: str) -> None:
        """Remove the file of a transaction of a table that is gone for good, wherever it is kept."""
        ...
