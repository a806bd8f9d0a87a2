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
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import pyarrow as pa

from ebla.model.ranges import ALL, KeyRange
from ebla.model.schema import TableSchema
from ebla.model.schema_change import Alteration
from ebla.model.where import Where
from ebla.service.counters import Counters
from ebla.service.reports import DroppedTable, GarbageReport, VerifyReport

Reply = TypeVar("Reply")

Wait: TypeAlias = Literal["durable", "logged", "none"]


# --- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """When to read: at a txn, at a snapshot that is held by name, or at the newest commit.

    With `uncommitted`, also what is not in the log yet.
    """

    txn: int | None = None
    snapshot: str | None = None
    uncommitted: bool = False


NEWEST = Moment()
THIS_VERY_MOMENT = Moment(uncommitted=True)


@dataclass(frozen=True, slots=True)
class Put:
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


@dataclass(frozen=True, slots=True)
class PutCells:
    """Write cells in long form."""

    cells: object
    wait: Wait = "durable"


@dataclass(frozen=True, slots=True)
class Erase:
    """Erase rows, or some columns, cells or families of them."""

    rows: pa.Array
    columns: tuple[str, ...] | None = None
    unchanged_since: int | None = None
    wait: Wait = "durable"


@dataclass(frozen=True, slots=True)
class EraseRange:
    """Erase all rows of a range in one step."""

    key_range: KeyRange
    wait: Wait = "durable"


@dataclass(frozen=True, slots=True)
class Modify:
    """Add to a number, or append to text, bytes or a list; read and written in one commit, repeated until it fits."""

    row: bytes
    column: str
    operation: Literal["increment", "append"]
    operand: Any
    wait: Wait = "durable"


Write: TypeAlias = Put | PutCells | Erase | EraseRange


@dataclass(frozen=True, slots=True)
class ReadRow:
    """Read one row, with all of its columns or some."""

    row: bytes
    columns: Sequence[str] | None = None
    at: Moment = NEWEST
    versions: int = 1


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read rows in the order asked, with a column ``_found``."""

    rows: pa.Array
    columns: Sequence[str] | None = None
    at: Moment = NEWEST


@dataclass(frozen=True, slots=True)
class ScanRows:
    """Read the rows of a range in order.

    `latest` follows newer commits as it goes. `after` is the last row that was given already.
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


# --- a table -------------------------------------------------------------------------------------


class TableRequest(Generic[Reply]):
    """A request to one table that is answered with a `Reply`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Flush(TableRequest[None]):
    """Write everything that is committed to fragments."""


@dataclass(frozen=True, slots=True)
class Compact(TableRequest[None]):
    """Merge all fragments of the table."""


@dataclass(frozen=True, slots=True)
class Split(TableRequest[tuple[str, str]]):
    """Split a tablet, at a row or where it is divided evenly; answered with the ids of the two."""

    row: bytes | None = None
    tablet: str | None = None


@dataclass(frozen=True, slots=True)
class Join(TableRequest[str]):
    """Make one tablet of two neighbours, named by id, or by rows that they have; answered with its id."""

    tablets: tuple[str, str] | None = None
    first: bytes | None = None
    last: bytes | None = None


@dataclass(frozen=True, slots=True)
class DescribeTablets(TableRequest[list[dict[str, Any]]]):
    """Tell id, range, state and sizes of every tablet."""


@dataclass(frozen=True, slots=True)
class DescribeTable(TableRequest[dict[str, Any]]):
    """Tell sizes and counts of the table."""


@dataclass(frozen=True, slots=True)
class ListFiles(TableRequest[list[str]]):
    """Name the fragment files of the table, relative to the store."""


# --- a store -------------------------------------------------------------------------------------


class StoreRequest(Generic[Reply]):
    """A request to a store as a whole that is answered with a `Reply`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CreateTable(StoreRequest[None]):
    """Make a table, cut at these rows."""

    name: str
    schema: TableSchema
    splits: tuple[bytes, ...] = ()
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class DropTable(StoreRequest[None]):
    """Drop a table; unless it is to `purge` at once, it can be brought back as long as it is retained."""

    name: str
    purge: bool = False


@dataclass(frozen=True, slots=True)
class ListDropped(StoreRequest[list[DroppedTable]]):
    """Tell which tables were dropped and can be brought back."""


@dataclass(frozen=True, slots=True)
class UndeleteTable(StoreRequest[None]):
    """Bring back a dropped table, under a name."""

    table_id: str
    name: str


@dataclass(frozen=True, slots=True)
class RenameTable(StoreRequest[None]):
    """Give a table another name."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class CloneTable(StoreRequest[None]):
    """Make a table of all that is committed in another, by reference."""

    origin: str
    name: str


@dataclass(frozen=True, slots=True)
class AlterTable(StoreRequest[None]):
    """Change the schema of a table."""

    name: str
    alteration: Alteration


@dataclass(frozen=True, slots=True)
class UnloadTable(StoreRequest[None]):
    """Take a table offline."""

    name: str


@dataclass(frozen=True, slots=True)
class LoadTable(StoreRequest[None]):
    """Bring a table back online, or load all of it."""

    name: str


@dataclass(frozen=True, slots=True)
class Sync(StoreRequest[int]):
    """Wait until everything up to a txn is safe from any crash; answered with the txn up to which all is."""

    txn: int | None = None


@dataclass(frozen=True, slots=True)
class HoldNewest(StoreRequest[int]):
    """Hold the newest commit, so that it can be read until `LetGo`; answered with its txn."""


@dataclass(frozen=True, slots=True)
class LetGo(StoreRequest[None]):
    """Hold a txn no longer."""

    txn: int


@dataclass(frozen=True, slots=True)
class HoldByName(StoreRequest[int]):
    """Hold the newest commit under a name until `ReleaseName`, or find what is held; answered with its txn."""

    name: str


@dataclass(frozen=True, slots=True)
class ReleaseName(StoreRequest[None]):
    """Hold nothing under a name any longer."""

    name: str


@dataclass(frozen=True, slots=True)
class ListHeld(StoreRequest[dict[str, int]]):
    """Tell what is held by name, with the txns."""


@dataclass(frozen=True, slots=True)
class DescribeStore(StoreRequest[dict[str, Any]]):
    """Tell sizes and counters of the store and of every table."""


@dataclass(frozen=True, slots=True)
class DescribeTables(StoreRequest[dict[str, dict[str, Any]]]):
    """Tell sizes and counts of every table, by name."""


@dataclass(frozen=True, slots=True)
class ReadCounters(StoreRequest[Counters | None]):
    """Tell the numbers that monitoring wants; None where nobody counts."""


@dataclass(frozen=True, slots=True)
class CollectGarbage(StoreRequest[GarbageReport]):
    """Look for files that no table names any more, and unless it is a `dry_run` remove what was so for long enough."""

    dry_run: bool = True


@dataclass(frozen=True, slots=True)
class Verify(StoreRequest[VerifyReport]):
    """Compare METADATA with itself and with every file that it names."""


@dataclass(frozen=True, slots=True)
class Repair(StoreRequest[VerifyReport]):
    """Mend METADATA as far as nothing is lost by it."""


# --- jobs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginJob(StoreRequest[str]):
    """Say that a bulk job is about to write files for a table; answered with the id of the table."""

    job: str
    table: str
    expires_seconds: float


@dataclass(frozen=True, slots=True)
class EndJob(StoreRequest[list[str]]):
    """Remove what nobody names of a job whose outcome is known, but for `keep`; answered with what was removed."""

    job: str
    keep: Collection[str] = ()
