"""The client for asyncio: the same methods, awaited."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
import ebla.aio
from tests.support.remote import Behind, behind

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Behind]:
    with behind(tmp_path) as world:
        yield world


def run(world: Behind, use: Callable[[ebla.aio.AsyncDatabase], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with ebla.aio.connect(world.servers[0].address, timeout_seconds=10.0) as db:
            return await use(db)

    return asyncio.run(main())


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("own", "awaited", "but"),
    [
        (ebla.Table, ebla.aio.AsyncTable, set()),
        (ebla.Scan, ebla.aio.AsyncScan, set()),
        (ebla.Snapshot, ebla.aio.AsyncSnapshot, {"txn"}),
        (ebla.Database, ebla.aio.AsyncDatabase, {"spark"}),
    ],
)
def test_every_method_has_its_awaited_twin(own: type, awaited: type, but: set[str]) -> None:
    assert public(own) - but == public(awaited) - but
    for name in public(awaited) - {"table"} - but:
        method = getattr(own, name)
        if callable(method) and name != "to_batches":
            assert inspect.signature(getattr(awaited, name), follow_wrapped=True).parameters.keys() >= {
                one for one in inspect.signature(method).parameters if one != "self"
            }, name


def test_rows_are_put_read_scanned_and_erased(world: Behind) -> None:
    async def use(db: ebla.aio.AsyncDatabase) -> None:
        table = await db.create_table("t", SCHEMA)
        await asyncio.gather(*(table.put({"k": k, "n": k}) for k in range(50)))
        assert (await table.get(7)) == {"k": 7, "n": 7}
        assert [row["k"] async for row in await table.scan(5, 9)] == [5, 6, 7, 8]
        assert sum([batch.num_rows async for batch in (await table.scan()).to_batches()]) == 50
        assert (await (await table.scan(limit=3)).to_arrow()).num_rows == 3
        assert await table.increment(7, "n", 3) == 10
        await table.erase(7)
        assert await table.count() == 49
        async with await db.snapshot() as snapshot:
            await table.erase_range()
            assert await (await snapshot.table("t")).count() == 49
        assert await db.tables() == ["t"]

    run(world, use)


def test_calls_are_under_way_together_and_the_loop_goes_on(world: Behind) -> None:
    from ebla.rpc.wire.messages import ReadOne

    together = asyncio.Event()
    count = 0

    async def use(db: ebla.aio.AsyncDatabase) -> None:
        loop = asyncio.get_running_loop()

        def hold(handler: Any, message: Any, caller: Any) -> Any:
            nonlocal count
            count += 1
            if count == 5:
                loop.call_soon_threadsafe(together.set)
            asyncio.run_coroutine_threadsafe(together.wait(), loop).result(10)
            return handler(message, caller)

        table = await db.create_table("t", SCHEMA)
        world.tampered[ReadOne] = hold
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(table.get(k, columns=["n"]) for k in range(5))) == [None] * 5

    run(world, use)


def test_errors_are_raised_where_they_are_awaited(world: Behind) -> None:
    async def use(db: ebla.aio.AsyncDatabase) -> None:
        with pytest.raises(ebla.UnknownTable):
            await db.table("no")
        table = await db.create_table("t", SCHEMA)
        with pytest.raises(ebla.UnknownColumn):
            await table.scan(columns=["no"])
        with pytest.raises(TypeError):
            await table.put({"k": 1}, unknown=True)  # type: ignore[call-arg]

    run(world, use)


def test_it_is_there_without_being_imported_by_name() -> None:
    code = "import ebla; assert ebla.aio.connect; import sys; assert 'ebla.tablet' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nobody_at_the_address_is_told(world: Behind) -> None:
    async def main() -> None:
        await ebla.aio.connect("127.0.0.1:1", timeout_seconds=0.3)

    with pytest.raises(ebla.Unavailable):
        asyncio.run(main())


def test_a_scan_that_is_left_early_is_ended(world: Behind) -> None:
    async def use(db: ebla.aio.AsyncDatabase) -> None:
        table = await db.create_table("t", SCHEMA)
        await table.put([{"k": k, "n": k} for k in range(5_000)])
        async for row in await table.scan():
            if row["k"] == 10:
                break
        assert await table.count() == 5_000

    run(world, use)
