"""A table as one scan sees it: at which txn it is read, under which schema, and what a missing file means.

Nothing is held on to: every window takes the newest view there is, and reads it at the scan's txn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow.compute as pc

from ebla.errors import MissingFile, SchemaChanged, UnknownTable
from ebla.model.filters import with_columns_of
from ebla.model.projection import Projection
from ebla.model.ranges import ALL, KeyRange
from ebla.tablet.read.view import TableView
from ebla.tablet.scan.scan_parts import ScanParts
from ebla.tablet.tables.table_state import TableState

__all__ = ["ScanRequest", "ScannedTable"]


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What is scanned. `as_of` is None for a scan that follows the newest commits from window to window.

    Such a scan reads at `at_least` or later: where values expire, time goes on without commits, and never back.
    """

    projection: Projection
    key_range: KeyRange = ALL
    where: pc.Expression | None = None
    limit: int | None = None
    reverse: bool = False
    as_of: int | None = None
    uncommitted: bool = False
    at_least: int = 0


class ScannedTable:
    """A table, for one scan. `projection` has the columns of the filter, too. Safe to use from several threads."""

    def __init__(self, parts: ScanParts, table: TableState, request: ScanRequest) -> None:
        # Set once.
        self.parts = parts
        self.table = table
        self.request = request
        self.projection = request.projection
        if request.where is not None:
            self.projection = with_columns_of(request.where, request.projection)

    def txn(self) -> int:
        """Return the txn to read at now. Look it up before the view, which so has all of it."""
        as_of = self.request.as_of
        if as_of is not None:
            return as_of
        return max(self.request.at_least, self.parts.moments.read_txn(uncommitted=self.request.uncommitted))

    def view(self) -> TableView:
        """Return the newest view under the schema that the scan began with.

        After a change of the schema that is the last one before it, which has all that the scan may see, unless it
        follows newer commits.
        """
        self.parts.state.check_open()  # another process may own the store by now, and remove its files
        view = self.table.view_under(self.projection.schema.version)
        is_former = view is not None and view is not self.table.view and view.parts is not self.table.view.parts
        if view is None or (is_former and self.request.as_of is None):
            raise self._changed()
        return view

    def admit(self, rows: KeyRange) -> None:
        """Wait until the tablets of a range may be read; they are loaded if they are not."""
        self.parts.loader.admit(self.table, rows)

    def admit_row(self, row: bytes) -> None:
        """Wait until the tablet of a row may be read."""
        self.parts.loader.admit_row(self.table, row)

    @contextmanager
    def telling_what_is_gone(self) -> Iterator[None]:
        """Tell files that are gone, with their table or since the schema is a former one, from files that are lost."""
        try:
            yield
        except MissingFile as error:
            if self.table.is_dropped:
                raise UnknownTable(f"the table {self.table.name!r} was dropped while it was scanned") from error
            if self.table.view.parts.version == self.projection.schema.version:
                raise
            raise self._changed() from error

    def _changed(self) -> SchemaChanged:
        return SchemaChanged(f"the schema of {self.table.name!r} was changed since the scan began: begin it again")
