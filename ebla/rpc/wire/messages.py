"""Every message between a client and whoever serves its tables, in one place.

    Inform, ListTables, Locate          who serves, which tables there are, where the tablets of one are
    GetRow, ReadOne, ReadMany           rows by key
    BeginScan, ScanOn, CountRows        rows of a range: a segment at a time, each of which says whether it is the last
    WriteRows, ModifyRow                changes, known by a request id: repeated, they happen once
    CaptureTable                        what a table consists of, for jobs that read its files themselves
    CarryOut                            what is asked of a table or a store as a whole; may take long, see `Outcome`
    NextEvents                          what happened to tablets

Tables are named by id, rows by their encoded keys. Fields named `data` and `keys` are Arrow IPC streams, all else is
msgpack. A field that is not known is refused: both ends have agreed on a version before.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ebla.access.rights import MEMBER, Need, Right, always, of_table
from ebla.model.schema import TableSchema
from ebla.rpc.methods import Asks, Method, Methods
from ebla.service.job_reads import CapturedTablets
from ebla.service.requests import Moment, RequestId, Wait
from ebla.settings import Settings

__all__ = [
    "SERVICE_METHODS",
    "BeginScan",
    "CaptureTable",
    "CarryOut",
    "CountRows",
    "DeriveToken",
    "EndScan",
    "GetRow",
    "Inform",
    "ListTables",
    "Locate",
    "ModifyRow",
    "NextEvents",
    "Outcome",
    "ReadMany",
    "ReadOne",
    "RowAnswer",
    "RowsAnswer",
    "ScanBegun",
    "ScanForm",
    "ScanOn",
    "Segment",
    "ServiceInfo",
    "TableLocation",
    "TabletEvents",
    "TabletLocation",
    "WriteForm",
    "WriteRows",
]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value on the wire."""


# --- who and where -------------------------------------------------------------------------------


class ServiceInfo(Message, frozen=True):
    """Who serves: whether it takes writes, and the settings that requests are held to."""

    is_writable: bool
    settings: Settings
    run: str  # of this process: another one knows nothing of requests under way
    root: str | None = None  # the directory of the store, for jobs that read its files
    masters: tuple[str, ...] = ()  # of a cluster: where all of them are, so that one address is enough to find them
    cluster: str = ""  # the id of the cluster


class Inform(Message, Asks[ServiceInfo], frozen=True):
    """Say what a client must know before it asks for anything."""


class ListTables(Message, Asks[list[str]], frozen=True):
    """Name all tables."""


class TabletLocation(msgspec.Struct, frozen=True, array_like=True):
    """A tablet: the rows from `first` to the next tablet's, and who leads it in which epoch.

    An empty address is whoever was asked.
    """

    id: str
    first: bytes
    epoch: int = 0
    address: str = ""
    is_offline: bool = False  # nobody serves it, and nobody is to


class TableLocation(Message, frozen=True):
    """A table as a client needs it: its tablets in the order of their rows cover all rows."""

    table: str
    name: str
    schema: TableSchema
    tablets: tuple[TabletLocation, ...]


class Locate(Message, Asks[TableLocation], frozen=True):
    """Find a table by the name that it has, and had at a txn; or by its id."""

    name: str | None = None
    at: int | None = None
    table: str | None = None


# --- rows by key ---------------------------------------------------------------------------------


class RowAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A row, None if there is none; the txn of the read, and the schema that was in force."""

    txn: int
    schema_version: int
    row: dict[str, Any] | None


class GetRow(msgspec.Struct, Asks[RowAnswer], frozen=True, array_like=True):
    """Read a row with all its columns at the newest commit."""

    table: str
    row: bytes


class ReadOne(Message, Asks[RowAnswer], frozen=True):
    """Read a row at a moment, with some of its columns or several versions."""

    table: str
    row: bytes
    columns: tuple[str, ...] | None
    at: Moment
    versions: int


class RowsAnswer(Message, frozen=True):
    """The rows of the first `count` keys, in the order asked, and the txn at which to ask for the rest."""

    txn: int
    count: int
    data: memoryview


class ReadMany(Message, Asks[RowsAnswer], frozen=True):
    """Read rows by their keys."""

    table: str
    keys: memoryview
    columns: tuple[str, ...] | None
    at: Moment


# --- rows of a range -----------------------------------------------------------------------------


class ScanForm(Message, frozen=True):
    """What is scanned. `where` is in the language of filters; expressions of pyarrow are evaluated by the client."""

    first: bytes
    last: bytes | None
    columns: tuple[str, ...] | None
    versions: int
    where: str | None
    limit: int | None
    reverse: bool
    at: Moment
    latest: bool
    after: bytes | None


class Segment(Message, frozen=True):
    """Some rows of a scan, in order; `last` is the row of the last one. After `is_last` there are no more."""

    txn: int
    data: memoryview | None
    last: bytes | None
    is_last: bool


class ScanBegun(Message, frozen=True):
    """The txn at which a scan reads, and if they were wanted its first rows."""

    txn: int
    schema_version: int
    segment: Segment | None


class BeginScan(Message, Asks[ScanBegun], frozen=True):
    """Fix the moment of a scan. With a `cursor` its first rows are wanted, too."""

    table: str
    scan: ScanForm
    cursor: str | None


class ScanOn(Message, Asks[Segment], frozen=True):
    """Read the next rows of a scan: what the cursor has next, if it is still there and at that number.

    Otherwise the scan is begun anew: `scan` has its txn, the last row that was given, and what is left of its limit.
    """

    table: str
    scan: ScanForm
    schema_version: int
    cursor: str
    number: int
    bytes_wanted: int


class EndScan(Message, Asks[None], frozen=True):
    """Nobody goes on with a scan."""

    cursor: str


class CountRows(Message, Asks[int], frozen=True):
    """Count the rows of a scan at its txn."""

    table: str
    scan: ScanForm
    schema_version: int


# --- changes -------------------------------------------------------------------------------------


class WriteForm(Message, frozen=True):
    """A change of rows: as `rows`, which are dicts, or as Arrow `data`; as `keys`, or a range, to erase."""

    kind: Literal["put", "cells", "erase", "erase_range"]
    rows: list[dict[str, Any]] | None = None
    data: memoryview | None = None
    replace: bool = False
    if_absent: bool = False
    unchanged_since: int | None = None
    wait: Wait = "durable"
    schema_version: int | None = None
    columns: tuple[str, ...] | None = None
    first: bytes = b""
    last: bytes | None = None


class WriteRows(Message, Asks[int], frozen=True):
    """Commit a change; answered with its txn."""

    table: str
    write: WriteForm
    request_id: RequestId
    seen: int = 0  # the newest txn that the client was told, by any server: the commit comes after it


class ModifyRow(Message, Asks[Any], frozen=True):
    """Change one value by what it is; answered with what it is then."""

    table: str
    row: bytes
    column: str
    operation: Literal["increment", "append"]
    operand: Any
    wait: Wait
    request_id: RequestId
    seen: int = 0


class CaptureTable(Message, Asks[CapturedTablets], frozen=True):
    """Tell what the tablets of a table consist of that are led here: those named, or all."""

    table: str
    txn: int | None
    tablets: tuple[str, ...] | None
    with_memory: bool


# --- tables and stores as a whole ----------------------------------------------------------------


class Outcome(Message, frozen=True):
    """How far a request has come: how many parts are done of how many; its reply, if it is done.

    One that is not is asked for again, with the same id. Its reply is kept until the client's next request of that id's
    lane.
    """

    is_done: bool
    done: int = 0
    total: int = 0
    reply: msgspec.Raw = msgspec.Raw(b"\xc0")


class CarryOut(Message, Asks[Outcome], frozen=True):
    """Do something with a table, or with the store: a request of `ebla.service`, by the name of its class.

    `OutcomeUnknown` if it was sent to a process that has ended since.
    """

    request_id: RequestId
    table: str | None
    name: str
    body: msgspec.Raw
    run: str | None = None  # if it was sent before: the `run` of whoever got it


class TabletEvents(Message, frozen=True):
    """What happened since, each as its kind and its fields; `next` is the number to ask with the next time."""

    next: int
    events: tuple[tuple[str, msgspec.Raw], ...]


class NextEvents(Message, Asks[TabletEvents], frozen=True):
    """Tell what happened to tablets from a number on; None asks for the number of what comes next."""

    number: int | None


class DeriveToken(Message, Asks[str], frozen=True):
    """Sign a token that holds for a while, for what the caller may do; with `grants` for no more than those."""

    seconds: float
    grants: dict[str, str] | None = None


_READS, _WRITES = of_table(Right.READ), of_table(Right.WRITE)

SERVICE_METHODS = Methods(
    [
        Method(Inform, is_repeatable=True, needs=always(MEMBER)),
        Method(ListTables, is_repeatable=True, needs=always(MEMBER)),
        Method(Locate, is_repeatable=True, needs=lambda request: (Need(Right.READ, request.table, request.name),)),
        Method(GetRow, is_repeatable=True, is_quick=True, needs=_READS),
        Method(ReadOne, is_repeatable=True, needs=_READS),
        Method(ReadMany, is_repeatable=True, needs=_READS),
        Method(BeginScan, is_repeatable=True, needs=_READS),
        Method(ScanOn, is_repeatable=True, needs=_READS),
        Method(EndScan, is_repeatable=True, is_quick=True, needs=always(MEMBER)),
        Method(CountRows, is_repeatable=True, needs=_READS),
        Method(WriteRows, needs=_WRITES),
        Method(ModifyRow, needs=_WRITES),
        Method(CaptureTable, is_repeatable=True, needs=_READS),
        Method(CarryOut, needs=always(MEMBER)),  # and what `service_rights` says of the request in it
        Method(NextEvents, is_repeatable=True, needs=always(Need(Right.READ))),
        Method(DeriveToken, is_repeatable=True, needs=always(MEMBER)),
    ]
)
