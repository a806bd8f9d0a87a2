"""Whoever serves tables: the store in this process, or a cluster. Clients know these two protocols and nothing below.

    Database --> Service --> TableService <-- Table
                   |
                   +-- LocalService: the engine in this process (ebla.tablet.serve)
                   +-- the same behind RPC, in a cluster

One contract suite, ``tests/contract/test_service_contract.py``, says what every implementation does. On this side of
the seam are the checks of what strangers send, admission in groups, the row cache, and everything that is repeated
until it fits: `if_absent`, increments, erasures of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from ebla.errors import Closed
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.schema import TableSchema
from ebla.rows.row import Row
from ebla.service.listener import TabletListener
from ebla.service.requests import Modify, ReadRow, ReadRows, Reply, ScanRows, StoreRequest, TableRequest, Write
from ebla.settings import Settings

__all__ = ["SYSTEM_TABLES", "Progress", "RowRead", "RowStream", "Service", "TableService"]

Progress: TypeAlias = Callable[[int, int], None]

# Tables that show what a store knows of itself. They are read like others, and have no files.
SYSTEM_TABLES = frozenset({"META", "sys.tables", "sys.tablets", "sys.servers"})


class RowRead(msgspec.Struct, frozen=True):
    """One row that was read, None if there is none; the txn of the read, and the schema that was in force."""

    txn: int
    row: Row | None
    schema_version: int


class RowStream(Protocol):
    """The answer to a scan: rows in order, as often as they are asked for."""

    @property
    def projection(self) -> Projection:
        """How the answer looks."""

    @property
    def txn(self) -> int:
        """The txn that is read; of a scan that follows newer commits, the newest that it has read."""

    @property
    def batch_rows(self) -> int:
        """How many rows a batch should have at most."""

    def tables(self, *, whole: bool) -> Iterator[pa.Table]:
        """Yield the rows as Arrow tables, none of them empty. `whole` says that all will be taken."""

    def few_rows(self) -> list[tuple[bytes, dict[str, Any]]] | None:
        """Return all rows as dicts, each with its encoded key, if they are few and quickly at hand; else None."""

    def count(self) -> int:
        """Return the number of rows, reading no more than it takes to tell."""


class TableService(Protocol):
    """One table, whoever serves it. Safe to use from several threads."""

    @property
    def id(self) -> str:
        """The id of the table, which it keeps under every name."""

    @property
    def name(self) -> str:
        """The name that the table has now."""

    @property
    def schema(self) -> TableSchema:
        """The schema in force."""

    @property
    def codec(self) -> KeyCodec:
        """How keys become rows, by the schema in force."""

    def get(self, key: object) -> Row | None:
        """Return a row with all its columns at the newest commit, by its key as a user gives it.

        It is the question that is asked most often, so it goes the shortest way; `read_row` answers all others.
        """

    def get_encoded(self, row: bytes) -> Row | None:
        """Do what `get` does, by the row that the key is encoded as."""

    def read_row(self, request: ReadRow) -> RowRead:
        """Read one row at a moment."""

    def read_rows(self, request: ReadRows) -> pa.Table:
        """Read many rows at a moment."""

    def scan(self, request: ScanRows) -> RowStream:
        """Begin to read a range; its moment is fixed now, unless it follows newer commits."""

    def write(self, request: Write) -> int:
        """Commit a change, and return its txn."""

    def modify(self, request: Modify) -> Any:
        """Change one value by what it is, and return what it is then."""

    def carry_out(self, request: TableRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with the table as a whole."""


class Service(Protocol):
    """A store or a cluster. Safe to use from several threads."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes writes."""

    @property
    def settings(self) -> Settings:
        """The settings that requests are held to."""

    def closed(self) -> Closed:
        """Return the error for whoever comes when it is closed."""

    def check_open(self) -> None:
        """Raise `Closed` if it was closed, or belongs to another process."""

    def tables(self) -> Sequence[str]:
        """Return the names of all tables, sorted."""

    def table(self, name: str, at: int | None = None) -> TableService:
        """Return a table; `UnknownTable` if there is none of that name, or another had the name at that txn."""

    def table_by_id(self, table_id: str) -> TableService:
        """Return a table by its id; `UnknownTable` if there is none."""

    def carry_out(self, request: StoreRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with the store as a whole."""

    def add_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Tell a listener of one tablet, or of all."""

    def remove_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Undo one `add_listener` with the same arguments."""

    def close(self) -> None:
        """Make everything durable and let go of it. Closing twice is fine."""
