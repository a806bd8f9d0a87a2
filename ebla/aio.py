"""`ebla.aio`: the client for asyncio, with the same methods.

    async with ebla.aio.connect("127.0.0.1:7070") as db:
        users = await db.table("users")
        await users.put({"user": "ada", "age": 36})
        async for row in await users.scan(prefix="a"):
            ...

Every call runs in a thread of this client's own, and the loop goes on meanwhile; calls that are made together are under
way together, on one connection for each server. What a method takes, returns and raises is said where it stands, at
`ebla.Database`, `ebla.Table`, `ebla.Scan` and `ebla.Snapshot`. A task that is cancelled waits no longer; what it has
asked for may still happen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial, update_wrapper
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import pyarrow as pa

from ebla.client.database import Database
from ebla.client.remote.connecting import connect as connect_now
from ebla.client.remote.remote_service import TIMEOUT_SECONDS
from ebla.client.scan import DICT_ROWS, Position, Scan
from ebla.client.snapshot import Snapshot
from ebla.client.table import Table
from ebla.model.schema import TableSchema

__all__ = ["AsyncDatabase", "AsyncScan", "AsyncSnapshot", "AsyncTable", "connect"]

# So many calls of one client are under way at once; more wait for their turn.
THREADS_MAX = 64

P = ParamSpec("P")
R = TypeVar("R")
Held = TypeVar("Held")
Twin = TypeVar("Twin", bound=Callable[..., Any])


class _Async(Generic[Held]):
    """Something of the client, with the threads that its calls run in."""

    def __init__(self, held: Held, threads: Executor) -> None:
        # Set once.
        self._held = held
        self._threads = threads

    def __repr__(self) -> str:
        return f"<ebla.aio of {self._held!r}>"

    async def _run(self, call: Callable[..., R], *given: Any, **named: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *given, **named))


def _awaited(
    method: Callable[Concatenate[Held, P], R],
) -> Callable[Concatenate[_Async[Held], P], Coroutine[Any, Any, R]]:
    """Return a method that does what another does, and is awaited."""

    async def awaited(self: _Async[Held], /, *given: P.args, **named: P.kwargs) -> R:
        return await self._run(method, self._held, *given, **named)

    update_wrapper(awaited, method)
    return awaited


def _as(own: Callable[..., object]) -> Callable[[Twin], Twin]:
    """Have a method say that it takes what another one takes."""

    def told(twin: Twin) -> Twin:
        doc = twin.__doc__
        update_wrapper(twin, own)
        twin.__doc__ = doc
        return twin

    return told


class AsyncScan(_Async[Scan]):
    """Rows of a table in key order, at one txn: iterate it with ``async for``, or await one of its forms."""

    @property
    def txn(self) -> int:
        """The txn of the rows."""
        return self._held.txn

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the answer."""
        return self._held.schema

    @property
    def position(self) -> Position:
        """Where to go on later with `resume`."""
        return self._held.position

    to_arrow = _awaited(Scan.to_arrow)
    to_pandas = _awaited(Scan.to_pandas)
    to_polars = _awaited(Scan.to_polars)
    count = _awaited(Scan.count)

    async def to_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield Arrow record batches of bounded size, in key order."""
        async with self._taken(self._held.to_batches()) as batches:
            async for batch in self._each(batches, 1):
                yield batch

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        async with self._taken(iter(self._held)) as rows:
            async for row in self._each(rows, DICT_ROWS):
                yield row

    async def _each(self, items: Iterator[R], at_once: int) -> AsyncIterator[R]:
        while found := await self._run(lambda: list(islice(items, at_once))):
            for item in found:
                yield item

    @asynccontextmanager
    async def _taken(self, items: Iterator[R]) -> AsyncIterator[Iterator[R]]:
        """Give an iterator, and end it when it is not used any more."""
        try:
            yield items
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                await self._run(close)


class AsyncTable(_Async[Table]):
    """One table of a database."""

    @property
    def name(self) -> str:
        """The name of the table, as far as this client has heard."""
        return self._held.name

    @property
    def schema(self) -> TableSchema:
        """The schema in force, as far as this client has heard."""
        return self._held.schema

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns, in order."""
        return self._held.key_names

    put = _awaited(Table.put)
    put_cells = _awaited(Table.put_cells)
    erase = _awaited(Table.erase)
    erase_many = _awaited(Table.erase_many)
    erase_range = _awaited(Table.erase_range)
    increment = _awaited(Table.increment)
    append = _awaited(Table.append)
    transact = _awaited(Table.transact)
    get = _awaited(Table.get)
    get_many = _awaited(Table.get_many)
    count = _awaited(Table.count)
    flush = _awaited(Table.flush)
    compact = _awaited(Table.compact)
    split = _awaited(Table.split)
    join = _awaited(Table.join)
    tablets = _awaited(Table.tablets)
    stats = _awaited(Table.stats)
    files = _awaited(Table.files)

    @_as(Table.scan)
    async def scan(self, *given: Any, **named: Any) -> AsyncScan:
        """Begin to read a range, as `Table.scan` does; the rows are read when they are asked for."""
        return AsyncScan(await self._run(self._held.scan, *given, **named), self._threads)


class AsyncSnapshot(_Async[Snapshot]):
    """The whole database as it was at one txn."""

    @property
    def txn(self) -> int:
        """The txn that it shows."""
        return self._held.txn

    async def table(self, name: str) -> AsyncTable:
        """Return a table as it was at the snapshot."""
        return AsyncTable(await self._run(self._held.table, name), self._threads)

    close = _awaited(Snapshot.close)
    release = _awaited(Snapshot.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncDatabase(_Async[Database]):
    """A cluster, or a store that another process serves. Close it, or use it with ``async with``."""

    def __init__(self, database: Database) -> None:
        self._own_threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="ebla-aio")
        super().__init__(database, self._own_threads)

    @property
    def read_only(self) -> bool:
        """Whether no writes are taken."""
        return self._held.read_only

    tables = _awaited(Database.tables)
    drop_table = _awaited(Database.drop_table)
    dropped_tables = _awaited(Database.dropped_tables)
    unload_table = _awaited(Database.unload_table)
    move_tablet = _awaited(Database.move_tablet)
    recover_tablet = _awaited(Database.recover_tablet)
    load_table = _awaited(Database.load_table)
    add_listener = _awaited(Database.add_listener)
    remove_listener = _awaited(Database.remove_listener)
    sync = _awaited(Database.sync)
    snapshots = _awaited(Database.snapshots)
    gc = _awaited(Database.gc)
    verify = _awaited(Database.verify)
    repair = _awaited(Database.repair)
    stats = _awaited(Database.stats)
    metrics = _awaited(Database.metrics)

    async def table(self, name: str) -> AsyncTable:
        """Return the table of that name."""
        return await self._table(self._held.table, name)

    @_as(Database.create_table)
    async def create_table(self, *given: Any, **named: Any) -> AsyncTable:
        """Make a table."""
        return await self._table(self._held.create_table, *given, **named)

    @_as(Database.undelete_table)
    async def undelete_table(self, *given: Any, **named: Any) -> AsyncTable:
        """Bring back a table that was dropped."""
        return await self._table(self._held.undelete_table, *given, **named)

    @_as(Database.rename_table)
    async def rename_table(self, *given: Any, **named: Any) -> AsyncTable:
        """Give a table another name."""
        return await self._table(self._held.rename_table, *given, **named)

    @_as(Database.clone_table)
    async def clone_table(self, *given: Any, **named: Any) -> AsyncTable:
        """Make a table of another, by reference."""
        return await self._table(self._held.clone_table, *given, **named)

    @_as(Database.alter_table)
    async def alter_table(self, *given: Any, **named: Any) -> AsyncTable:
        """Change the schema of a table."""
        return await self._table(self._held.alter_table, *given, **named)

    async def snapshot(self, name: str | None = None) -> AsyncSnapshot:
        """Return the whole database as it is now."""
        return AsyncSnapshot(await self._run(self._held.snapshot, name), self._threads)

    async def close(self) -> None:
        """Let go of all connections. Closing twice is fine."""
        await asyncio.get_running_loop().run_in_executor(None, self._held.close)
        self._own_threads.shutdown(wait=False)

    async def _table(self, call: Callable[..., Table], *given: Any, **named: Any) -> AsyncTable:
        return AsyncTable(await self._run(call, *given, **named), self._threads)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Connecting(Awaitable[AsyncDatabase]):
    """A connection that is being made: await it, or enter it."""

    def __init__(self, connecting: Callable[[], Database]) -> None:
        self._connecting = connecting
        self._database: AsyncDatabase | None = None

    async def _connected(self) -> AsyncDatabase:
        self._database = AsyncDatabase(await asyncio.to_thread(self._connecting))
        return self._database

    def __await__(self) -> Generator[Any, None, AsyncDatabase]:
        return self._connected().__await__()

    async def __aenter__(self) -> AsyncDatabase:
        return await self._connected()

    async def __aexit__(self, *_: object) -> None:
        assert self._database is not None, "it was entered"
        await self._database.close()


def connect(
    address: str | os.PathLike[str] | Sequence[str],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    token: str | Callable[[], str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
) -> _Connecting:
    """Connect as `ebla.connect` does: ``db = await connect(...)``, or ``async with connect(...) as db``."""
    return _Connecting(partial(connect_now, address, timeout_seconds=timeout_seconds, token=token, tls_ca=tls_ca))
