"""What a master asks of the durable side, as values, and how operations are written with them.

An **operation** is a generator. It decides on what is in memory, yields one write, is resumed with what became of it,
commits that to memory, and goes on:

    operation  --yield CreateTable(...)-->  driver  --->  METADATA, coordination service
        ^                                     |
        `------- StoredTable, or an error ----'          a crash is an operation that is never resumed

Nothing in it does I/O, so a test drives it step by step, interleaves two of them, fails any write, or stops between any
two steps. `run` is the driver for everybody else.

What a write answers: a `StoredTable`, what is durable now. `ChangeTables` and `ReadTables` have one answer for each
table: its new METADATA, or the `StoredTable` that was found, or a refusal (`RequirementFailed`, `UnknownTable`);
`ReadBounds` has a dictionary, `FindChanged` the ids of tables. A write that raises has not happened, unless it raises
`OutcomeUnknown`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from ebla.errors import EblaError
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata

__all__ = [
    "ChangeTable",
    "ChangeTables",
    "CreateTable",
    "DeleteTable",
    "Durable",
    "ExpireTable",
    "FindChanged",
    "Operation",
    "PurgeTable",
    "ReadBounds",
    "ReadTables",
    "RenameTable",
    "StoredTable",
    "UndeleteTable",
    "Write",
    "run",
]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as it is durably: its configuration, and its METADATA unless it was purged."""

    table_id: str
    config: TableConfig
    metadata: TableMetadata | None

    @property
    def is_purged(self) -> bool:
        """Whether nothing but the id is left of it."""
        return self.config.is_deleted and not self.config.metadata_txnid


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Two durable steps: the tablets are written, where nobody looks; then the table appears with its name."""

    table_id: str
    name: str
    metadata: TableMetadata
    replacing: str | None = None  # the table that has the name, and is deleted in the second step


@dataclass(frozen=True, slots=True)
class ChangeTable:
    """Changes of one table: all of them in one METADATA transaction, or none."""

    table_id: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ChangeTables:
    """One METADATA transaction for each of the tables. They are independent of each other."""

    tables: tuple[ChangeTable, ...]


@dataclass(frozen=True, slots=True)
class RenameTable:
    """Another name, in one step."""

    table_id: str
    name: str


@dataclass(frozen=True, slots=True)
class DeleteTable:
    """The name becomes free and the table a deleted one, in one step."""

    table_id: str
    microseconds: int


@dataclass(frozen=True, slots=True)
class UndeleteTable:
    """A deleted table comes back under a name, in one step."""

    table_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ExpireTable:
    """A deleted table cannot be brought back any more, by any master. Only then may its rows be removed."""

    table_id: str


@dataclass(frozen=True, slots=True)
class PurgeTable:
    """Nothing but the id stays of a deleted table."""

    table_id: str


@dataclass(frozen=True, slots=True)
class FindChanged:
    """No write: which tables are not as they are known, by their configurations; new ones among them."""

    known: Mapping[str, TableConfig]


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """No write: above every txn that each of these runs has given out. Asked when their leases are over."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadTables:
    """Changes nothing: look again what is durable, as others change METADATA too."""

    table_ids: tuple[str, ...]


Write: TypeAlias = (
    CreateTable
    | ChangeTables
    | RenameTable
    | DeleteTable
    | UndeleteTable
    | ExpireTable
    | PurgeTable
    | ReadTables
    | ReadBounds
    | FindChanged
)
Operation: TypeAlias = Generator[Write, Any, Result]


class Durable(Protocol):
    """The durable side."""

    def load(self) -> Iterator[StoredTable]:
        """Yield every table that there is or was, the purged ones too."""

    def write(self, write: Write) -> Any:
        """Carry out a write and return what it answers."""


def run(operation: Operation[Result], durable: Durable) -> Result:
    """Carry out an operation to its end."""
    try:
        write = next(operation)
        while True:
            try:
                answer = durable.write(write)
            except EblaError as error:
                write = operation.throw(error)
            else:
                write = operation.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
