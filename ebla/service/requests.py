"""What a client asks of whoever serves its tables. Values: nothing here is open, and nothing knows who answers.

    rows       Put, PutCells, Erase, EraseRange, Modify      to one table; answered with the txn of the commit
               ReadRow, ReadRows, ScanRows                   of one table, at a moment
    a table    Flush, Compact, Split, Join, ...              `TableRequest`
    a store    CreateTable, Sync, HoldNewest, ...            `StoreRequest`
    jobs       BulkCommit, CompactCommit, Sweep, ...         `JobOrder`, in `job_orders`

Keys are rows by the time they are here: bytes, as `KeyCodec` makes them. Names are checked by whoever serves. The reply
to a request of the last three kinds is the type that it is a request for: ``Split(TableRequest[tuple[str, str]])``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from ebla.model.ranges import ALL, KeyRange
from ebla.model.schema import TableSchema
from ebla.model.schema_change import Alteration
from ebla.model.where import Where
from ebla.service.counters import Counters
from ebla.service.reports import DroppedTable, GarbageReport, VerifyReport

Reply = TypeVar("Reply")

Wait: TypeAlias = Literal["durable", "logged", "none"]

# A client's name and a number that grows from one of its requests to the next: repeated, a request happens once. A name
# is used by one request at a time.
RequestId: TypeAlias = tuple[str, int]


# --- rows ----------------------------------------------------------------------------------------


class Moment(msgspec.Struct, frozen=True):
    """When to read: at a txn, at a snapshot that is held by name, or at the newest commit.

    With `uncommitted`, also what is not in the log yet.
    """

    txn: int | None = None
    snapshot: str | None = None
    uncommitted: bool = False


NEWEST = Moment()
THIS_VERY_MOMENT = Moment(uncommitted=True)


class Put(msgspec.Struct, frozen=True):
    """Write rows: whatever `ebla.rows` takes for rows.

    `unchanged_since` and `if_absent` refuse the whole put with `Conflict`. `schema_version` says under which version of
    the schema the rows were thought up: under another, `SchemaChanged` is raised. Without it they are taken as they
    are read under the schema in force.
    """

    rows: object
    replace: bool = False
    if_absent: bool = False
    unchanged_since: int | None = None
    wait: Wait = "durable"
    schema_version: int | None = None
    request_id: RequestId | None = None


class PutCells(msgspec.Struct, frozen=True):
    """Write cells in long form."""

    cells: object
    wait: Wait = "durable"
    request_id: RequestId | None = None


class Erase(msgspec.Struct, frozen=True):
    """Erase rows, or some columns, cells or families of them."""

    rows: pa.Array
    columns: tuple[str, ...] | None = None
    unchanged_since: int | None = None
    wait: Wait = "durable"
    request_id: RequestId | None = None


class EraseRange(msgspec.Struct, frozen=True):
    """Erase all rows of a range in one step."""

    key_range: KeyRange
    wait: Wait = "durable"
    request_id: RequestId | None = None


class Modify(msgspec.Struct, frozen=True):
    """Add to a number, or append to text, bytes or a list; read and written in one commit, repeated until it fits."""

    row: bytes
    column: str
    operation: Literal["increment", "append"]
    operand: Any
    wait: Wait = "durable"
    request_id: RequestId | None = None


Write: TypeAlias = Put | PutCells | Erase | EraseRange


class ReadRow(msgspec.Struct, frozen=True):
    """Read one row, with all of its columns or some."""

    row: bytes
    columns: Sequence[str] | None = None
    at: Moment = NEWEST
    versions: int = 1


class ReadRows(msgspec.Struct, frozen=True):
    """Read rows in the order asked, with a column ``_found``."""

    rows: pa.Array
    columns: Sequence[str] | None = None
    at: Moment = NEWEST


class ScanRows(msgspec.Struct, frozen=True):
    """Read the rows of a range in order.

    `latest` follows newer commits as it goes. `after` is the last row that was given already. Unless it is `ordered`,
    rows of several servers come as they come.
    """

    key_range: KeyRange = ALL
    columns: Sequence[str] | None = None
    versions: int = 1
    where: Where | None = None
    limit: int | None = None
    reverse: bool = False
    at: Moment = NEWEST
    latest: bool = False
    after: bytes | None = None
    ordered: bool = True


# --- a table -------------------------------------------------------------------------------------


class TableRequest(Generic[Reply]):
    """A request to one table that is answered with a `Reply`."""

    __slots__ = ()


class Flush(msgspec.Struct, TableRequest[None], frozen=True):
    """Write everything that is committed to fragments."""


class Compact(msgspec.Struct, TableRequest[None], frozen=True):
    """Merge all fragments of the table."""


class Split(msgspec.Struct, TableRequest[tuple[str, str]], frozen=True):
    """Split a tablet, at a row or where it is divided evenly; answered with the ids of the two."""

    row: bytes | None = None
    tablet: str | None = None


class Join(msgspec.Struct, TableRequest[str], frozen=True):
    """Make one tablet of two neighbours, named by id, or by rows that they have; answered with its id."""

    tablets: tuple[str, str] | None = None
    first: bytes | None = None
    last: bytes | None = None


class BringTogether(msgspec.Struct, TableRequest[None], frozen=True):
    """Have one server lead tablets, named by id, as those that are to be joined; answered when it does."""

    tablets: tuple[str, ...]


class DescribeTablets(msgspec.Struct, TableRequest[list[dict[str, Any]]], frozen=True):
    """Tell id, range, state and sizes of every tablet."""


class DescribeTable(msgspec.Struct, TableRequest[dict[str, Any]], frozen=True):
    """Tell sizes and counts of the table."""


class ListFiles(msgspec.Struct, TableRequest[list[str]], frozen=True):
    """Name the fragment files of the table, relative to the store."""


# --- a store -------------------------------------------------------------------------------------


class StoreRequest(Generic[Reply]):
    """A request to a store as a whole that is answered with a `Reply`."""

    __slots__ = ()


class CreateTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Make a table, cut at these rows."""

    name: str
    schema: TableSchema
    splits: tuple[bytes, ...] = ()
    is_fixed: bool = False
    replicas: int | None = None  # of a cluster: so many servers keep the log of each tablet; None: as it is set there


class DropTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Drop a table; unless it is to `purge` at once, it can be brought back as long as it is retained."""

    name: str
    purge: bool = False


class ListDropped(msgspec.Struct, StoreRequest[list[DroppedTable]], frozen=True):
    """Tell which tables were dropped and can be brought back."""


class UndeleteTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Bring back a dropped table, under a name."""

    table_id: str
    name: str


class RenameTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Give a table another name."""

    name: str
    new_name: str


class CloneTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Make a table of all that is committed in another, by reference."""

    origin: str
    name: str


class AlterTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Change the schema of a table."""

    name: str
    alteration: Alteration


class SetReplicas(msgspec.Struct, StoreRequest[None], frozen=True):
    """Have so many servers keep the log of each tablet of a table; answered when they do, or that takes too long."""

    name: str
    replicas: int


class RecoverTablet(msgspec.Struct, StoreRequest[str], frozen=True):
    """Give up what only lost replicas of a tablet have, and go on with what is left; answered with what was done.

    The tablet is named by its id, or how it begins; `server` is the one whose replica is gone on with, if it matters.
    Without `accept_loss` it is refused, with what would be lost.
    """

    tablet: str
    accept_loss: bool = False
    server: str | None = None


class UnloadTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Take a table offline; of a cluster, perhaps one tablet of it, named by its id or how that begins."""

    name: str
    tablet: str | None = None


class LoadTable(msgspec.Struct, StoreRequest[None], frozen=True):
    """Bring a table back online, or load all of it; of a cluster, perhaps one tablet of it."""

    name: str
    tablet: str | None = None


class MoveTablet(msgspec.Struct, StoreRequest[None], frozen=True):
    """Have a server lead a tablet; answered when it does. A server is named by its uuid, how it begins, or address."""

    table: str
    tablet: str
    server: str


class Sync(msgspec.Struct, StoreRequest[int], frozen=True):
    """Wait until everything up to a txn is safe from any crash; answered with the txn up to which all is."""

    txn: int | None = None


class HoldNewest(msgspec.Struct, StoreRequest[int], frozen=True):
    """Hold the newest commit, so that it can be read until `LetGo`; answered with its txn."""


class LetGo(msgspec.Struct, StoreRequest[None], frozen=True):
    """Hold a txn no longer."""

    txn: int


class PassTxn(msgspec.Struct, StoreRequest[None], frozen=True):
    """Commit nothing at or below a txn any more; answered when all that is at or below it is committed."""

    txn: int


class HoldByName(msgspec.Struct, StoreRequest[int], frozen=True):
    """Hold the newest commit under a name until `ReleaseName`, or find what is held; answered with its txn.

    Masters of a cluster, which have no commits, are told the `txn`; `Conflict` if some of it may be gone. With
    `expires_seconds` it is held for so long, again from every time that it is asked for.
    """

    name: str
    txn: int | None = None
    expires_seconds: float | None = None


class ReleaseName(msgspec.Struct, StoreRequest[None], frozen=True):
    """Hold nothing under a name any longer."""

    name: str


class ListHeld(msgspec.Struct, StoreRequest[dict[str, int]], frozen=True):
    """Tell what is held by name, with the txns."""


class DescribeStore(msgspec.Struct, StoreRequest[dict[str, Any]], frozen=True):
    """Tell sizes and counters of the store and of every table."""


class DescribeTables(msgspec.Struct, StoreRequest[dict[str, dict[str, Any]]], frozen=True):
    """Tell sizes and counts of every table, by name."""


class ReadCounters(msgspec.Struct, StoreRequest[Counters | None], frozen=True):
    """Tell the numbers that monitoring wants; None where nobody counts."""


class CollectGarbage(msgspec.Struct, StoreRequest[GarbageReport], frozen=True):
    """Look for files that no table names any more, and unless it is a `dry_run` remove what was so for long enough."""

    dry_run: bool = True


class Verify(msgspec.Struct, StoreRequest[VerifyReport], frozen=True):
    """Compare METADATA with itself and with every file that it names."""


class Repair(msgspec.Struct, StoreRequest[VerifyReport], frozen=True):
    """Mend METADATA as far as nothing is lost by it."""


# --- jobs ----------------------------------------------------------------------------------------


class BeginJob(msgspec.Struct, StoreRequest[str], frozen=True):
    """Say that a bulk job is about to write files for a table; answered with the id of the table."""

    job: str
    table: str
    expires_seconds: float
    table_id: str | None = None  # instead of the name: files that a table of this id once wrote, and are brought back


class EndJob(msgspec.Struct, StoreRequest[list[str]], frozen=True):
    """Remove what nobody names of a job whose outcome is known, but for `keep`; answered with what was removed."""

    job: str
    keep: Collection[str] = ()
