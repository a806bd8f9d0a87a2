"""A table and a tablet as the master has them in memory: what is committed, and what is being written.

    TableInfo   .stored   committed: one immutable value with everything, replaced by one assignment
                .dirty    what it will be if the write under way succeeds; readers never look at it

A reader takes `.stored` once and has a consistent table, whatever is being written meanwhile. A `TabletInfo` is made
when somebody asks for a tablet and shares what the table has: a million tablets cost no second object each.
"""

from __future__ import annotations

from typing import NamedTuple

from ebla.errors import Unavailable
from ebla.master.writes import StoredTable
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata

__all__ = ["TableInfo", "TabletInfo"]


class TableInfo:
    """A table in the catalog, from the moment that somebody begins to create it until it is purged."""

    __slots__ = ("dirty", "doing", "id", "stored", "switches")

    def __init__(self, table_id: str, stored: StoredTable | None = None) -> None:
        self.id = table_id
        self.stored = stored  # None: it is being created
        self.dirty: StoredTable | None = None
        self.doing: str | None = None  # the operation that holds the table, in a word
        self.switches = 0  # how often its configuration was committed

    @property
    def is_visible(self) -> bool:
        """Whether clients may see it."""
        stored = self.stored
        return stored is not None and not stored.config.is_deleted

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted and is kept, to be brought back or to be purged."""
        stored = self.stored
        return stored is not None and stored.config.is_deleted

    @property
    def name(self) -> str:
        """What it is called, or was before it was deleted."""
        return "" if self.stored is None else self.stored.config.name

    @property
    def metadata(self) -> TableMetadata:
        """Its METADATA as committed. Take it once; the next look may find another."""
        assert self.stored is not None
        assert self.stored.metadata is not None
        return self.stored.metadata

    def begin(self, doing: str, dirty: StoredTable | None = None) -> None:
        """Hold the table for an operation on it as a whole; `Unavailable` while another one does."""
        if self.doing is not None:
            raise Unavailable(f"table {self.name or self.id}: {self.doing} is under way, try again")
        self.doing, self.dirty = doing, dirty

    def end(self) -> None:
        """Let go of the table, committed or not."""
        self.doing = self.dirty = None


class TabletInfo(NamedTuple):
    """A tablet at one moment, with its table at the same moment."""

    table: TableInfo
    stored: StoredTable
    tablet: TabletMetadata
