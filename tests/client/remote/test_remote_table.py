"""A table that others serve: routes, repeated requests, scans that go on after a failure."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
from ebla.direct.clusters import remote_of
from ebla.rpc.caller import Caller
from ebla.rpc.server_stream import Handler
from ebla.rpc.wire.messages import BeginScan, GetRow, Locate, ModifyRow, ReadMany, ScanOn, WriteRows
from tests.support.remote import Behind, behind

SCHEMA = ebla.Schema(
    key={"k": "int64"}, groups=[ebla.Group("g", columns={"n": "int64", "s": "string"}, max_versions=9)]
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Behind]:
    with behind(tmp_path) as world:
        yield world


@pytest.fixture
def db(world: Behind) -> Iterator[ebla.Database]:
    with world.connect() as db:
        yield db


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    return db.create_table("t", SCHEMA)


def spread_out(world: Behind, table: ebla.Table, *keys: int) -> None:
    """Say that the tablets which begin at these keys are on the second and the first server in turn."""
    codec = table._service.codec
    world.cuts = [(b"", 0), *((codec.encode(key), 1 - at % 2) for at, key in enumerate(keys))]
    table._service.locate()  # type: ignore[attr-defined]
    world.asked.clear()


class Fails:
    """Fails every so many times, before or after the request was carried out."""

    def __init__(self, every: int, error: type[ebla.EblaError], *, after: bool = False) -> None:
        self.count, self.every, self.error, self.after = 0, every, error, after

    def __call__(self, handler: Handler, message: Any, caller: Caller) -> Any:
        self.count += 1
        if self.count % self.every:
            return handler(message, caller)
        if self.after:
            handler(message, caller)
        raise self.error("as the test wants it")


# --- what a request costs ------------------------------------------------------------------------


def test_a_get_by_a_cached_route_is_one_request(world: Behind, table: ebla.Table) -> None:
    table.put({"k": 1, "n": 1})
    world.asked.clear()
    assert table.get(1) is not None
    assert world.asked == [(0, "GetRow")]
    table.put({"k": 2, "n": 2})
    assert world.asked == [(0, "GetRow"), (0, "WriteRows")]


def test_a_short_scan_is_one_request(world: Behind, table: ebla.Table) -> None:
    table.put([{"k": k, "n": k} for k in range(5)])
    world.asked.clear()
    assert [row["k"] for row in table.scan(limit=3)] == [0, 1, 2]
    assert world.asked == [(0, "BeginScan")]


# --- repeating -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ebla.Unavailable, ebla.OutcomeUnknown, ebla.TimedOut, ebla.StaleRoute])
def test_a_put_whose_answer_was_lost_happens_once(world: Behind, table: ebla.Table, error: type) -> None:
    world.tampered[WriteRows] = Fails(2, error, after=True)
    txns = [table.put({"k": k, "n": k}) for k in range(6)]
    assert sorted(set(txns)) == txns
    assert table.count() == 6
    assert sum(len(row["n"]) for row in table.scan(versions=9)) == 6, "each has one version"


def test_a_conditional_put_whose_answer_was_lost_is_no_conflict_with_itself(world: Behind, table: ebla.Table) -> None:
    world.tampered[WriteRows] = fails = Fails(2, ebla.Unavailable, after=True)
    fails.count = 1
    txn = table.put({"k": 1, "n": 1}, if_absent=True)
    fails.count = 1
    assert table.put({"k": 1, "n": 2}, if_unchanged_since=txn) > txn
    fails.count = 1
    table.erase(1, ["s"])
    with pytest.raises(ebla.Conflict):
        table.put({"k": 1, "n": 3}, if_absent=True)


def test_an_increment_whose_answer_was_lost_is_counted_once_and_told(world: Behind, table: ebla.Table) -> None:
    world.tampered[ModifyRow] = Fails(2, ebla.OutcomeUnknown, after=True)
    assert [table.increment(1, "n", 5) for _ in range(6)] == [5, 10, 15, 20, 25, 30]


def test_a_table_whose_creation_is_in_doubt_is_told_so(world: Behind, db: ebla.Database) -> None:
    from ebla.rpc.wire.messages import CarryOut

    world.tampered[CarryOut] = Fails(1, ebla.OutcomeUnknown, after=True)
    with pytest.raises(ebla.OutcomeUnknown):
        db.create_table("t", SCHEMA)
    del world.tampered[CarryOut]
    assert db.tables() == ["t"]


def test_what_keeps_failing_is_told_when_the_time_is_over(world: Behind, table: ebla.Table) -> None:
    world.tampered[GetRow] = Fails(1, ebla.Unavailable)
    with world.connect(timeout_seconds=0.3) as db, pytest.raises(ebla.Unavailable, match="as the test wants it"):
        db.table("t").get(1)


@pytest.mark.parametrize("error", [ebla.TableUnloaded, ebla.Corruption, ebla.RequestError])
def test_what_would_fail_again_is_told_at_once(world: Behind, table: ebla.Table, error: Any) -> None:
    def fail(handler: Handler, message: Any, caller: Caller) -> Any:
        raise error("f", "broken") if error is ebla.Corruption else error("no")

    world.tampered[GetRow] = fail
    world.asked.clear()
    with pytest.raises(error):
        table.get(1)
    assert world.asked == [(0, "GetRow")]


# --- routes --------------------------------------------------------------------------------------


def test_rows_go_to_the_servers_of_their_tablets(world: Behind, table: ebla.Table) -> None:
    spread_out(world, table, 10, 20)
    table.put([{"k": k, "n": k} for k in range(30)])
    assert sorted(world.asked) == [(0, "WriteRows"), (1, "WriteRows")]
    world.asked.clear()
    table.put(pa.table({"k": [11, 12], "n": [11, 12]}))
    table.get(15)
    table.erase(16)
    table.increment(17, "n")
    assert world.asked == [(1, "WriteRows"), (1, "GetRow"), (1, "WriteRows"), (1, "ModifyRow")]
    world.asked.clear()
    assert [row["k"] for row in table.scan()] == [k for k in range(30) if k != 16]
    assert {server for server, _ in world.asked} == {0, 1}
    assert [row["k"] for row in table.scan(5, 25, reverse=True)] == [k for k in range(24, 4, -1) if k != 16]
    assert table.count() == 29
    assert table.count(where="n > 20") == 9
    assert table.scan(8, 22, limit=4).to_arrow().column("k").to_pylist() == [8, 9, 10, 11]
    keys = [25, 3, 16, 12, 3]
    found = table.get_many(keys)
    assert found.column("k").to_pylist() == keys
    assert found.column("_found").to_pylist() == [True, True, False, True, True]


def test_a_range_is_erased_on_every_server(world: Behind, table: ebla.Table) -> None:
    table.put([{"k": k, "n": k} for k in range(30)])
    spread_out(world, table, 10, 20)
    table.erase_range(5, 25)
    assert sorted(world.asked) == [(0, "WriteRows"), (0, "WriteRows"), (1, "WriteRows")]
    assert [row["k"] for row in table.scan()] == [*range(5), *range(25, 30)]
    table.erase_many([1, 26])
    assert table.count() == 8


def test_a_condition_on_rows_of_several_servers_is_refused_and_nothing_is_written(
    world: Behind, table: ebla.Table
) -> None:
    spread_out(world, table, 10)
    with pytest.raises(ebla.RequestError, match="2 servers"):
        table.put([{"k": 1, "n": 1}, {"k": 11, "n": 1}], if_absent=True)
    assert table.count() == 0


def test_a_stale_route_is_corrected_and_the_request_carried_out_once(world: Behind, table: ebla.Table) -> None:
    moved = False

    def elsewhere(handler: Handler, message: Any, caller: Caller) -> Any:
        nonlocal moved
        if not moved:
            moved = True
            world.cuts = [(b"", 1)]
            raise ebla.StaleRoute("the tablet is led elsewhere")
        return handler(message, caller)

    for kind in (WriteRows, GetRow, ModifyRow, ReadMany, BeginScan):
        world.tampered[kind] = elsewhere
    for use in (
        lambda: table.put({"k": 1, "n": 1}),
        lambda: table.get(1),
        lambda: table.increment(1, "n"),
        lambda: table.get_many([1]),
        lambda: table.scan().to_arrow(),
    ):
        moved, world.cuts = False, [(b"", 0)]
        table._service.locate()  # type: ignore[attr-defined]
        world.asked.clear()
        use()
        kind = world.asked[0][1]
        assert world.asked == [(0, kind), (0, Locate.__name__), (1, kind)]
    assert table.get(1) == {"k": 1, "n": 2, "s": None}


def test_a_batch_whose_tablets_moved_meanwhile_is_divided_anew(world: Behind, table: ebla.Table) -> None:
    spread_out(world, table, 10)
    codec = table._service.codec
    moved: list[int] = []

    def elsewhere(handler: Handler, message: Any, caller: Caller) -> Any:
        if not moved:
            moved.append(1)
            world.cuts = [(b"", 0), (codec.encode(5), 1), (codec.encode(15), 0)]
            raise ebla.StaleRoute("the tablet was split, and a part of it is led elsewhere")
        return handler(message, caller)

    world.tampered[WriteRows] = elsewhere
    table.put([{"k": k, "n": k} for k in range(20)])
    assert [row["k"] for row in table.scan()] == list(range(20))


def ended(call: Callable[[], object]) -> bool:
    """Make a call in a thread of its own; tell whether it comes to an end."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60.0)
    return not thread.is_alive()


def test_a_batch_is_divided_anew_though_all_threads_wait_for_its_parts(
    world: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.client.remote.remote_service.THREADS_MAX", 1)
    with world.connect() as db:
        table = db.create_table("t", SCHEMA)
        spread_out(world, table, 10)
        codec = table._service.codec
        parts, asked = threading.Barrier(2), itertools.count()

        def elsewhere(handler: Handler, message: Any, caller: Caller) -> Any:
            # Both parts are under way, one of them in the only thread, when they are refused.
            if next(asked) < 2:
                parts.wait(60.0)
                world.cuts = [(b"", 0), (codec.encode(5), 1), (codec.encode(10), 0), (codec.encode(15), 1)]
                raise ebla.StaleRoute("tablets were split, and some are led elsewhere")
            return handler(message, caller)

        def put() -> None:
            table.put([{"k": k, "n": k} for k in range(20)])

        world.tampered[WriteRows] = elsewhere
        assert ended(put)
        assert [row["k"] for row in table.scan()] == list(range(20))


def test_calls_that_make_others_together_come_to_an_end_in_one_thread(
    world: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.client.remote.remote_service.THREADS_MAX", 1)
    with world.connect() as db:
        service = remote_of(db)
        assert service is not None
        answers: list[list[Any]] = []

        def several(depth: int) -> list[Any]:
            calls = [lambda: depth, partial(several, depth - 1), partial(several, depth - 1)] if depth else [int, int]
            return service.together(calls)

        assert ended(lambda: answers.extend([several(3)] * 2))
        assert answers == [[3, *[[2, *[[1, [0, 0], [0, 0]]] * 2]] * 2]] * 2


def test_the_parts_of_a_batch_that_is_divided_anew_have_the_time_that_is_left(world: Behind) -> None:
    timeout_seconds = 30.0
    left: list[float] = []
    with world.connect(timeout_seconds=timeout_seconds) as db:
        table = db.create_table("t", SCHEMA)
        spread_out(world, table)
        codec = table._service.codec

        def elsewhere(handler: Handler, message: Any, caller: Caller) -> Any:
            left.append(caller.left_seconds)
            if len(left) <= 5:
                raise ebla.Unavailable("it is so for five pauses, which are 0.15 s at least")
            if len(left) == 6:
                world.cuts = [(b"", 0), (codec.encode(10), 1)]
                raise ebla.StaleRoute("the tablet was split, and a part of it is led elsewhere")
            return handler(message, caller)

        world.tampered[WriteRows] = elsewhere
        table.put([{"k": k, "n": k} for k in range(20)])
    assert len(left) == 8
    assert max(left[-2:]) < timeout_seconds - 0.15


# --- scans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ebla.Unavailable, ebla.StaleRoute, ebla.TimedOut])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_goes_on_after_any_failure_without_a_missing_or_double_row(
    world: Behind, table: ebla.Table, error: type, after: bool, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES_FIRST", 20_000)
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES", 20_000)
    monkeypatch.setattr("ebla.rpc.serving.service_handlers.FIRST_SEGMENT_BYTES", 1)
    table.put(pa.table({"k": pa.array(range(20_000)), "n": pa.array(range(20_000))}))
    world.tampered[ScanOn] = Fails(2, error, after=after)
    scan = table.scan(reverse=reverse)
    table.erase_range()  # the scan sees its own moment
    expected = list(range(20_000))[:: -1 if reverse else 1]
    assert scan.to_arrow().column("k").to_pylist() == expected
    assert world.tampered[ScanOn].count > 4  # type: ignore[attr-defined]
    assert scan.to_arrow().column("k").to_pylist() == expected, "it can be used again"


@pytest.mark.parametrize("error", [ebla.Unavailable, ebla.StaleRoute])
def test_rows_of_several_servers_in_any_order_come_once_each_whatever_fails(
    world: Behind, table: ebla.Table, error: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES_FIRST", 20_000)
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES", 20_000)
    table.put(pa.table({"k": pa.array(range(20_000)), "n": pa.array(range(20_000))}))
    spread_out(world, table, 5_000, 9_000, 15_000)
    world.tampered[ScanOn] = Fails(3, error)
    scan = table.scan(ordered=False, where="n >= 100")
    table.erase_range()  # the scan sees its own moment
    assert sorted(row["k"] for row in scan) == list(range(100, 20_000))
    assert len(table.scan(ordered=False, as_of=scan.txn, limit=7_000).to_arrow()) == 7_000
    assert table.scan(as_of=scan.txn).to_arrow().column("k").to_pylist() == list(range(20_000)), "all, in order"
    with pytest.raises(ebla.RequestError, match="position"):
        _ = scan.position
    for refused in ({"reverse": True}, {"latest": True}):
        with pytest.raises(ebla.RequestError, match="any order"):
            table.scan(ordered=False, **refused)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_goes_on_when_tablets_move_between_any_two_segments(
    world: Behind, table: ebla.Table, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES_FIRST", 20_000)
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES", 20_000)
    table.put(pa.table({"k": pa.array(range(20_000)), "n": pa.array(range(20_000))}))
    codec = table._service.codec
    count = 0

    def move(handler: Handler, message: Any, caller: Caller) -> Any:
        nonlocal count
        count += 1
        cut = codec.encode(count * 1_777 % 20_000)
        world.cuts = [(b"", count % 2), (cut, 1 - count % 2)]
        return handler(message, caller)

    for kind in (BeginScan, ScanOn):
        world.tampered[kind] = move
    expected = list(range(20_000))[:: -1 if reverse else 1]
    assert table.scan(reverse=reverse).to_arrow().column("k").to_pylist() == expected
    assert count > 4
    world.tampered.clear()
    assert table.count() == 20_000
    assert table.get_many(expected[:50]).column("k").to_pylist() == expected[:50]


def test_tablets_that_move_after_a_scan_began_give_no_row_twice(world: Behind, table: ebla.Table) -> None:
    table.put([{"k": k, "n": k} for k in range(100)])
    scan = table.scan()
    spread_out(world, table, 10, 20)
    for _ in range(2):
        assert scan.to_arrow().column("k").to_pylist() == list(range(100))


def test_a_scan_whose_connection_was_closed_says_so(world: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES_FIRST", 20_000)
    monkeypatch.setattr("ebla.client.remote.remote_scan.SEGMENT_BYTES", 20_000)
    monkeypatch.setattr("ebla.rpc.serving.service_handlers.FIRST_SEGMENT_BYTES", 1)
    with world.connect() as db:
        table = db.create_table("t", SCHEMA)
        table.put(pa.table({"k": pa.array(range(20_000)), "n": pa.array(range(20_000))}))
        batches = iter(table.scan().to_batches())
        next(batches)
    with pytest.raises(ebla.Closed):
        list(batches)


def test_a_snapshot_and_a_sync_concern_every_server(world: Behind, db: ebla.Database, table: ebla.Table) -> None:
    spread_out(world, table, 10)
    txn = table.put([{"k": k, "n": k} for k in range(20)], wait="logged")
    assert db.sync() >= txn
    with db.snapshot() as snapshot:
        table.erase_range()
        assert [row["k"] for row in snapshot.table("t").scan()] == list(range(20))
    asked = [server for server, kind in world.asked if kind == "CarryOut"]
    assert (asked.count(0), asked.count(1)) == (3, 1), "sync on each; hold and let go where all tables are known"


def test_an_expression_of_pyarrow_filters_as_in_the_process(world: Behind, table: ebla.Table) -> None:
    table.put([{"k": k, "n": k % 7, "s": None if k % 3 else "x"} for k in range(200)])
    own = world.db.table("t")
    for where in (pc.field("n") > 4, pc.field("s").is_null(), (pc.field("n") == 1) & pc.field("s").is_valid()):
        for options in ({}, {"columns": ["n"]}, {"limit": 5}, {"reverse": True, "limit": 3}, {"columns": []}):
            assert table.scan(where=where, **options).to_arrow() == own.scan(where=where, **options).to_arrow()
    with pytest.raises(ebla.UnknownColumn):
        table.scan(where=pc.field("unknown") > 1)


def test_every_value_of_a_row_arrives_as_it_is_in_the_process(world: Behind, db: ebla.Database) -> None:
    import datetime as dt
    from decimal import Decimal

    schema = ebla.Schema(
        key={"a": "string", "d": "date32"},
        columns={
            "at": pa.timestamp("us", "UTC"),
            "local": "timestamp[us]",
            "amount": "decimal128(12, 2)",
            "list": "list<int32>",
            "time": "time64[us]",
            "took": "duration[us]",
            "data": "binary",
            "flag": "bool",
        },
    )
    table = db.create_table("values", schema)
    row = {
        "a": "ä",
        "d": dt.date(2026, 2, 28),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "local": dt.datetime(2026, 1, 1, 12),
        "amount": Decimal("12.50"),
        "list": [1, None, 3],
        "time": dt.time(1, 2, 3, 4),
        "took": dt.timedelta(days=-1, microseconds=5),
        "data": b"\x00\xff",
        "flag": True,
    }
    table.put(row)
    found, own = table.get(("ä", row["d"])), world.db.table("values").get(("ä", row["d"]))
    assert found == own
    assert [type(value) for value in found.values()] == [type(value) for value in own.values()]
    assert list(table.scan()) == list(world.db.table("values").scan())
    assert table.get(("ä", row["d"]), versions=2) == world.db.table("values").get(("ä", row["d"]), versions=2)
