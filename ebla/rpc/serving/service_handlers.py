"""A service behind RPC: every message of `wire.messages`, answered by whoever implements `ebla.service`.

    handlers = ServiceHandlers(service)
    RpcServer(SERVICE_METHODS, handlers.by_type(), ...)

Bytes of strangers are checked here and below: messages by their types, rows and keys as untrusted Arrow streams, names
and conditions by the service. `locate` says where the tablets of a table are; without it, all of them are here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from ebla.access.rights import Need, Right
from ebla.errors import RequestError, SchemaChanged
from ebla.rpc.caller import Caller
from ebla.rpc.server_stream import Handler
from ebla.rpc.serving.cursors import Cursors
from ebla.rpc.serving.event_log import EventLog
from ebla.rpc.serving.service_rights import needs_of
from ebla.rpc.serving.tables_served import TablesServed
from ebla.rpc.serving.works import Joined, Works, wait_for
from ebla.rpc.wire.arrow_bytes import keys_from_bytes, rows_to_bytes
from ebla.rpc.wire.forms import decode_request, encode_reply, scan_of, write_of
from ebla.rpc.wire.messages import (
    BeginScan,
    CaptureTable,
    CarryOut,
    CountRows,
    DeriveToken,
    EndScan,
    GetRow,
    Inform,
    ListTables,
    Locate,
    ModifyRow,
    NextEvents,
    Outcome,
    ReadMany,
    ReadOne,
    RowAnswer,
    RowsAnswer,
    ScanBegun,
    ScanForm,
    ScanOn,
    Segment,
    ServiceInfo,
    TableLocation,
    TabletLocation,
    WriteRows,
)
from ebla.rpc.wire.values import packed, packed_row
from ebla.service.job_reads import CapturedTablets, CaptureTablets
from ebla.service.requests import Modify, Moment, ReadRow, ReadRows, StoreRequest, TableRequest
from ebla.service.service import RowStream, Service, TableService

__all__ = ["ServiceHandlers"]

FIRST_SEGMENT_BYTES = 64 << 10
SEGMENT_BYTES_MAX = 32 << 20
# Rows by key are answered in pieces of about this size.
MANY_BYTES = 16 << 20
# So long a client waits for work at a time; then it is told how far it has come.
WORK_SECONDS = 5.0

_Located = Callable[[TableService], Sequence[TabletLocation]]


class ServiceHandlers:
    """Answers the messages of clients. Safe to use from several threads."""

    def __init__(
        self,
        service: Service,
        locate: _Located | None = None,
        root: str | None = None,
        masters: Callable[[], Sequence[str]] = tuple,
        cluster: str = "",
        observe: Callable[[int], None] | None = None,
    ) -> None:
        """`root` is the directory of the store, `masters` tells the addresses of all masters of a `cluster`.

        `observe` makes later txns greater than one that a client was told by another server.
        """
        # Set once.
        self._service = service
        self._locate = locate or _all_here
        self._root = root
        self._masters = masters
        self._cluster = cluster
        self._observe = observe
        self._run = uuid.uuid4().hex
        self._tables = TablesServed(service)
        self._cursors = Cursors()
        self._joined = Joined()
        self._works = Works()
        self._events = EventLog(service)

    def by_type(self) -> dict[type, Handler]:
        """Return the handlers, for an `RpcServer`."""
        return {
            Inform: self._inform,
            ListTables: self._list_tables,
            Locate: self._located,
            GetRow: self._get_row,
            ReadOne: self._read_one,
            ReadMany: self._read_many,
            BeginScan: self._begin_scan,
            ScanOn: self._scan_on,
            EndScan: lambda request, caller: self._cursors.end(request.cursor),
            CountRows: self._count_rows,
            WriteRows: self._write,
            ModifyRow: self._modify,
            CaptureTable: self._capture,
            CarryOut: self._carry_out,
            NextEvents: lambda request, caller: self._events.since(request.number),
            DeriveToken: _derive_token,
        }

    def close(self) -> None:
        """Let go of scans under way."""
        self._cursors.close()

    def name_of(self, table_id: str) -> str:
        """Return the name that the table of an id has now: rights go by it."""
        return self._tables.by_id(table_id).name

    # --- who and where ---

    def _list_tables(self, request: ListTables, caller: Caller) -> list[str]:
        access = caller.access
        return [name for name in self._service.tables() if access is None or access.may(Right.READ, name)]

    def _inform(self, request: Inform, caller: Caller) -> ServiceInfo:
        self._service.check_open()
        masters = tuple(self._masters())
        service = self._service
        return ServiceInfo(service.is_writable, service.settings, self._run, self._root, masters, self._cluster)

    def _located(self, request: Locate, caller: Caller) -> TableLocation:
        table_id, table = self._tables.find(request.name, request.at, request.table)
        if caller.access is not None:
            caller.access.check((Need(Right.READ, name=table.name),))  # it may have had another name at that txn
        return TableLocation(table_id, table.name, table.schema, tuple(self._locate(table)))

    # --- rows by key ---

    def _get_row(self, request: GetRow, caller: Caller) -> RowAnswer:
        table = self._tables.by_id(request.table)
        row = table.get_encoded(request.row)
        version = table.schema.version
        if row is None:
            return RowAnswer(0, version, None)
        return RowAnswer(row.txn, version, packed_row(row))  # type: ignore[arg-type]

    def _read_one(self, request: ReadOne, caller: Caller) -> RowAnswer:
        table = self._tables.by_id(request.table)
        read = table.read_row(ReadRow(request.row, request.columns, request.at, request.versions))
        row = None if read.row is None else packed_row(read.row)
        return RowAnswer(read.txn, read.schema_version, row)  # type: ignore[arg-type]

    def _read_many(self, request: ReadMany, caller: Caller) -> RowsAnswer:
        table = self._tables.by_id(request.table)
        keys = keys_from_bytes(request.keys)
        at = request.at
        if at.txn is None and at.snapshot is None:
            # The rest of the keys is read at the same moment, should they be too many for one answer.
            at = Moment(table.scan(scan_of(_NOTHING)).txn)
        rows = table.read_rows(ReadRows(keys, request.columns, at))
        count = _fitting(rows)
        return RowsAnswer(at.txn or 0, count, rows_to_bytes(rows.slice(0, count)))

    # --- rows of a range ---

    def _begin_scan(self, request: BeginScan, caller: Caller) -> ScanBegun:
        table = self._tables.by_id(request.table)
        stream = table.scan(scan_of(request.scan))
        txn, version = stream.txn, stream.projection.schema.version
        if request.cursor is None:
            return ScanBegun(txn, version, None)
        segment = self._cursors.read(table, request.cursor, 0, FIRST_SEGMENT_BYTES, lambda: stream, whole=False)
        return ScanBegun(txn, version, segment)

    def _scan_on(self, request: ScanOn, caller: Caller) -> Segment:
        table = self._tables.by_id(request.table)
        wanted = min(max(1, request.bytes_wanted), SEGMENT_BYTES_MAX)
        return self._cursors.read(
            table, request.cursor, request.number, wanted, lambda: self._under(table, request), whole=True
        )

    def _count_rows(self, request: CountRows, caller: Caller) -> int:
        stream = self._under(self._tables.by_id(request.table), request)
        return stream.count()

    def _under(self, table: TableService, request: ScanOn | CountRows) -> RowStream:
        """Begin a scan under the schema that the client knows, or not at all."""
        stream = table.scan(scan_of(request.scan))
        if stream.projection.schema.version != request.schema_version:
            raise SchemaChanged(f"the schema of {table.name!r} was changed since the scan began: begin it again")
        return stream

    # --- changes ---

    def _write(self, request: WriteRows, caller: Caller) -> int:
        table = self._tables.by_id(request.table)
        if self._observe is not None:
            self._observe(request.seen)
        write = write_of(request.write, request.request_id)
        txn: int = self._joined.once(request.request_id, lambda: table.write(write), caller.left_seconds)
        return txn

    def _modify(self, request: ModifyRow, caller: Caller) -> Any:
        table = self._tables.by_id(request.table)
        if self._observe is not None:
            self._observe(request.seen)
        modify = Modify(
            request.row, request.column, request.operation, request.operand, request.wait, request.request_id
        )
        return packed(self._joined.once(request.request_id, lambda: table.modify(modify), caller.left_seconds))

    # --- a table, a store ---

    def _capture(self, request: CaptureTable, caller: Caller) -> CapturedTablets:
        table = self._tables.by_id(request.table)
        return table.carry_out(CaptureTablets(request.txn, request.tablets, request.with_memory))

    def _carry_out(self, request: CarryOut, caller: Caller) -> Outcome:
        wanted = decode_request(request.name, request.body)
        lane, number = request.request_id
        if caller.access is not None:
            caller.access.check(needs_of(wanted, request.table), request.name)
            lane = f"{caller.access.who}: {lane}"  # nobody is told what another has asked for
        is_repeat = request.run is not None and request.run != self._run
        work = self._works.begin((lane, number), is_repeat, lambda progress: self._done(request, wanted, progress))
        if not wait_for(work, min(WORK_SECONDS, caller.left_seconds / 2)):
            return Outcome(False, *work.progress)
        return Outcome(True, *work.progress, encode_reply(wanted, work.outcome.result()))

    def _done(self, request: CarryOut, wanted: TableRequest[Any] | StoreRequest[Any], progress: Any) -> Any:
        if isinstance(wanted, TableRequest) and request.table is not None:
            return self._tables.by_id(request.table).carry_out(wanted, progress)
        if isinstance(wanted, StoreRequest) and request.table is None:
            try:
                return self._service.carry_out(wanted, progress)
            finally:
                self._tables.forget()
        raise RequestError(f"{request.name} is sent to {'a table' if isinstance(wanted, TableRequest) else 'a store'}")


def _derive_token(request: DeriveToken, caller: Caller) -> str:
    if caller.access is None:
        raise RequestError("whoever serves here has no users (--auth): nobody needs a token")
    return caller.access.derived(request.seconds, request.grants)


def _all_here(table: TableService) -> Sequence[TabletLocation]:
    return (TabletLocation(table.id, b""),)


def _fitting(rows: pa.Table) -> int:
    """Return how many of these rows make about as much as one answer should have; one at least."""
    size: int = rows.nbytes
    count: int = rows.num_rows
    return count if size <= MANY_BYTES else max(1, count * MANY_BYTES // size)


# A scan of no rows: its txn is the moment.
_NOTHING = ScanForm(b"", b"", (), 1, None, None, False, Moment(), False, None)
