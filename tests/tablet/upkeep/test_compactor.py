"""Compaction of real tables: the answer stays, the files change, and history ends where it says."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.merge.compact import compact
from ebla.storage.record.records import Run
from ebla.tablet.upkeep.compaction import Choice, choose_all
from ebla.tablet.upkeep.compactor import Chosen
from ebla.tablet.upkeep.merging import merge
from tests.crash.machine import bounded
from tests.support.compact_here import compact_here
from tests.support.inside import engine_of, state_of

BY_HAND = Settings(background_compaction=False)
NO_HISTORY = Settings(background_compaction=False, history_seconds=0.0)

USERS = ebla.Schema(
    key={"user": "string"},
    groups=[
        ebla.Group("profile", columns={"name": "string", "age": "int32"}, max_versions=1),
        ebla.Group("events", families=["click"], max_versions=2),
    ],
)


def fill(table: ebla.Table, rounds: int = 6) -> None:
    for n in range(rounds):
        table.put([{"user": f"u{i:03}", "name": f"name {n}", "click:a": b"%d" % n} for i in range(0, 200, n + 1)])
        table.put([{"user": f"u{i:03}", "age": n} for i in range(0, 200, 3)])
        table.erase(f"u{n:03}")
        table.flush()


def everything(table: ebla.Table, **options: Any) -> list[dict[str, Any]]:
    return list(table.scan(**options))


def fragments(table: ebla.Table) -> int:
    return sum(tablet["fragments"] for tablet in table.tablets())


def test_compaction_leaves_the_rows_and_few_files(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS, splits=["u100"])
        fill(table)
        before, versions = everything(table), everything(table, versions=5)
        assert fragments(table) >= 12
        table.compact()
        assert everything(table) == before
        assert everything(table, versions=5) == versions
        assert fragments(table) == 4  # two tablets, two groups
        latest = db.stats()["compactions"]["recent"][-1]
        assert latest["reason"] == "manual"
        assert latest["is_rooted"]
        assert latest["records_written"] < latest["records_read"]
        table.put({"user": "u000", "age": 99})
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        assert db.table("users").get("u000")["age"] == 99
        assert everything(db.table("users"))[1:] == before[1:]


def test_erased_rows_do_not_come_back_and_leave_nothing_behind(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        table.put([{"user": f"u{i}", "name": "x", "click:a": b"1"} for i in range(50)])
        table.flush()
        table.erase_many([f"u{i}" for i in range(50)])
        table.compact()
        assert everything(table) == []
        assert fragments(table) == 0


def test_a_range_erasure_leaves_metadata_with_what_it_hid(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        table.put([{"user": f"u{i}", "name": "x"} for i in range(9)])
        table.flush()
        table.erase_range("u3", "u6")
        table.flush()
        state = state_of(table).view.metadata.tablets[0]
        assert any(group.erasures for group in state.groups)
        table.compact()
        table.compact()
        state = state_of(table).view.metadata.tablets[0]
        assert not any(group.erasures for group in state.groups)
        assert [row["user"] for row in table.scan()] == ["u0", "u1", "u2", "u6", "u7", "u8"]


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_range_erasure_stays_if_somebody_begins_to_read_behind_it_as_it_is_compacted(
    tmp_path: Path, by_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        fill(table)
        before = everything(table)
        txn = db.sync()
        table.erase_range("u050", "u150")
        left = [row for row in before if not "u050" <= row["user"] < "u150"]
        table.flush()
        compactor, pins = engine_of(db).compactor, engine_of(db).pins
        announce = engine_of(db).history.announce

        def held_meanwhile(horizon: int) -> None:
            announce(horizon)
            pins.hold(txn)  # by a scan, which begins after what to merge was chosen

        monkeypatch.setattr(engine_of(db).history, "announce", held_meanwhile)
        bounded(compactor.compact_next if by_itself else table.compact)
        assert everything(table) == left
        assert everything(table, as_of=txn) == before
        monkeypatch.undo()
        while txn in pins.held_here():
            pins.let_go(txn)
        table.compact()
        assert everything(table) == left
        assert not any(state.erasures for tablet in state_of(table).view.metadata.tablets for state in tablet.groups)


@pytest.mark.parametrize("how", ["by hand", "by a job"])
@pytest.mark.parametrize("layout", [{"columns": {"n": "int64"}}, {"families": ["n"]}], ids=["columns", "cells"])
def test_what_is_too_old_leaves_the_files_of_a_store_that_nobody_writes_to(
    tmp_path: Path, layout: dict[str, Any], how: str
) -> None:
    clock, nodes = ManualClock(), MemoryStore()

    def opened(*, read_only: bool = False) -> Database:
        coordination = MemoryCoordination(nodes, clock)
        return wire(tmp_path, LocalFiles(tmp_path), coordination, clock, BY_HAND, None, read_only=read_only)

    def compact_it(db: Database) -> None:
        db.table("t").compact() if how == "by hand" else compact_here(db, "t")

    name, value = ("n", 1) if "columns" in layout else ("n:x", b"1")
    group = ebla.Group("g", max_age="1d", max_versions="all", **layout)
    with opened() as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=[group]))
        table.put([{"k": k, name: value} for k in range(9)])
        db.snapshot("held")
        table.flush()
    clock.advance(2 * 86_400)
    with opened() as db:
        compact_it(db)
        table = db.table("t")
        assert (table.scan().count(), table.scan(as_of="held").count()) == (0, 9)
        db.snapshot("held").release()
        compact_it(db)
        assert fragments(table) == 0
        with db.snapshot() as now:
            assert now.table("t").scan().count() == 0
        table.put({"k": 3, name: value})
        assert table.scan().count() == 1
    with opened(read_only=True) as db:
        assert db.table("t").scan().count() == 1


def test_files_whose_rows_are_all_too_old_are_dropped_by_themselves(tmp_path: Path) -> None:
    clock, nodes = ManualClock(), MemoryStore()
    coordination = MemoryCoordination(nodes, clock)
    with wire(tmp_path, LocalFiles(tmp_path), coordination, clock, BY_HAND, None) as db:
        group = ebla.Group("g", columns={"n": "int64"}, max_age="6d")
        table = db.create_table("t", ebla.Schema(key={"day": "int64", "k": "int64"}, groups=[group]))

        def days() -> list[int]:
            return sorted({row["day"] for row in table.scan()})

        for day in range(12):
            table.put([{"day": day, "k": k, "n": k} for k in range(50)])
            table.flush()
            if day == 2:
                db.snapshot("held")
            clock.advance(86_400)
        table.put({"day": 12, "k": 0})
        compactor = engine_of(db).compactor
        while compactor.compact_next():
            pass
        assert days() == list(range(6, 13))
        assert table.scan(as_of="held").count() == 3 * 50
        assert fragments(table) == 12
        db.snapshot("held").release()
        while compactor.compact_next():
            pass
        assert days() == list(range(6, 13))
        assert fragments(table) == 6
        assert {one["reason"] for one in db.stats()["compactions"]["recent"]} == {"aged"}
        with pytest.raises(ebla.HistoryGone):
            table.scan(as_of=ebla.time_of(clock.microseconds() << 10) - timedelta(days=1)).count()


def test_a_snapshot_within_history_reads_as_before(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table = db.create_table("users", USERS)
        first = table.put({"user": "ada", "age": 1})
        table.put({"user": "ada", "age": 2})
        second = table.erase("ada")
        table.put({"user": "bob", "age": 3})
        table.compact()
        assert table.get("ada", as_of=first)["age"] == 1
        assert table.get("ada", as_of=second) is None
        assert [row["user"] for row in table.scan(as_of=second - 1)] == ["ada"]


def test_a_snapshot_before_the_floor_is_refused_by_every_read(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        first = table.put({"user": "ada", "age": 1, "click:a": b"1"})
        table.put({"user": "ada", "age": 2})
        now = table.put({"user": "bob", "age": 3})
        table.compact()
        for read in (
            lambda: table.get("ada", as_of=first),
            lambda: table.get("ada", columns=["age"], as_of=first),
            lambda: table.get_many(["ada"], as_of=first),
            lambda: everything(table, as_of=first),
            lambda: everything(table, as_of=first, reverse=True),
        ):
            with pytest.raises(ebla.HistoryGone, match="too long ago"):
                read()
        with pytest.raises(ebla.Conflict):
            table.put({"user": "ada", "age": 4}, if_unchanged_since=first)
        assert table.get("ada", as_of=now)["age"] == 2
        table.put({"user": "ada", "age": 4}, if_unchanged_since=now)


def test_columns_that_a_file_does_not_have_are_not_set_by_it(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        table.put([{"user": "a", "name": "A", "age": 1}, {"user": "b", "name": "B", "age": 2}])
        table.flush()
        table.put([{"user": "a", "age": 10}])
        table.flush()
        table.put([{"user": "b", "name": "BB"}])
        table.compact()
        assert [(row["name"], row["age"]) for row in table.scan()] == [("A", 10), ("BB", 2)]
        table.compact()
        assert [(row["name"], row["age"]) for row in table.scan()] == [("A", 10), ("BB", 2)]


def until(is_so: Callable[[], bool], db: ebla.Database) -> None:
    """Wait for the background, which is woken so that nobody has to wait for its next round."""
    while not is_so():
        engine_of(db).compactor.wake()
        time.sleep(0.001)


def test_many_flushes_are_compacted_in_the_background(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        table = db.create_table("users", USERS)
        fill(table, rounds=12)
        expected = everything(table)
        bounded(lambda: until(lambda: fragments(table) < 10 * 2, db))  # the bound of the strategy, for two groups
        assert everything(table) == expected
        assert {one["reason"] for one in db.stats()["compactions"]["recent"]} == {"depth"}


def test_a_damaged_fragment_holds_up_its_own_tablet_and_no_other(tmp_path: Path) -> None:
    settings = Settings(garbage_age_seconds=0.0, garbage_round_seconds=0.0, history_seconds=0.0)
    with ebla.open(tmp_path, settings=replace(settings, background_compaction=False)) as db:
        # The tables are looked at by name: the damaged one comes first.
        for name in ("broken", "sound"):
            table = db.create_table(name, USERS)
            fill(table, rounds=12)
        expected = everything(db.table("sound"))
        state = state_of(db.table("broken")).view.metadata.tablets[0].groups[0]
        victim = tmp_path / state.fragments[3].file
    image = bytearray(victim.read_bytes())
    image[100] ^= 0xFF
    victim.write_bytes(image)
    with ebla.open(tmp_path, settings=settings) as db:
        orphan = tmp_path / "fragments" / state_of(db.table("sound")).id / "left-behind.parquet"
        orphan.write_bytes(b"nobody names it")
        bounded(lambda: until(lambda: fragments(db.table("sound")) < 10 * 2, db))
        bounded(lambda: until(lambda: not orphan.exists(), db))  # it went on to sweep
        assert everything(db.table("sound")) == expected
        assert victim.name in db.stats()["compactions"]["failure"]
        assert {one["table"] for one in db.stats()["compactions"]["recent"] if one["group"] == "profile"} == {"sound"}
        with pytest.raises(ebla.Corruption, match=victim.name):
            everything(db.table("broken"), columns=["name"])
        assert everything(db.table("broken"), columns=["click:"])  # another group, other files


def test_large_records_are_merged_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = []

    def noted(runs: list[Run], *rules: object, **more: object) -> object:
        largest.append(sum(run.records.nbytes for run in runs))
        return compact(runs, *rules, **more)

    monkeypatch.setattr("ebla.tablet.upkeep.merging.WINDOW_BYTES", 200_000)
    monkeypatch.setattr("ebla.tablet.upkeep.merging.compact", noted)
    schema = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"v": "binary"}, block_bytes=8_192)])
    with ebla.open(tmp_path, settings=Settings(background_compaction=False, history_seconds=0.0)) as db:
        table = db.create_table("t", schema)
        for n in range(4):
            table.put([{"k": i, "v": bytes([i % 256]) * 1_000} for i in range(n, 2_000, 3)])
            table.flush()
        expected = everything(table)
        table.compact()
        assert everything(table) == expected
    assert len(largest) > 10
    assert max(largest) < 300_000  # one more block of each file may come along


def test_stats_can_be_asked_for_while_compactions_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        fill(table)
        table.compact()
        compactor = engine_of(db).compactor
        (done, *_) = compactor.tally.recent

        def another_meanwhile(one: Any) -> dict[str, Any]:
            compactor.tally.note(done)
            return asdict(one)

        monkeypatch.setattr("ebla.tablet.upkeep.compaction_tally.asdict", another_meanwhile)
        assert len(db.stats()["compactions"]["recent"]) == 2


def test_a_large_outcome_is_several_files_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(background_compaction=False, fragment_bytes_max=2_000, history_seconds=0.0)
    schema = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"v": "string"}, block_bytes=1024)])
    with ebla.open(tmp_path, settings=settings) as db:
        table = db.create_table("t", schema)
        for n in range(3):
            table.put([{"k": i, "v": f"{i * 7919 % 1000:04}-{n}" * 5} for i in range(n, 3_000, 2)])
            table.flush()
        expected = everything(table)
        monkeypatch.setattr("ebla.tablet.upkeep.merging.WINDOW_RECORDS", 500)
        table.compact()
        assert fragments(table) > 3
        assert everything(table) == expected
        assert len(list(table.scan(start=100, stop=200))) == 100


def test_a_table_that_is_dropped_during_its_compaction_is_gone_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        fill(table)
        other = db.create_table("other", USERS)
        other.put({"user": "a", "age": 1})

        def dropped_meanwhile(*arguments: Any) -> Any:
            done = merge(*arguments)
            if "users" in db.tables():
                db.drop_table("users")
            return done

        monkeypatch.setattr("ebla.tablet.upkeep.compactor.merge", dropped_meanwhile)
        table.compact()
        assert db.tables() == ["other"]
        assert engine_of(db).pending.paths() == frozenset()
        assert other.get("a")["age"] == 1


def test_a_compaction_by_hand_is_chosen_anew_if_another_was_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("users", USERS)
        fill(table)

        def chosen_late(state: Any, horizon: int) -> Any:
            choice = choose_all(state, horizon)
            monkeypatch.undo()
            table.compact()  # as in the background, while this one waits for its turn
            table.erase_range("u000", "u100")
            table.flush()
            return choice

        monkeypatch.setattr("ebla.tablet.upkeep.compactor.choose_all", chosen_late)
        table.compact()
        states = [state for tablet in state_of(table).view.metadata.tablets for state in tablet.groups]
        assert [len(state.fragments) for state in states] == [1, 1]
        assert not any(state.erasures for state in states)


def test_a_compaction_whose_files_were_merged_and_swept_up_meanwhile_is_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=replace(NO_HISTORY, garbage_age_seconds=0.0)) as db:
        table = db.create_table("users", USERS)
        fill(table)
        before = everything(table)
        compactor = engine_of(db).compactor
        announce = engine_of(db).history.announce

        def slow(horizon: int) -> None:
            announce(horizon)
            monkeypatch.undo()
            compactor._lock.release()  # another one comes first, and a sweep
            table.compact()
            for _ in range(2):
                db.gc(dry_run=False)
            engine_of(db).fragments.forget(list(named))
            compactor._lock.acquire()

        named = table.files()
        monkeypatch.setattr(engine_of(db).history, "announce", slow)
        assert not compactor.compact_next()
        assert compactor.failure is None
        assert everything(table) == before
        (tmp_path / table.files()[0]).unlink()  # this one is lost
        engine_of(db).fragments.forget(table.files())
        with pytest.raises(ebla.MissingFile, match="backup"):
            table.compact()
        db.drop_table("users")
        with pytest.raises(ebla.UnknownTable):
            table.compact()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_schema_that_changes_during_a_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """Columns move while one group is merged, and the next is merged after that: what moved belongs to neither."""
    groups = [ebla.Group("x", columns={"a": "int64", "b": "int64"}), ebla.Group("y", columns={"c": "int64"})]
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        schema = ebla.Schema(key={"k": "int64"}, groups=groups[::-1] if reverse else groups)
        table = db.create_table("t", schema, splits=[50])
        for n in range(3):
            table.put([{"k": k, "a": n, "b": n, "c": n} for k in range(100)])
            table.flush()
        moves = iter([{"a": "y"}, {"c": "x"}, {"a": "x", "b": "y"}, {"c": "y"}])

        def altered_meanwhile(*arguments: Any) -> Any:
            done = merge(*arguments)
            move = next(moves, None)
            if move is not None:
                db.alter_table("t", move=move)
            return done

        monkeypatch.setattr("ebla.tablet.upkeep.compactor.merge", altered_meanwhile)
        for _ in range(3):
            table.compact()
            assert all(row == {"k": k, "a": 2, "b": 2, "c": 2} for k, row in enumerate(table.scan()))
        assert next(moves, None) is None
        assert engine_of(db).pending.paths() == frozenset()
        assert fragments(table) == 4, "what was in vain is done in the end"
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        assert all(row == {"k": k, "a": 2, "b": 2, "c": 2} for k, row in enumerate(db.table("t").scan()))


def test_a_scan_of_a_table_that_is_dropped_goes_on_until_its_files_are_gone_and_says_so_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.tablet.scan.scan_windows.FIRST_WINDOW_ROWS", 8)
    monkeypatch.setattr("ebla.tablet.scan.scan_windows.INLINE_ROWS", 16)
    settings = replace(NO_HISTORY, garbage_age_seconds=0.0, scan_threads=1, open_files_max=1)
    with ebla.open(tmp_path, settings=settings) as db:
        for is_collected in (False, True):
            table = db.create_table("users", USERS, splits=["u050", "u100", "u150"])
            fill(table)
            table.compact()
            expected = [row["user"] for row in table.scan()]
            scans = [iter(table.scan(reverse=reverse)) for reverse in (False, True)]
            found = [[next(rows)["user"] for _ in range(3)] for rows in scans]
            db.drop_table("users")
            for _ in range(2):
                db.gc(dry_run=not is_collected)
            assert any(tmp_path.glob("fragments/*/*.parquet")) == (not is_collected)
            for rows, begun, whole in zip(scans, found, (expected, expected[::-1]), strict=True):
                if is_collected:
                    with pytest.raises(ebla.UnknownTable, match="dropped"):
                        begun.extend(row["user"] for row in rows)
                    assert begun == whole[: len(begun)]
                else:
                    begun.extend(row["user"] for row in rows)
                    assert begun == whole
            assert engine_of(db).pins.held_here() == {}
            db.gc(dry_run=False)
            db.gc(dry_run=False)


def test_a_compaction_does_not_keep_in_memory_what_is_flushed_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []

    def flush_meanwhile(*arguments: Any) -> int:
        blocks = [
            weakref.ref(block.records)
            for own in state_of(table).view.memory.values()
            for m in own.values()
            for block in m.blocks
        ]
        assert any(block() is not None for block in blocks)
        table.flush()
        held.extend(block() is not None for block in blocks)
        return merge(*arguments)

    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"n": "int64"}))
        for n in range(2):
            table.put([{"k": k, "n": n} for k in range(100)])
            table.flush()
        table.put([{"k": k, "n": 9} for k in range(0, 200, 3)])
        monkeypatch.setattr("ebla.tablet.upkeep.compactor.merge", flush_meanwhile)
        # By the engine: `compact` of a table would flush first.
        engine_of(db).compactor.compact_table(state_of(table))
        assert held == [False]
        assert table.get(3)["n"] == 9
        assert table.get(1)["n"] == 1


def merge_only(db: ebla.Database, table: ebla.Table, group: str, *, with_columns: bool) -> None:
    """Merge the files of a group that count for columns that came to it, or those of which only rows count."""
    metadata = state_of(table).view.metadata
    (tablet,) = metadata.tablets
    chosen = next(one for one in metadata.schema.groups if one.name == group)
    fragments = tablet.group(chosen.id).fragments
    files = tuple(ref for ref in fragments if ref.columns is not None and bool(ref.columns) == with_columns)
    compactor = engine_of(db).compactor
    horizon = engine_of(db).history.horizon_of(state_of(table), chosen.id)
    choice = Choice(files, "depth")
    assert compactor._carry_out(state_of(table), Chosen(metadata.schema.version, tablet, chosen, choice, horizon))


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("versions", [1, "all"])
def test_what_one_commit_wrote_to_columns_that_came_together_outlives_merges_of_some_of_it(
    tmp_path: Path, versions: Any, rows_first: bool
) -> None:
    groups = [
        ebla.Group("left", columns={"n": "int64"}, max_versions=versions),
        ebla.Group("right", columns={"text": "string"}, max_versions=versions),
    ]
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=groups))
        first = table.put([{"k": k, "n": k, "text": f"text {k}"} for k in range(50)])
        db.alter_table("t", move={"n": "right", "text": "left"})
        table.put([{"k": k, "n": -k} for k in range(0, 50, 2)])
        expected, past = everything(table), everything(table, as_of=first)
        for group in ("left", "right"):
            for with_columns in (False, True) if rows_first else (True, False):
                merge_only(db, table, group, with_columns=with_columns)
                assert everything(table) == expected
        table.compact()
        assert everything(table) == expected
        assert everything(table, as_of=first) == past
        assert len(table.files()) == 2


def gathered(db: ebla.Database) -> ebla.Table:
    """Return a table in one group of which columns of six have come together, with an erasure."""
    groups = [ebla.Group(f"g{n}", columns={f"c{n}": "int64"}) for n in range(6)]
    table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=groups))
    table.put([{"k": k, **{f"c{n}": k + n for n in range(6)}} for k in range(50)])
    table.erase(7)
    db.alter_table("t", move={f"c{n}": "g0" for n in range(1, 6)}, drop_groups=[f"g{n}" for n in range(1, 6)])
    return table


def test_columns_of_many_groups_that_an_erasure_keeps_apart_are_not_merged_again_and_again(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table = gathered(db)
        compactor = engine_of(db).compactor
        assert not compactor.compact_next()  # each of its files would become one again
        for n in range(30):
            table.put([{"k": k, "c1": n} for k in range(0, 50, 7)])
            table.erase(8)
            table.flush()
            before = fragments(table)
            while compactor.compact_next():
                assert fragments(table) < before
                before = fragments(table)
            assert fragments(table) < 6 + engine_of(db).settings.compact_runs_max
        assert {row["k"]: row["c1"] for row in everything(table)} == {
            k: 29 if k % 7 == 0 else k + 1 for k in range(50) if k != 8 and k != 7
        } | {7: 29}


def test_columns_of_many_groups_become_one_file_once_history_has_passed_their_erasures(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = gathered(db)
        expected = everything(table)
        assert engine_of(db).compactor.compact_next()
        assert fragments(table) == 1
        assert everything(table) == expected
        assert not engine_of(db).compactor.compact_next()


@pytest.mark.parametrize("is_erased", [False, True])
def test_history_that_a_merge_of_strands_left_out_is_gone_and_never_answered_wrongly(
    tmp_path: Path, is_erased: bool
) -> None:
    groups = [ebla.Group("x", columns={"a": "int64"}), ebla.Group("y", columns={"b": "int64"})]
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=groups))
        first = table.put([{"k": k, "a": k, "b": k} for k in range(10)])
        db.alter_table("t", move={"b": "x"})
        second = table.put([{"k": k, "b": 1} for k in range(10)] + [{"k": k, "a": 2, "b": 2} for k in range(10, 50)])
        table.put({"k": 0, "a": 3})
        with db.snapshot() as held:
            if is_erased:  # an erasure that has to stay keeps the strands apart: more records than there were
                table.erase(49)
            table.compact()
            assert held.table("t").get(0) == {"k": 0, "a": 3, "b": 1}
        for txn in (first, second):
            with pytest.raises(ebla.HistoryGone):
                table.scan(as_of=txn).to_arrow()
