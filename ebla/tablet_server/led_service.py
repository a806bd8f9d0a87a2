"""What a tablet server answers: requests for rows that it leads, under its lease.

    request --> lease? --> tablets led here? --> the engine --> lease? --> reply
                  |               |                               |
                  `-- StaleRoute: nothing was done            a read: StaleRoute, nothing is told
                                                              a write: OutcomeUnknown, from the log's own fence

The lease is asked for again after the work: whoever was stopped in the middle of a read, for longer than its lease,
must not tell what is old by now. What concerns a table or the cluster as a whole is for the masters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from ebla.clock import Clock
from ebla.coordination.server_lease import ServerLease
from ebla.coordination.service import CoordinationService
from ebla.errors import Closed, RequestError, StaleRoute, Unavailable, UnknownTable
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.schema import TableSchema
from ebla.rows.row import Row
from ebla.service.job_orders import BeginCompaction, CompactCommit, PrepareCompaction
from ebla.service.job_reads import HoldForJob
from ebla.service.listener import TabletListener
from ebla.service.requests import (
    DescribeStore,
    DescribeTables,
    HoldNewest,
    LetGo,
    Modify,
    Moment,
    PassTxn,
    ReadCounters,
    ReadRow,
    ReadRows,
    Reply,
    ScanRows,
    StoreRequest,
    Sync,
    TableRequest,
    Write,
)
from ebla.service.service import Progress, RowRead, RowStream, TableService
from ebla.settings import Settings
from ebla.tablet.engine import TabletStore
from ebla.tablet.serve.local_service import LocalService
from ebla.tablet.serve.local_table import LocalTable

__all__ = ["LedService", "LedTable"]

_Asked = TypeVar("_Asked", ReadRow, ReadRows, ScanRows)
_Found = TypeVar("_Found")

# What a server can tell for itself. The rest concerns others, too.
_OWN = (
    Sync,
    PassTxn,
    HoldNewest,
    HoldForJob,
    LetGo,
    DescribeStore,
    DescribeTables,
    ReadCounters,
    PrepareCompaction,
    BeginCompaction,
    CompactCommit,
)


class LedStream:
    """The rows of a scan. Each portion is handed out under the lease."""

    def __init__(self, stream: RowStream, lease: ServerLease) -> None:
        self._stream = stream
        self._lease = lease

    @property
    def projection(self) -> Projection:
        """How the answer looks."""
        return self._stream.projection

    @property
    def txn(self) -> int:
        """The txn of the rows."""
        return self._stream.txn

    @property
    def batch_rows(self) -> int:
        """How many rows a batch should have at most."""
        return self._stream.batch_rows

    def tables(self, *, whole: bool) -> Iterator[pa.Table]:
        """Yield the rows as Arrow tables."""
        for rows in self._stream.tables(whole=whole):
            self._lease.check_answer()
            yield rows
        self._lease.check_answer()

    def few_rows(self) -> list[tuple[bytes, dict[str, Any]]] | None:
        """Return all rows as dicts, if they are few and quickly at hand."""
        found = self._stream.few_rows()
        self._lease.check_answer()
        return found

    def count(self) -> int:
        """Return the number of rows."""
        number = self._stream.count()
        self._lease.check_answer()
        return number


class LedTable:
    """One table, as far as its tablets are led here."""

    def __init__(self, table: LocalTable, lease: ServerLease) -> None:
        # Set once.
        self._table = table
        self._lock = table.engine.open_tables.lock
        self._lease = lease
        led = table.state.led
        assert led is not None, "a server does not lead everything"
        self._led = led

    @property
    def id(self) -> str:
        """The id of the table."""
        return self._table.id

    @property
    def name(self) -> str:
        """The name that the table has now."""
        return self._table.name

    @property
    def schema(self) -> TableSchema:
        """The schema in force."""
        return self._table.schema

    @property
    def codec(self) -> KeyCodec:
        """How keys become rows, by the schema in force."""
        return self._table.codec

    def get(self, key: object) -> Row | None:
        """Return a row with all its columns at the newest commit."""
        return self.get_encoded(self._table.codec.encode(key))

    def get_encoded(self, row: bytes) -> Row | None:
        """Do what `get` does, by the row that the key is encoded as."""
        # The row cache is asked before the engine looks who leads the row.
        self._led.check_read([self._table.state.view.metadata.tablet_for(row)])
        state = self._table.state
        if not state.held:
            holds = state.holds
            found = self._table.get_encoded(row)
            if state.holds == holds:
                self._lease.check_answer()
                return found
        return self.read_row(ReadRow(row)).row

    def read_row(self, request: ReadRow) -> RowRead:
        """Read one row at a moment."""
        found = self._capped(request, self._table.read_row)
        self._lease.check_answer()
        return found

    def read_rows(self, request: ReadRows) -> pa.Table:
        """Read many rows at a moment; all of them are led here, or none is read."""
        found = self._capped(request, self._table.read_rows)
        self._lease.check_answer()
        return found

    def scan(self, request: ScanRows) -> RowStream:
        """Begin to read a range, all tablets of which are led here."""
        if not request.key_range.is_empty:
            self._led.check_read(self._table.state.view.metadata.overlapping(request.key_range))
        stream = LedStream(self._capped(request, self._table.scan), self._lease)
        self._lease.check_answer()
        return stream

    def _capped(self, request: _Asked, read: Callable[[_Asked], _Found]) -> _Found:
        """Read at a moment, but of tablets that wait for their replicas nothing that is not committed."""
        state = self._table.state
        while True:
            holds = state.holds
            found = read(self._at_safe(request) if state.held else request)
            if state.holds == holds:
                return found

    def _at_safe(self, request: _Asked) -> _Asked:
        state, at = self._table.state, request.at
        metadata = state.view.metadata
        match request:
            case ReadRow(row):
                tablets = {metadata.tablet_for(row).id}
            case ReadRows(rows):
                tablets = {metadata.tablet_for(row).id for row in rows.to_pylist()}
            case ScanRows(key_range):
                tablets = {one.id for one in metadata.overlapping(key_range)}
        with self._lock:
            safe = state.safe_txn(tablets)
        if safe is None or at.uncommitted:
            return request
        if at.txn is None and at.snapshot is None:
            changed = replace(request, at=Moment(txn=safe))
            return replace(changed, latest=False) if isinstance(changed, ScanRows) else changed
        if at.txn is not None and at.txn <= safe:
            return request
        raise Unavailable("a tablet waits for its replicas, and cannot be read at that txn yet: retry")

    def write(self, request: Write) -> int:
        """Commit a change, and return its txn."""
        self._lease.check_answer()
        return self._table.write(request)

    def modify(self, request: Modify) -> Any:
        """Change one value by what it is, and return what it is then."""
        self._lease.check_answer()
        return self._table.modify(request)

    def carry_out(self, request: TableRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with those tablets of the table that are led here."""
        self._lease.check_answer()
        reply = self._table.carry_out(request, progress)
        self._lease.check_answer()
        return reply


class LedService:
    """The tables of one run of a server. Safe to use from several threads."""

    def __init__(
        self,
        engine: TabletStore,
        coordination: CoordinationService,
        clock: Clock,
        new_id: Callable[[], str],
        lease: ServerLease,
    ) -> None:
        # Set once.
        self._engine = engine
        self._local = LocalService(engine, coordination, clock, new_id)
        self._lease = lease

    @property
    def is_writable(self) -> bool:
        """Whether it takes writes."""
        return True

    @property
    def settings(self) -> Settings:
        """The settings that requests are held to."""
        return self._engine.settings

    def check_open(self) -> None:
        """Raise `Closed` if the run is over."""
        self._local.check_open()

    def closed(self) -> Closed:
        """Return the error for whoever comes when it is closed."""
        return self._local.closed()

    def close(self) -> None:
        """The run is closed by the server."""

    def tables(self) -> list[str]:
        """Return the names of the tables of which something is led here."""
        self._lease.check_answer()
        return [table.name for table in self._engine.tables() if table.led is None or table.led.ids]

    def table(self, name: str, at: int | None = None) -> TableService:
        """Return a table; `StaleRoute` if nothing of it is led here, and it may be elsewhere."""
        self._lease.check_answer()
        try:
            table = self._engine.table(name) if at is None else self._engine.table_at(name, at)
        except UnknownTable:
            self._engine.metadata.directory.find(name)  # raises if there is no such table anywhere
            raise StaleRoute(f"nothing of {name!r} is led here: look its tablets up, and go there") from None
        return LedTable(LocalTable(self._engine, table), self._lease)

    def table_by_id(self, table_id: str) -> TableService:
        """Return a table by its id; `StaleRoute` if nothing of it is led here, and it may be elsewhere."""
        self._lease.check_answer()
        table = self._engine.open_tables.find(table_id)
        if table is None:
            self._engine.metadata.name_of(table_id)  # raises if there is no such table anywhere
            raise StaleRoute(f"nothing of table {table_id} is led here: look its tablets up, and go there")
        return LedTable(LocalTable(self._engine, table), self._lease)

    def carry_out(self, request: StoreRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with what this server has; what concerns others, too, is refused."""
        if not isinstance(request, _OWN):
            raise RequestError(f"{type(request).__name__} concerns the whole cluster: send it to a master")
        self._lease.check_answer()
        if isinstance(request, (PrepareCompaction, BeginCompaction, CompactCommit)):
            self.table_by_id(request.table_id)  # raises `StaleRoute`
        reply: Any = self._local.carry_out(request, progress)  # type: ignore[misc]
        return reply  # type: ignore[no-any-return]

    def add_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Tell a listener of one tablet, or of all."""
        self._local.add_listener(listener, tablet)

    def remove_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Undo one `add_listener` with the same arguments."""
        self._local.remove_listener(listener, tablet)
