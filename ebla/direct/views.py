"""Tables of a store that is open in this process, for planners and tasks: their views, and rows as the engine reads."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.filters import with_columns_of
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange
from ebla.storage.merge.erasure_cover import Erasure
from ebla.tablet.engine import TabletStore
from ebla.tablet.read.answers import ReadPoint
from ebla.tablet.read.existence import which_exist
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.scopes import is_mixed
from ebla.tablet.read.view import TableView, check_existed, check_history
from ebla.tablet.scan.scanner import Scanner, ScanRequest
from ebla.tablet.tables.table_state import TableState

__all__ = [
    "Erasure",
    "Reader",
    "TableState",
    "TableView",
    "TabletStore",
    "check_existed",
    "check_history",
    "is_mixed",
    "read_range",
    "read_rows",
    "which_exist",
    "with_columns_of",
]


def read_range(
    store: TabletStore,
    table: TableState,
    projection: Projection,
    rows: KeyRange,
    txn: int,
    where: pc.Expression | None = None,
) -> Iterator[pa.Table]:
    """Yield all rows of a range at a txn, in order."""
    return Scanner(store.scan_parts, table, ScanRequest(projection, rows, where, as_of=txn)).tables(whole=True)


def read_rows(table: TableState, view: TableView, projection: Projection, rows: pa.Array, txn: int) -> pa.Table:
    """Return those of some rows that a view has at a txn, which is held by the caller."""
    batches = table.reader.rows.read_many(view, rows, ReadPoint(txn, projection)) if len(rows) else []
    return pa.Table.from_batches(batches, projection.arrow_schema)
