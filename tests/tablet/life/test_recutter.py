"""Split and join of real tables: nobody notices, nothing is lost, and what is interrupted is taken up again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.metadata.values.changes import TabletAt
from ebla.metadata.values.recutting import BeginJoin, BeginSplit, FinishSplit
from ebla.settings import KIB, Settings
from ebla.tablet.upkeep.merging import merge
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, MIXED, create, put
from tests.direct.bulk_world import NUMBERS, a_by_k, numbers, written
from tests.support.inside import abandon, carry_out, engine_of, state_of
from tests.support.simulated_files import FaultPlan

BY_HAND = Settings(background_compaction=False, scan_batch_rows=50)
SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[ebla.Group("main", columns={"n": "int64", "s": "string"}), ebla.Group("events", families=["c"])],
)


def rows(begin: int = 0, end: int = 1000, version: int = 0) -> list[dict[str, Any]]:
    return [{"k": f"{n:04}", "n": n + version, "s": f"{n} " * 4, "c:x": b"%d" % n} for n in range(begin, end)]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path, settings=BY_HAND) as opened:
        yield opened


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    made = db.create_table("t", SCHEMA)
    made.put(rows())
    return made


def borders(table: ebla.Table) -> list[Any]:
    return [tablet["first"] for tablet in table.tablets()[1:]]


def keys(found: Any) -> list[str]:
    return [row["k"] for row in found]


# --- split -----------------------------------------------------------------------------------------


def test_a_split_by_hand_cuts_where_it_is_told_and_copies_nothing(table: ebla.Table) -> None:
    table.flush()
    files, before = table.files(), list(table.scan())
    children = table.split("0300")
    assert [tablet["id"] for tablet in table.tablets()] == [*children]
    assert borders(table) == ["0300"]
    assert table.files() == files
    assert list(table.scan()) == before
    assert table.get("0299") == before[299]
    assert table.get("0300") == before[300]
    assert table.get_many(["0299", "0300"]).column("n").to_pylist() == [299, 300]


def test_without_a_key_the_largest_tablet_is_divided_evenly(table: ebla.Table) -> None:
    table.split("0100")
    table.split()
    assert borders(table)[0] == "0100"
    assert abs(int(borders(table)[1]) - 550) < 100


def test_a_split_flushes_what_is_in_memory_and_the_log_is_not_needed(db: ebla.Database, table: ebla.Table) -> None:
    table.erase_range("0100", "0200")
    table.split("0150")
    table.put(rows(140, 160, 5000))
    table.erase("0500")
    found = list(table.scan())
    path = db.path
    abandon(db)
    with ebla.open(path, settings=BY_HAND) as again:
        assert list(again.table("t").scan()) == found
        assert keys(again.table("t").scan("0090", "0210")) == [
            f"{n:04}" for n in (*range(90, 100), *range(140, 160), *range(200, 210))
        ]


@pytest.mark.parametrize("at", ["0300", ""], ids=["a border", "the beginning"])
def test_a_place_that_divides_nothing_is_refused(table: ebla.Table, at: str) -> None:
    table.split("0300")
    with pytest.raises(ebla.CannotSplit):
        table.split(at)
    assert borders(table) == ["0300"]


def test_a_row_outside_of_the_tablet_is_refused(table: ebla.Table) -> None:
    left, right = table.split("0300")
    with pytest.raises(ebla.CannotSplit, match="outside"):
        table.split("0500", tablet=left)
    with pytest.raises(ebla.CannotSplit, match="no tablet"):
        table.split("0500", tablet="nobody")
    table.split(tablet=right)
    assert len(table.tablets()) == 3


def test_one_row_cannot_be_divided_and_nothing_is_closed(db: ebla.Database) -> None:
    table = db.create_table("one", SCHEMA)
    with pytest.raises(ebla.CannotSplit, match="fewer than two rows"):
        table.split()
    table.put({"k": "only", "s": "x" * 100_000})
    with pytest.raises(ebla.CannotSplit, match="fewer than two rows"):
        table.split()
    (tablet,) = table.tablets()
    assert tablet["state"] == "running"
    table.put({"k": "only", "n": 2})
    assert table.get("only")["n"] == 2  # type: ignore[index]


def test_a_fixed_table_is_never_cut_anew(db: ebla.Database) -> None:
    table = db.create_table("fixed", SCHEMA, splits=["m"], fixed=True)
    table.put(rows(0, 10))
    with pytest.raises(ebla.CannotSplit, match="fixed"):
        table.split("0005")
    with pytest.raises(ebla.CannotJoin, match="fixed"):
        table.join("a", "z")


def test_as_of_reads_and_snapshots_see_the_past_over_splits_and_joins(db: ebla.Database, table: ebla.Table) -> None:
    then = db.sync()
    before = list(table.scan())
    with db.snapshot() as held:
        table.put(rows(0, 500, 9))
        table.split("0250")
        table.erase_range("0200", "0300")
        table.compact()
        assert list(table.scan(as_of=then)) == before
        table.join("0000", "0999")
        table.compact()
        assert list(table.scan(as_of=then)) == before
        assert list(held.table("t").scan()) == before
        assert table.get("0250", as_of=then) == before[250]


def test_conflicts_are_found_over_a_split(table: ebla.Table) -> None:
    read = table.get("0400")
    assert read is not None
    table.put({"k": "0400", "n": 1})
    other = table.get("0500")
    assert other is not None
    table.split("0450")
    with pytest.raises(ebla.Conflict):
        table.put({"k": "0400", "n": 2}, if_unchanged_since=read.txn)
    table.put({"k": "0500", "n": 2}, if_unchanged_since=other.txn)


# --- join ------------------------------------------------------------------------------------------


def test_a_join_makes_one_tablet_of_two_neighbours(table: ebla.Table) -> None:
    table.split("0300")
    table.split("0600")
    before = list(table.scan())
    whole = table.join("0000", "0400")
    assert table.tablets()[0]["id"] == whole
    assert borders(table) == ["0600"]
    assert list(table.scan()) == before
    first, second = (tablet["id"] for tablet in table.tablets())
    table.join(tablets=(first, second))
    assert borders(table) == []
    assert list(table.scan()) == before
    assert [len(of) for of in (table.files(),)] == [2], "one reference for each shared file"
    assert table.tablets()[0]["rows"] == 1000


def test_tablets_that_are_not_neighbours_are_refused(table: ebla.Table) -> None:
    for at in ("0300", "0600"):
        table.split(at)
    ids = [tablet["id"] for tablet in table.tablets()]
    for wrong in [("0000", "0999"), ("0999", "0000"), ("0000", "0001")]:
        with pytest.raises(ebla.CannotJoin, match=r"not neighbours|the same tablet"):
            table.join(*wrong)
    with pytest.raises(ebla.CannotJoin, match="no such tablet"):
        table.join(tablets=(ids[0], "nobody"))
    with pytest.raises(ebla.CannotJoin, match="either"):
        table.join("0000", tablets=(ids[0], ids[1]))
    with pytest.raises(ebla.CannotJoin, match="either"):
        table.join(tablets=5)  # type: ignore[arg-type]
    assert len(table.tablets()) == 3


def test_what_one_half_has_erased_does_not_come_back_with_a_join(tmp_path: Path) -> None:
    """The left half still refers to the file of all rows, the right half has merged its part away."""
    with ebla.open(tmp_path, settings=Settings(background_compaction=False, history_seconds=0.0)) as db:
        table = db.create_table("t", SCHEMA)
        table.put(rows(0, 100))
        table.split("0050")
        table.erase_many([f"{n:04}" for n in range(60, 70)])
        table.erase_range("0080", "0090")
        table.flush()
        compactor, right = engine_of(db).compactor, state_of(table).view.metadata.tablets[1]
        assert compactor.compact_tablet(state_of(table), right.id) == len(table.schema.groups)
        assert all(done.is_rooted for done in compactor.tally.recent)
        expected = [n for n in range(100) if n not in range(60, 70) and n not in range(80, 90)]
        assert keys(table.scan()) == [f"{n:04}" for n in expected]
        table.join("0000", "0099")
        for _ in range(2):
            assert keys(table.scan()) == [f"{n:04}" for n in expected]
            assert [n for n in range(100) if table.get(f"{n:04}") is not None] == expected
            found = table.get_many([f"{n:04}" for n in range(100)])
            assert [n for n, there in enumerate(found.column("_found").to_pylist()) if there] == expected
            assert table.scan(columns=["n"]).to_arrow().column("n").to_pylist() == expected
            table.compact()
        table.split("0065")
        assert keys(table.scan()) == [f"{n:04}" for n in expected]


# --- beside others ---------------------------------------------------------------------------------


def test_a_scan_in_progress_gives_the_rows_of_its_snapshot_once_each_in_order(table: ebla.Table) -> None:
    table.flush()
    expected = list(table.scan())
    forward, backward = table.scan(), table.scan(reverse=True)
    ahead, behind = iter(forward), iter(backward)
    found = [next(ahead) for _ in range(30)]
    found_backward = [next(behind) for _ in range(30)]
    table.split("0500")
    table.put(rows(0, 1000, 7))
    found += [next(ahead) for _ in range(300)]
    found_backward += [next(behind) for _ in range(300)]
    table.split("0250")
    table.compact()
    found += [next(ahead) for _ in range(100)]
    position = forward.position
    table.join("0000", "0300")
    table.join("0300", "0999")
    table.compact()
    rest = list(table.scan(resume=position))
    assert found + list(ahead) == expected
    assert found + rest == expected
    assert found_backward + list(behind) == expected[::-1]


def test_writers_and_readers_go_on_while_tablets_are_cut_anew(tmp_path: Path) -> None:
    settings = Settings(flush_bytes=64 * KIB, memory_bytes_max=1024 * KIB, log_segment_bytes=64 * KIB)
    with ebla.open(tmp_path, settings=settings) as db:
        table = db.create_table("t", SCHEMA)
        table.put(rows(0, 400))
        written = [0, 0]
        stop = threading.Event()
        wrong: list[BaseException] = []

        def write(number: int) -> None:
            try:
                while not stop.is_set():
                    count = written[number] + 1
                    if number:
                        table.put(rows(0, 400, count * 1000))
                    else:
                        table.increment("counter", "n")
                    written[number] = count
            except BaseException as error:
                wrong.append(error)

        def read() -> None:
            try:
                while not stop.is_set():
                    found = [row["n"] // 1000 for row in table.scan("0000", "0400")]
                    assert len(found) == 400
                    assert len(set(found)) == 1, "a scan shows one commit, whole"
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=write, args=(n,)) for n in (0, 1)] + [threading.Thread(target=read)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(2):
                table.split("0100")
                table.split("0300")
                table.compact()
                table.join("0000", "0200")
                if turn % 2:
                    table.compact()
                table.join("0000", "0350")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong, wrong
        assert min(written) > 0
        counter = table.get("counter")
        assert counter is not None
        assert counter["n"] == written[0]
        expected = list(table.scan())
        abandon(db)
    with ebla.open(tmp_path, settings=settings) as db:
        assert list(db.table("t").scan()) == expected


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_bulk_commit_that_was_planned_before_a_split_reaches_the_children(db: ebla.Database, overwrite: bool) -> None:
    table = db.create_table("numbers", NUMBERS)
    table.put(numbers(range(100), add=1_000))
    commit = written(table, "job", numbers(range(0, 100, 5)), overwrite=overwrite)
    table.split((50,))
    carry_out(db, commit)
    table.split((20,))
    before = {} if overwrite else {key: key + 1_000 for key in range(100)}
    assert a_by_k(table) == before | {key: key for key in range(0, 100, 5)}
    table.join((0,), (30,))
    assert a_by_k(table) == before | {key: key for key in range(0, 100, 5)}


def test_a_compaction_of_a_tablet_that_is_split_meanwhile_is_in_vain_and_its_children_are_compacted(
    db: ebla.Database, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.flush()
    table.put(rows(0, 1000, 5))
    expected = list(table.scan())
    split: list[tuple[str, str]] = []

    def late(*given: Any, **more: Any) -> int:
        read = merge(*given, **more)
        if not split:
            split.append(table.split("0500"))
        return read

    monkeypatch.setattr("ebla.tablet.upkeep.compactor.merge", late)
    table.compact()
    assert [tablet["id"] for tablet in table.tablets()] == [*split[0]]
    tablets = state_of(table).view.metadata.tablets
    runs = [[len(group.current) for group in tablet.groups] for tablet in tablets]
    assert runs == [[1, 1], [1, 1]], "one run for each group of each child"
    assert list(table.scan()) == expected
    table.compact()
    assert list(table.scan()) == expected


def test_a_writer_that_waited_for_a_pause_does_not_slip_past_a_bulk_commit(
    db: ebla.Database, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = engine_of(db)
    gate = store.gate
    reserved = store.txn_clock.next_block(1)
    waited: list[int | None] = []

    def pause_ends(state: Any, mutation: Any, log: Any) -> None:
        state.paused = frozenset()
        gate.close(reserved)  # a bulk commit was faster

    def gate_opens(log: Any, up_to: int | None = None) -> None:
        waited.append(gate.reserved)
        gate.open()

    monkeypatch.setattr(store.pauses, "wait", pause_ends)
    monkeypatch.setattr(gate, "wait", gate_opens)
    state_of(table).paused = frozenset(tablet.id for tablet in state_of(table).view.metadata.tablets)
    assert table.put({"k": "0001", "n": 0}) > reserved
    assert waited == [reserved]


# --- interrupted -----------------------------------------------------------------------------------


def begun(db: ebla.Database, table: ebla.Table, row: bytes = b"0400") -> tuple[str, str]:
    """Begin a split and stop there, as a crash would."""
    (tablet,) = state_of(table).view.metadata.tablets
    engine_of(db).metadata.commit(
        state_of(table).id, [BeginSplit(TabletAt(tablet.id, tablet.epoch), row, ("left", "right"))]
    )
    return "left", "right"


def test_a_split_that_was_begun_is_finished_after_reopening_with_the_row_that_was_chosen(tmp_path: Path) -> None:
    db = ebla.open(tmp_path, settings=BY_HAND)
    table = db.create_table("t", SCHEMA)
    table.put(rows())
    begun(db, table)
    table.put(rows(0, 10, 77))
    expected = list(table.scan())
    abandon(db)
    with ebla.open(tmp_path, settings=BY_HAND) as again:
        table = again.table("t")
        assert [tablet["state"] for tablet in table.tablets()] == ["splitting"]
        assert list(table.scan()) == expected
        table.put(rows(10, 20, 78))
        expected = list(table.scan())
        table.split("0700")
        assert borders(table) == ["0400", "0700"]
        assert table.tablets()[0]["id"] == "left"
        assert list(table.scan()) == expected


def test_a_join_that_was_begun_is_finished_after_reopening(tmp_path: Path) -> None:
    db = ebla.open(tmp_path, settings=BY_HAND)
    table = db.create_table("t", SCHEMA, splits=["0500"])
    table.put(rows())
    left, right = state_of(table).view.metadata.tablets
    change = BeginJoin(TabletAt(left.id, left.epoch), TabletAt(right.id, right.epoch), "whole")
    engine_of(db).metadata.commit(state_of(table).id, [change])
    expected = list(table.scan())
    abandon(db)
    with ebla.open(tmp_path, settings=BY_HAND) as again:
        table = again.table("t")
        assert [tablet["state"] for tablet in table.tablets()] == ["joining", "joining"]
        assert engine_of(again).recutter.finish_begun(state_of(table))
        assert [tablet["id"] for tablet in table.tablets()] == ["whole"]
        assert list(table.scan()) == expected


def test_a_split_that_cannot_be_flushed_is_undone(tmp_path: Path) -> None:
    machine = Machine([create("mixed", MIXED), put("mixed", [{"user": u, "age": 1} for u in ("ada", "zoe")])], CALM)
    machine.play()
    assert machine.db is not None
    table = machine.db.table("mixed")
    machine.files.plan = FaultPlan.fail_when(lambda op: op.path.startswith("fragments/") and op.kind == "write")
    with pytest.raises(ebla.StoreError):
        table.split("m")
    machine.files.plan = FaultPlan()
    assert [tablet["state"] for tablet in table.tablets()] == ["running"]
    table.put({"user": "max", "age": 2})
    table.split("m")
    assert [row["user"] for row in table.scan()] == ["ada", "max", "zoe"]
    machine.db.close()


@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
def test_a_split_of_unknown_outcome_stops_writes_until_it_is_known(
    db: ebla.Database, table: ebla.Table, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = engine_of(db).metadata
    commit = metadata.commit
    broken = True

    def unsure(table_id: str, changes: Any) -> Any:
        if broken and isinstance(changes[0], FinishSplit):
            if landed:
                with contextlib.suppress(ebla.Conflict):
                    commit(table_id, changes)
            raise ebla.OutcomeUnknown("who knows")
        if broken:
            raise ebla.Unavailable("not now")
        return commit(table_id, changes)

    def lost(table_id: str) -> Any:
        if broken and not isinstance(table_id, int):
            raise ebla.Unavailable("not now")
        return refresh(table_id)

    refresh = metadata.refresh
    (tablet,) = state_of(table).view.metadata.tablets
    engine_of(db).recutter._save(
        state_of(table), BeginSplit(TabletAt(tablet.id, tablet.epoch), b"0400", ("left", "right")), ebla.CannotSplit
    )
    table.flush()
    monkeypatch.setattr(metadata, "commit", unsure)
    monkeypatch.setattr(metadata, "refresh", lost)
    with pytest.raises(ebla.OutcomeUnknown):
        table.split("0400")
    with pytest.raises(ebla.Unavailable):
        bounded(lambda: table.put({"k": "0001", "n": -1}))
    assert table.get("0001")["n"] == 1  # type: ignore[index]
    broken = False
    table.put({"k": "0001", "n": -1})
    assert [tablet["id"] == "left" for tablet in table.tablets()] == ([True, False] if landed else [False])
    assert table.get("0001")["n"] == -1  # type: ignore[index]
    expected = list(table.scan())
    path = db.path
    abandon(db)
    with ebla.open(path, settings=BY_HAND) as again:
        assert list(again.table("t").scan()) == expected
