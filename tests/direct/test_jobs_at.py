"""Bulk commits as users of a store see them: all or nothing, at one txn, once."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import ebla
from ebla.client.database import Database
from ebla.client.table import Table
from ebla.direct.jobs_at import begin_job_at, end_job_at, order_at
from ebla.errors import Conflict, InvalidBatch, MissingFile, ReadOnly, RequestError, StoreError, UnknownTable
from ebla.service.job_orders import BulkCommit
from ebla.settings import Settings
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.garbage.job_intents import list_intents
from tests.direct.bulk_world import (
    NUMBERS,
    a_by_k,
    commit_of,
    files_of,
    loaded,
    numbers,
    rows_of,
    writer_for,
    written,
)
from tests.support.inside import begin_job, carry_out, coordination_of, end_job, state_of


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", NUMBERS, splits=[(50,), (90,)])


def test_a_commit_is_seen_from_its_txn_on(db: Database, table: Table) -> None:
    table.put(numbers(range(0, 100, 2), add=1_000))
    before = db.snapshot()
    commit = written(table, "job", numbers(range(0, 100, 5)))
    assert a_by_k(table) == {key: key + 1_000 for key in range(0, 100, 2)}
    result = carry_out(db, commit)
    expected = {key: key + 1_000 for key in range(0, 100, 2)} | {key: key for key in range(0, 100, 5)}
    assert not result.repeated
    assert db.snapshot().txn == result.txn
    assert a_by_k(table) == a_by_k(table, as_of=result.txn) == expected
    assert a_by_k(table, as_of=before) == a_by_k(table, as_of=result.txn - 1)
    assert a_by_k(before.table("t")) == {key: key + 1_000 for key in range(0, 100, 2)}
    later = table.put({"k": 5, "a": -1})
    assert later > result.txn
    assert table.get(5)["a"] == -1
    assert a_by_k(table, as_of=result.txn) == expected
    assert a_by_k(table, as_of=datetime.now(UTC)) == expected | {5: -1}


def test_columns_that_a_job_does_not_give_stay(db: Database, table: Table) -> None:
    table.put([{"k": 1, "a": 1, "b": "x"}, {"k": 2, "a": 2, "b": "y"}])
    loaded(db, table, "job", numbers([1, 3], add=10))
    assert rows_of(table) == [
        {"k": 1, "a": 11, "b": "x"},
        {"k": 2, "a": 2, "b": "y"},
        {"k": 3, "a": 13, "b": None},
    ]


def test_a_job_is_applied_once_even_after_reopening(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "store") as db:
        table = db.create_table("t", NUMBERS)
        commit = written(table, "job", numbers([1, 2]))
        first = carry_out(db, commit)
        table.put({"k": 1, "a": 100})
        assert carry_out(db, commit) == msgspec.structs.replace(first, repeated=True)
        other = written(table, "job", numbers([7]))
        assert carry_out(db, other) == msgspec.structs.replace(first, repeated=True)
    with ebla.open(tmp_path / "store") as db:
        assert carry_out(db, commit) == msgspec.structs.replace(first, repeated=True)
        assert a_by_k(db.table("t")) == {1: 100, 2: 2}
    assert order_at(tmp_path / "store", commit) == msgspec.structs.replace(first, repeated=True)


def test_an_overwrite_leaves_nothing_of_what_was_there(db: Database, table: Table) -> None:
    table.put(numbers(range(50)))
    table.flush()
    table.put(numbers(range(40, 99)))
    before = db.snapshot()
    txn = loaded(db, table, "job", numbers([3, 95], add=1), overwrite=True)
    assert a_by_k(table) == {3: 4, 95: 96}
    assert len(a_by_k(table, as_of=before)) == 99
    table.put({"k": 4, "a": 4})
    table.flush()
    assert a_by_k(table) == {3: 4, 4: 4, 95: 96}
    assert a_by_k(table, as_of=txn) == {3: 4, 95: 96}
    assert table.get(45) is None


def test_an_overwrite_without_rows_empties_the_table(db: Database, table: Table) -> None:
    table.put(numbers(range(10)))
    loaded(db, table, "job", overwrite=True)
    assert rows_of(table) == []


def test_where_files_overlap_the_later_partition_and_chunk_win(db: Database, table: Table) -> None:
    fragments = []
    for partition, (keys, add) in enumerate([(range(60), 0), (range(40, 100), 1_000), (range(45, 50), 2_000)]):
        writer = writer_for(table, "job", partition=partition)
        writer.write(numbers(keys, add))
        fragments += writer.finish()
    result = carry_out(db, commit_of(table, "job", reversed(fragments)))
    expected = {k: k + (0 if k < 40 else 2_000 if 45 <= k < 50 else 1_000) for k in range(100)}
    assert a_by_k(table) == a_by_k(table, as_of=result.txn) == expected
    assert {key: table.get(key)["a"] for key in range(100)} == expected
    microseconds = result.txn >> 10
    at = datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)
    assert a_by_k(table, as_of=at) == expected


def test_the_row_cache_does_not_outlive_a_bulk_commit(db: Database, table: Table) -> None:
    table.put(numbers(range(10)))
    for _ in range(3):
        assert table.get(3)["a"] == 3
    assert table.stats()["row_cache"]["rows"] == 1
    loaded(db, table, "job", numbers([3], add=10))
    assert table.get(3)["a"] == 13
    assert table.get_many([3]).column("a").to_pylist() == [13]


def test_rows_changed_in_bulk_are_conflicts_and_others_are_not(db: Database, table: Table) -> None:
    table.put(numbers(range(10)))
    read = table.get(3)
    loaded(db, table, "job", numbers([3, 5], add=10))
    with pytest.raises(Conflict, match="row 3"):
        table.put({"k": 3, "a": 0}, if_unchanged_since=read.txn)
    table.put({"k": 4, "a": 0}, if_unchanged_since=read.txn)
    with pytest.raises(Conflict):
        table.put({"k": 5, "a": 0}, if_absent=True)
    assert table.increment(5, "a") == 16
    erasing = db.snapshot().txn
    loaded(db, table, "job2", overwrite=True)
    with pytest.raises(Conflict):
        table.put({"k": 9, "a": 0}, if_unchanged_since=erasing)


def test_a_transaction_that_a_bulk_commit_overtook_is_run_again(db: Database, table: Table) -> None:
    table.put(numbers([1]))
    seen = []

    def change(row: ebla.Row | None) -> dict[str, int]:
        seen.append(row["a"])
        if len(seen) == 1:
            loaded(db, table, "job", numbers([1], add=10))
        return {"a": row["a"] + 1}

    table.transact(1, change)
    assert seen == [1, 11]
    assert table.get(1)["a"] == 12


def test_another_schema_version_is_a_conflict_that_says_so(db: Database, table: Table) -> None:
    commit = written(table, "job", numbers([1]))
    db.alter_table("t", add_columns={"main": {"e": "int64"}} if len(NUMBERS.groups) > 1 else {"e": "int64"})
    with pytest.raises(Conflict, match=r"schema of 't' is not version 1 any more.*run the job again"):
        carry_out(db, commit)
    assert rows_of(table) == []
    assert not carry_out(db, written(table, "job", numbers([1]))).repeated


def test_a_dropped_table_is_unknown(db: Database, table: Table) -> None:
    commit = written(table, "job", numbers([1]))
    db.drop_table("t")
    with pytest.raises(UnknownTable, match="dropped"):
        carry_out(db, commit)
    again = db.create_table("t", NUMBERS)
    with pytest.raises(UnknownTable):
        carry_out(db, commit)
    again.put(numbers([2]))
    assert a_by_k(again) == {2: 2}


def test_files_that_are_not_as_they_were_written_are_refused(db: Database, table: Table) -> None:
    other = db.create_table("other", NUMBERS)
    commit = written(table, "job", numbers([1]), numbers([2]))
    (made,) = commit.fragments
    with pytest.raises(RequestError, match="not a file of job"):
        carry_out(db, msgspec.structs.replace(commit, job="another"))
    with pytest.raises(RequestError, match="not a file of job"):
        carry_out(db, msgspec.structs.replace(commit, table_id=state_of(other).id))
    path = db.path / made.fragment.file
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(MissingFile, match="bytes"):
        carry_out(db, commit)
    path.unlink()
    with pytest.raises(MissingFile, match="run the job again"):
        carry_out(db, commit)
    path.write_bytes(content)
    carry_out(db, commit)
    assert a_by_k(table) == {1: 1, 2: 2}


def test_a_store_opened_for_reading_commits_nothing(db: Database, table: Table) -> None:
    commit = written(table, "job", numbers([1]))
    with ebla.open(db.path, read_only=True) as reading, pytest.raises(ReadOnly):
        carry_out(reading, commit)


# --- readers beside the owner --------------------------------------------------------------------


@pytest.mark.parametrize("flushed", ["nothing", "before", "after"])
def test_a_read_only_open_sees_bulk_commits_and_stays(tmp_path: Path, flushed: str) -> None:
    settings = Settings(close_flush_bytes=0)
    with ebla.open(tmp_path / "store", settings=settings) as db:
        table = db.create_table("t", NUMBERS)
        if flushed != "nothing":
            table.put(numbers(range(5)))
        if flushed == "before":
            table.flush()
        result = carry_out(db, written(table, "job", numbers([3, 30], add=10)))
        expected = a_by_k(table)
        with ebla.open(db.path, read_only=True) as reading:
            snapshot = reading.snapshot().txn
            assert snapshot >= result.txn
            table.put(numbers([3], add=100))
            loaded(db, table, "job2", numbers([30, 31], add=100))
            table.flush()
            assert a_by_k(reading.table("t")) == expected
            assert a_by_k(table, as_of=snapshot) == expected
    with ebla.open(tmp_path / "store", read_only=True) as reading:
        assert a_by_k(reading.table("t")) == {**expected, 3: 103, 30: 130, 31: 131}


@pytest.mark.parametrize("logged", [False, True])
def test_a_read_only_open_reaches_the_history_of_a_table_when_a_newer_one_is_gone(tmp_path: Path, logged: bool) -> None:
    settings = Settings(background_compaction=False, history_seconds=0.0)
    with ebla.open(tmp_path / "store", settings=settings) as db:
        table, newer = db.create_table("t", NUMBERS), db.create_table("newer", NUMBERS)
        if logged:
            table.put({"k": 3, "a": 9})
        loaded(db, table, "first", numbers(range(5)))
        loaded(db, table, "second", numbers(range(5), add=1))
        loaded(db, newer, "third", numbers(range(5)))
        table.compact()  # with the newest commit of all as its horizon
        db.drop_table("newer")
        with ebla.open(tmp_path / "store", read_only=True) as reader:
            assert a_by_k(reader.table("t")) == {key: key + 1 for key in range(5)}
    with ebla.open(tmp_path / "store", read_only=True) as reader:
        assert a_by_k(reader.table("t")) == {key: key + 1 for key in range(5)}


def test_every_snapshot_taken_beside_puts_and_bulk_commits_is_stable(tmp_path: Path) -> None:
    settings = Settings(flush_bytes=20_000, log_segment_bytes=8_192)
    with ebla.open(tmp_path / "store", settings=settings) as db:
        table = db.create_table("t", NUMBERS, splits=[(50,)])
        commits = [written(table, f"job{n}", numbers(range(0, 100, 3), add=10_000 * (n + 1))) for n in range(8)]
        done = threading.Event()
        looked = threading.Semaphore(0)  # so that there are snapshots between the commits, however slow they are
        failures: list[BaseException] = []

        def puts(thread: int) -> None:
            number = 0
            while not done.is_set():
                table.put(numbers(range(thread, 100, 7), add=number), wait=("durable", "logged", "none")[number % 3])
                number += 1

        def bulks() -> None:
            for number, commit in enumerate(commits):
                assert looked.acquire(timeout=60)
                assert not carry_out(db, commit).repeated
                if number % 3 == 1:
                    table.flush()

        def guarded(work: object, *arguments: object) -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)
            finally:
                if work is bulks:
                    done.set()

        threads = [threading.Thread(target=guarded, args=(puts, number)) for number in range(2)]
        threads.append(threading.Thread(target=guarded, args=(bulks,)))
        for thread in threads:
            thread.start()
        seen: dict[int, dict[int, int]] = {}
        while not done.is_set():
            snapshot = db.snapshot()
            seen[snapshot.txn] = a_by_k(snapshot.table("t"))
            with ebla.open(db.path, read_only=True) as reading:
                txn = reading.snapshot().txn
                rows = a_by_k(reading.table("t"))
                assert seen.setdefault(txn, rows) == rows
            looked.release()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(seen) > 3
        for txn, rows in seen.items():
            assert a_by_k(table, as_of=txn) == rows
    with ebla.open(tmp_path / "store") as db:
        for txn, rows in seen.items():
            assert a_by_k(db.table("t"), as_of=txn) == rows


# --- jobs ----------------------------------------------------------------------------------------


def test_ending_a_job_removes_what_nobody_names(db: Database, table: Table) -> None:
    intent = begin_job(db, "job", "t")
    assert intent.table_id == state_of(table).id
    assert [one.job for one in list_intents(coordination_of(db))] == ["job"]
    losing, winning = written(table, "job", numbers([1])), written(table, "job", numbers([2]))
    others = written(table, "job-2", numbers([3]))
    table.put(numbers([4]))
    table.flush()
    carry_out(db, winning)
    assert end_job(db, "job") == [one.fragment.file for one in losing.fragments]
    assert list_intents(coordination_of(db)) == []
    assert end_job(db, "job") == []
    assert a_by_k(table) == {2: 2, 4: 4}
    carry_out(db, others)
    assert a_by_k(table) == {2: 2, 3: 3, 4: 4}


def test_jobs_begin_and_end_beside_the_owner(db: Database, table: Table) -> None:
    first = begin_job_at(db.path, "job", "t")
    assert begin_job_at(db.path, "job", "t").created_microseconds >= first.created_microseconds
    db.create_table("other", NUMBERS)
    with pytest.raises(RequestError, match="another table"):
        begin_job_at(db.path, "job", "other")
    with pytest.raises(UnknownTable):
        begin_job_at(db.path, "job2", "missing")
    leftover = written(table, "job", numbers([1]))
    db.drop_table("t")
    assert end_job_at(db.path, "job") == [one.fragment.file for one in leftover.fragments]
    assert list_intents(coordination_of(db)) == []


def test_files_to_keep_are_kept(db: Database, table: Table) -> None:
    begin_job(db, "job", "t")
    first, second = (written(table, "job", numbers([key])).fragments[0].fragment.file for key in (1, 2))
    assert end_job(db, "job", keep=[second]) == [first]
    assert [info.path for info in files_of(table).list(f"fragments/{state_of(table).id}")] == [second]


# --- the owner is in this very process -----------------------------------------------------------


def test_a_commit_at_the_root_finds_the_owner_in_the_same_process(db: Database, table: Table) -> None:
    result = order_at(db.path, written(table, "job", numbers([1, 2])))
    assert not result.repeated
    assert a_by_k(table) == {1: 1, 2: 2}
    assert coordination_of(db).list("bulk") == []
    with pytest.raises(Conflict, match="run the job again"):
        order_at(db.path, BulkCommit("late", state_of(table).id, 9, ()))
    with pytest.raises(UnknownTable):
        order_at(db.path, BulkCommit("lost", "nowhere", 1, ()))
    with pytest.raises(RequestError, match="id of a job"):
        order_at(db.path, BulkCommit("a/b", state_of(table).id, 1, ()))
    assert coordination_of(db).list("bulk") == []


def test_a_commit_stands_if_the_store_that_was_opened_for_it_cannot_be_closed_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path / "store") as db:
        commit = written(db.create_table("t", NUMBERS), "job", numbers(range(3)))

    def fail(self: Flusher, bytes_max: int) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(Flusher, "flush_down_to", fail)
        assert not order_at(tmp_path / "store", commit).repeated
        with pytest.raises(Conflict, match="schema"):
            order_at(tmp_path / "store", msgspec.structs.replace(commit, job="other", schema_version=9))
    with ebla.open(tmp_path / "store") as db:
        assert a_by_k(db.table("t")) == {0: 0, 1: 1, 2: 2}


def test_values_that_do_not_fit_never_become_part_of_a_table(db: Database, table: Table) -> None:
    with pytest.raises(InvalidBatch):
        written(table, "job", pa.record_batch({"k": [1], "a": ["x"]}))
    assert rows_of(table) == []
