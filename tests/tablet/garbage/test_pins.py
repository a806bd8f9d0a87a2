"""Snapshots that are held: compaction keeps what they show, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ebla
from ebla.client.embedded.coordination_place import connect_at
from ebla.clock import ManualClock, SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.settings import Settings
from ebla.tablet.garbage import pins as module
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.horizon import Horizon
from tests.support.inside import engine_of, local_table

NO_HISTORY = Settings(background_compaction=False, history_seconds=0.0)
COUNTS = ebla.Schema(key={"word": "string"}, groups=[ebla.Group("g", columns={"n": "int64"}, max_versions=1)])


def counts(db: ebla.Database) -> ebla.Table:
    table = db.create_table("counts", COUNTS)
    table.put([{"word": "a", "n": 1}, {"word": "b", "n": 1}])
    return table


def change(table: ebla.Table) -> None:
    table.put({"word": "a", "n": 2})
    table.erase("b")
    table.compact()
    table.put({"word": "a", "n": 3})
    table.compact()


def test_a_snapshot_that_is_held_reads_on_after_compaction(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = counts(db)
        with db.snapshot() as snapshot:
            change(table)
            assert [row["n"] for row in snapshot.table("counts").scan()] == [1, 1]
        table.compact()
        with pytest.raises(ebla.Closed, match="let go"):
            snapshot.table("counts")
        with pytest.raises(ebla.HistoryGone):
            list(table.scan(as_of=snapshot))
        assert [row["n"] for row in table.scan()] == [3]


def test_a_named_snapshot_is_held_over_reopening_until_it_is_released(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = counts(db)
        taken = db.snapshot("monday")
        taken.close()
        change(table)
    with ebla.open(tmp_path, read_only=True) as reader:
        assert reader.snapshots() == {"monday": taken.txn}
        assert [row["n"] for row in reader.snapshot("monday").table("counts").scan()] == [1, 1]
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        again = db.snapshot("monday")
        assert again.txn == taken.txn
        change(db.table("counts"))
        assert [row["n"] for row in again.table("counts").scan()] == [1, 1]
        again.release()
        again.release()
        assert db.snapshots() == {}
        db.table("counts").compact()
        with pytest.raises(ebla.HistoryGone):
            list(db.table("counts").scan(as_of=again))


def test_a_scan_under_way_holds_its_snapshot(tmp_path: Path) -> None:
    settings = Settings(background_compaction=False, history_seconds=0.0, scan_batch_rows=1)
    with ebla.open(tmp_path, settings=settings) as db:
        table = db.create_table("counts", COUNTS)
        table.put([{"word": f"w{n:05}", "n": 1} for n in range(5_000)])
        rows = iter(table.scan())
        seen = [next(rows)["n"]]
        table.put([{"word": f"w{n:05}", "n": 2} for n in range(5_000)])
        table.compact()
        seen += [row["n"] for row in rows]
        assert seen == [1] * 5_000


def test_a_snapshot_needs_a_name_that_can_be_one(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db, pytest.raises(ebla.RequestError, match="letters"):
        db.snapshot("a/b")
    with ebla.open(tmp_path, read_only=True) as reader, pytest.raises(ebla.ReadOnly):
        reader.snapshot("monday")


def test_a_pin_that_is_renewed_moves_forward_and_expires() -> None:
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    pins, others = Pins(coordination, clock), Pins(coordination, clock)
    pins.renew("stream", 5, 60)
    pins.renew("stream", 9, 60)
    assert pins.renew("stream", 7, 60).txn == 9
    assert others.oldest() == 9
    clock.advance(59)
    assert others.oldest() == 9
    clock.advance(1)
    assert (others.oldest(), others.find("stream"), others.all()) == (None, None, [])
    pins.renew("stream", 7, 60)  # it was never removed, so it did not go back
    assert others.oldest() == 9
    clock.advance(60)
    assert others.remove_expired() == ["stream"]
    assert others.pin("stream", 3).txn == 3
    clock.advance(1e9)
    assert others.remove_expired() == []


def test_a_name_that_has_expired_is_free() -> None:
    clock = ManualClock()
    pins = Pins(MemoryCoordination(MemoryStore(), clock), clock)
    pins.renew("mine", 5, 1)
    clock.advance(1)
    assert pins.pin("mine", 8).txn == 8


def test_files_are_held_as_long_as_their_pin_and_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_IN_NODE_MAX", 2)
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    pins = Pins(coordination, clock)
    first = pins.begin("one.job", 5, 60, "a scan", ["a", "b", "c"])
    assert (first.txn, first.reader, first.files) == (5, "a scan", 3)
    clock.advance(30)
    pins.begin("another", 7, 60, "a scan", ["c", "d"])
    pins.pin("monday", 9)
    assert (pins.files(), pins.oldest()) == ({"a", "b", "c", "d"}, 5)
    clock.advance(30)
    assert (pins.files(), pins.oldest()) == ({"c", "d"}, 7)
    assert pins.remove_expired() == ["one.job"]
    assert coordination.list("held") == ["held/another.0"]
    pins.release("another")
    assert (pins.files(), coordination.list("held"), pins.oldest()) == (frozenset(), [], 9)


def test_a_pin_is_extended_while_it_is_there_and_written_only_if_that_gains_much() -> None:
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    pins = Pins(coordination, clock)
    pins.begin("job", 5, 80, "a scan")
    clock.advance(9)
    assert pins.extend("job", 80)
    node = coordination.read("pins/job")
    assert node is not None
    assert node.version == 1
    clock.advance(41)
    assert pins.extend("job", 80)
    clock.advance(79)
    assert pins.oldest() == 5
    pins.release("job")
    assert not pins.extend("job", 80)
    assert pins.oldest() is None


def test_a_compaction_stops_at_a_pin_that_came_after_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db, connect_at(tmp_path, SystemClock()) as elsewhere:
        table = counts(db)
        txn = table.scan().txn
        table.put({"word": "a", "n": 2})
        announce = engine_of(db).history.announce
        before = Horizon(elsewhere).read()

        def held_meanwhile(horizon: int) -> None:
            Pins(elsewhere, SystemClock()).begin("job", txn, 60, "a scan")
            monkeypatch.setattr(engine_of(db).history, "announce", announce)
            announce(horizon)

        monkeypatch.setattr(engine_of(db).history, "announce", held_meanwhile)
        table.compact()
        assert before <= txn < Horizon(elsewhere).read()
        assert [row["n"] for row in table.scan(as_of=txn)] == [1, 1]
        assert db.stats()["garbage"]["held"]["snapshots"]["job"]["reader"] == "a scan"


def test_a_compaction_goes_no_further_than_it_has_told_those_who_take_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table, other = counts(db), db.create_table("other", COUNTS)
        change(table)
        table.put({"word": "a", "n": 4})
        store = engine_of(db)
        horizon, hold = store.history.bound, store.pins.hold

        def held_late(txn: int) -> None:
            """Commit and compact between the choice of a snapshot and its registration."""
            monkeypatch.setattr(store.pins, "hold", hold)

            def looked_before_the_commit(state: TableState, group: int) -> int:
                monkeypatch.setattr(store.history, "bound", horizon)
                first = horizon(state, group)
                other.put({"word": "x", "n": 1})
                return first

            monkeypatch.setattr(store.history, "bound", looked_before_the_commit)
            table.compact()
            hold(txn)

        monkeypatch.setattr(store.pins, "hold", held_late)
        with db.snapshot() as snapshot:
            assert [row["n"] for row in snapshot.table("counts").scan()] == [4]


BOTH = ebla.Schema(
    key={"word": "string"},
    groups=[ebla.Group("g", columns={"n": "int64", "s": "string"}), ebla.Group("c", families=["f"])],
)
NEWEST: dict[str, Callable[[ebla.Table], object]] = {
    "get": lambda table: table.get("a"),
    "get some": lambda table: table.get("a", ["n"]),
    "get many": lambda table: table.get_many(["a", "b"]).num_rows,
    "put if absent": lambda table: table.put({"word": "new", "n": 1}, if_absent=True),
    "increment": lambda table: table.increment("a", "n"),
    "increment a cell": lambda table: table.increment("a", "f:x"),
    "append": lambda table: table.append("a", "s", "x"),
    "transact": lambda table: table.transact("a", lambda row: {"n": 1}),
    "erase a column": lambda table: table.erase("a", ["n"]),
}


@pytest.mark.parametrize("what", NEWEST)
def test_the_newest_is_read_although_history_ends_after_its_txn_was_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("t", BOTH)
        table.put([{"word": word, "n": 1, "s": "s", "f:x": bytes(8)} for word in "ab"])
        store, service = engine_of(db), local_table(table)
        read_txn, check_served = store.read_txn, service._check_served

        def end_history() -> None:
            monkeypatch.setattr(store, "read_txn", read_txn)
            monkeypatch.setattr(service, "_check_served", check_served)
            db.table("t").put({"word": "b", "n": 2, "f:x": bytes(7)})
            db.table("t").compact()

        def looked_up(as_of: int | None = None, **options: bool) -> int:
            txn = read_txn(as_of, **options)
            end_history()
            return txn

        monkeypatch.setattr(store, "read_txn", looked_up)
        if what == "get":  # which looks the txn up by itself, and then whether the table is served
            monkeypatch.setattr(service, "_check_served", end_history)
        assert NEWEST[what](table) is not None
        assert table.get("b") == {"word": "b", "n": 2, "s": "s", "f:x": bytes(7)}
