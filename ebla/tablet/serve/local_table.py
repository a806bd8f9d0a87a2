"""One table of the store in this process, as clients see it: requests in, rows and txns out.

get          the row cache, or the newest of what memory and files have of the row
read_row(s)  rows by key at a moment                                                    row_reading.py
scan         a range at a moment, in windows                                            scan/scanner.py
write        puts and erasures, admitted and committed                                  writing.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from ebla.errors import CannotJoin, HistoryGone, RequestError, UnknownTable
from ebla.metadata.values.tablet_metadata import TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange, successor
from ebla.model.schema import TableSchema
from ebla.model.where import to_expression
from ebla.rows.row import Row
from ebla.service.job_reads import CaptureTablets
from ebla.service.requests import (
    THIS_VERY_MOMENT,
    BringTogether,
    Compact,
    DescribeTable,
    DescribeTablets,
    Erase,
    EraseRange,
    Flush,
    Join,
    ListFiles,
    Modify,
    Moment,
    Put,
    PutCells,
    ReadRow,
    ReadRows,
    Reply,
    ScanRows,
    Split,
    TableRequest,
    Write,
)
from ebla.service.service import Progress, RowRead, RowStream
from ebla.tablet.engine import TabletStore
from ebla.tablet.read.view import check_existed
from ebla.tablet.scan.scanner import Scanner, ScanRequest
from ebla.tablet.serve.capturing import capture
from ebla.tablet.serve.row_reading import RowReading, at_newest
from ebla.tablet.serve.sums import appended, count_of, incremented
from ebla.tablet.serve.table_description import describe_table, describe_tablets
from ebla.tablet.serve.writing import Writing
from ebla.tablet.tables.schema_parts import SchemaParts
from ebla.tablet.tables.table_state import TableState

__all__ = ["LocalStream", "LocalTable"]

# More rows than any table has.
ROWS_MAX = (1 << 63) - 1

_Answer = TypeVar("_Answer")


class LocalStream:
    """The rows of a scan in this process."""

    def __init__(self, scanner: Scanner, projection: Projection, batch_rows: int) -> None:
        self._scanner = scanner
        self.projection = projection
        self.batch_rows = batch_rows

    @property
    def txn(self) -> int:
        """The txn of the rows; of a scan that follows newer commits, that of the rows read last."""
        return self._scanner.txn

    def tables(self, *, whole: bool) -> Iterator[pa.Table]:
        """Yield the rows as Arrow tables."""
        return self._scanner.tables(whole=whole)

    def few_rows(self) -> list[tuple[bytes, dict[str, Any]]] | None:
        """Return all rows as dicts, each with its encoded key, if they are few and quickly at hand; else None."""
        return self._scanner.few_rows()

    def count(self) -> int:
        """Return the number of rows, reading no more than it takes to tell."""
        return self._scanner.count()


class LocalTable:
    """A table that the engine in this process serves."""

    def __init__(self, engine: TabletStore, state: TableState) -> None:
        # Set once.
        self.engine = engine
        self.state = state
        self._sequencer = engine.sequencer
        self._reading = RowReading(engine, state)
        self._writing = Writing(engine, state, self._reading)

    @property
    def id(self) -> str:
        """The id of the table, which it keeps under every name."""
        return self.state.id

    @property
    def name(self) -> str:
        """The name that the table has now."""
        return self.state.name

    @property
    def schema(self) -> TableSchema:
        """The schema in force."""
        return self.state.view.schema

    @property
    def codec(self) -> KeyCodec:
        """How keys become rows, by the schema in force."""
        return self.state.view.parts.codec

    # --- reading ---

    def get(self, key: object) -> Row | None:
        """Return a row with all its columns at the newest commit, by its key as a user gives it."""
        parts = self.state.view.parts
        row = parts.codec.encode(key)
        txn = self._sequencer.committed
        cached = parts.row_cache.rows.get(row)
        if cached is None:
            return self._newest(row, txn)
        return self._given_out(parts, row, cached, txn)

    def get_encoded(self, row: bytes) -> Row | None:
        """Do what `get` does, by the row that the key is encoded as."""
        parts = self.state.view.parts
        txn = self._sequencer.committed
        cached = parts.row_cache.rows.get(row)
        return self._newest(row, txn) if cached is None else self._given_out(parts, row, cached, txn)

    def _given_out(self, parts: SchemaParts, row: bytes, cached: dict[str, Any], txn: int) -> Row:
        parts.row_cache.used.add(row)
        found = Row(copy.deepcopy(cached) if parts.has_nested else cached)
        found.txn = txn
        return found

    def _newest(self, row: bytes, txn: int) -> Row | None:
        """Return a row that is not cached."""
        if not self.state.view.parts.expires:
            self._check_served()
            try:
                return self._reading.newest(row, txn)
            except HistoryGone:
                pass  # it has ended since the txn was looked up
        return self.read_row(ReadRow(row)).row

    def read_row(self, request: ReadRow) -> RowRead:
        """Read one row at a moment."""
        version = self.state.view.parts.version
        if request.at is THIS_VERY_MOMENT and request.columns is None and request.versions == 1:
            txn, row = self._read(request.at, lambda txn: self._reading.one_now(request.row, txn))
        else:
            txn, row = self._read(
                request.at, lambda txn: self._reading.one(request.row, request.columns, txn, request.versions)
            )
        return RowRead(txn, row, version)

    def read_rows(self, request: ReadRows) -> pa.Table:
        """Read many rows at a moment."""
        return self._read(request.at, lambda txn: self._reading.asked(request.rows, request.columns, txn))[1]

    def scan(self, request: ScanRows) -> RowStream:
        """Begin to read a range."""
        # The txn first: under a schema that was in force before it, what came after a change of it would be missing.
        txn = self._txn(request.at)
        projection = self.state.projection(request.columns, request.versions)
        wanted = ScanRequest(
            projection,
            _rest(request.key_range, request.after, request.reverse),
            None if request.where is None else to_expression(request.where, projection.schema),
            None if request.limit is None else min(request.limit, ROWS_MAX),
            request.reverse,
            None if request.latest else txn,
            request.at.uncommitted,
            txn,
        )
        scanner = Scanner(self.engine.scan_parts, self.state, wanted)
        return LocalStream(scanner, projection, self.engine.settings.scan_batch_rows)

    def _txn(self, at: Moment) -> int:
        self._check_served()
        txn = at.txn if at.snapshot is None else self.engine.pins.txn_of(at.snapshot)
        if txn is not None:
            check_existed(self.name, self.state.view.metadata, txn)
        return self.engine.read_txn(txn, uncommitted=at.uncommitted, at_once=self.state.view.parts.expires)

    def _read(self, at: Moment, read: Callable[[int], _Answer]) -> tuple[int, _Answer]:
        if at.txn is not None or at.snapshot is not None:
            txn = self._txn(at)
            return txn, read(txn)
        return at_newest(lambda: self._txn(at), read)

    def _check_served(self) -> None:
        if self.engine.is_closed:
            raise self.engine.closed()
        if self.state.is_dropped:
            raise UnknownTable(f"the table {self.name!r} was dropped, or restored in place: get it anew with db.table")

    # --- writing ---

    def write(self, request: Write) -> int:
        """Commit a change, and return its txn."""
        match request:
            case Put():
                return self._writing.put(request)
            case PutCells():
                return self._writing.put_cells(request)
            case Erase():
                return self._writing.erase(request)
            case EraseRange():
                return self._writing.erase_range(request)

    def modify(self, request: Modify) -> Any:
        """Change one value by what it is, and return what it is then."""
        if request.operation == "increment":
            change = partial(incremented, request.column, request.operand)
            return count_of(self._writing.modify(request, change))
        change = partial(appended, request.column, request.operand)
        return self._writing.modify(request, change)

    # --- the table as a whole ---

    def carry_out(self, request: TableRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with the table as a whole."""
        reply: Any = self._reply_to(request, progress)
        return reply  # type: ignore[no-any-return]

    def _reply_to(self, request: TableRequest[Any], progress: Progress | None) -> object:
        match request:
            case Flush():
                self.engine.flush(self.state)
                return None
            case Compact():
                self.engine.upkeep.compact(self.state, progress)
                return None
            case Split():
                self.engine.readiness.check_online(self.state)
                return self.engine.recutter.split(self.state, request.row, request.tablet)
            case Join():
                neighbours = self._neighbours(request)
                self.engine.readiness.check_online(self.state)
                return self.engine.recutter.join(self.state, *neighbours)
            case BringTogether():
                return None  # they are: all are here
            case DescribeTablets():
                return describe_tablets(self.state)
            case DescribeTable():
                return describe_table(self.state)
            case CaptureTablets(txn, wanted, with_memory):
                at = self._txn(Moment(txn))
                return capture(self.engine, self.state, at, wanted, with_memory=with_memory)
            case ListFiles():
                tablets = self.state.view.metadata.tablets
                return sorted({ref.file for tablet in tablets for state in tablet.groups for ref in state.current})
        raise RequestError(f"a table does not know the request {type(request).__name__}")

    def _neighbours(self, request: Join) -> tuple[TabletMetadata, TabletMetadata]:
        metadata = self.state.view.metadata
        if request.tablets is not None:
            left, right = (metadata.by_id(t) if isinstance(t, str) else None for t in request.tablets)
        else:
            left = metadata.tablets[0] if request.first is None else metadata.tablet_for(request.first)
            right = metadata.tablets[-1] if request.last is None else metadata.tablet_for(request.last)
        if left is None or right is None:
            raise CannotJoin(f"{self.name!r} has no such tablet: see tablets()")
        if left.id == right.id:
            raise CannotJoin(f"both are the same tablet of {self.name!r}, {left.id}: see tablets()")
        if left.last is None or left.last != right.first:
            raise CannotJoin(
                f"the tablets {left.id} and {right.id} of {self.name!r} are not neighbours in this order: see tablets()"
            )
        if left.is_replicated or right.is_replicated:
            raise CannotJoin(f"{self.name!r} has several replicas: tablets that have cannot be joined")
        return left, right


def _rest(key_range: KeyRange, after: bytes | None, reverse: bool) -> KeyRange:
    """Return what is left of a range after a row that was given already."""
    if after is None:
        return key_range
    rest = KeyRange(b"", after) if reverse else KeyRange(successor(after))
    return key_range.intersect(rest) or KeyRange(after, after)
