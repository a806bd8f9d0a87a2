"""Replay: after it a store has what opening would have given it, nothing is in the log, and nothing is half done."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import ebla
from ebla.client.embedded.coordination_place import connect_at
from ebla.clock import SystemClock
from ebla.direct import log_replay
from ebla.direct.jobs_at import begin_job_at
from ebla.direct.log_replay import LogReplay
from ebla.direct.log_sorting import ReplayTask
from ebla.errors import Conflict, Corruption, MissingFile, RequestError, StoreError, StoreLocked, StoreNotFound
from ebla.pipeline import replay
from ebla.pipeline.spark.progress import JobProgress
from ebla.settings import KIB
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.garbage.job_intents import list_intents
from ebla.tablet.recovery.log_sort import SortedPortion, divide_segments
from tests.direct.bulk_world import written
from tests.pipeline.replaying.replay_world import (
    UNFLUSHED,
    Here,
    contents,
    copied,
    died,
    log_of,
    opened,
    replay_here,
    unflushed_bytes,
)
from tests.recovery.test_reopening import apply
from tests.support.inside import abandon, carry_out, coordination_of, engine_of, state_of
from tests.support.logs import flipped, without_reserved
from tests.support.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = 3
SEEDS_SOAK = 100
PLAIN = ebla.Schema(key={"k": "string"}, columns={"n": "int64", "text": "string"})


def plain(root: Path, commits: int = 40) -> None:
    """A store of one table in three tablets that dies with all of its commits in the log."""
    db = ebla.open(root, settings=UNFLUSHED)
    table = db.create_table("t", PLAIN, ["g", "p"])
    for n in range(commits):
        table.put([{"k": f"{letter}{n % 7}", "n": n, "text": "x" * 200} for letter in "chr"])
    abandon(db)


def segments(root: Path) -> list[Path]:
    return sorted((root / "log").rglob("*.log"))


# --- the outcome ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(SEEDS, SEEDS_SOAK))
def test_a_store_has_what_opening_would_have_given_it(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    root = tmp_path / "store"
    txns = died(root, seed)
    expected = opened(copied(root), txns)
    monkeypatch.setattr(log_replay, "FLUSH_BYTES", dice.choice((2 * KIB, 16 * KIB, 1 << 30)))
    done = replay_here(root, dice.choice((1, 2, 3, 7)), Here(dice))
    assert done.entries > 0
    with ebla.open(root, read_only=True) as db:
        assert contents(db, txns) == expected
    with ebla.open(root, settings=UNFLUSHED) as db:
        assert unflushed_bytes(db) == 0
        assert contents(db, txns) == expected
        assert len(log_of(root)) == 1
        for name in db.tables():
            db.table(name).compact()
        assert contents(db) == {name: rows for name, rows in expected.items() if "as of None" in name}
    assert ebla.verify(root).is_clean


def test_a_replay_on_spark_is_the_same(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_replay, "FLUSH_BYTES", 16 * KIB)
    root = tmp_path / "store"
    txns = died(root, 100)
    expected = opened(copied(root), txns)
    without_reserved(segments(root)[-1])
    told: list[JobProgress] = []
    done = replay(root, portions=3, spark=spark, progress=told.append)
    assert opened(root, txns) == expected
    assert (done.portions, done.files > 3, done.records > 50) == (3, True, True)
    assert {"sorting", "committing"} <= {progress.phase for progress in told}
    files = {str(path.relative_to(root)) for path in root.glob("fragments/*/*.parquet")}
    with ebla.open(root, settings=UNFLUSHED) as db:
        states = [engine_of(db).table(name).view.metadata for name in db.tables()]
        named = {file for metadata in states for file in metadata.files()}
        assert named <= files
        assert db.gc().by_jobs == 0


def test_writing_goes_on_after_a_replay(tmp_path: Path) -> None:
    root = tmp_path / "store"
    plain(root)
    replay_here(root, 3)
    with ebla.open(root, settings=UNFLUSHED) as db:
        table = db.table("t")
        before = table.scan().txn
        assert table.put({"k": "c0", "n": -1}) > before
        table.flush()
    with ebla.open(root, settings=UNFLUSHED) as db:
        assert db.table("t").get("c0")["n"] == -1
        assert db.table("t").get("c1")["n"] == 36
    # The log goes on after the numbers that were used.
    assert min(int(path.stem) for path in segments(root)) > 1


def test_what_clients_were_told_outlives_the_log(tmp_path: Path) -> None:
    root = tmp_path / "store"
    db = ebla.open(root, settings=UNFLUSHED)
    db.create_table("t", PLAIN)
    first = [apply(db, {"k": "a", "n": n, "text": "x" * 900}, (f"client {n}", 7)) for n in range(12)]
    newest = apply(db, {"k": "a", "n": 99}, ("client 3", 8))
    abandon(db)
    without_reserved(segments(root)[-1])
    assert replay_here(root, 3).portions == 3
    with ebla.open(root, settings=UNFLUSHED) as db:
        assert apply(db, {"k": "a", "n": 5}, ("client 5", 7)) == first[5]
        assert apply(db, {"k": "a", "n": 3}, ("client 3", 8)) == newest
        assert db.table("t").get("a")["n"] == 99
        assert apply(db, {"k": "a", "n": 100}, ("client 3", 9)) > newest


def test_replaying_twice_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    plain(root)
    replay_here(root, 2)
    log, rows = log_of(root), opened(copied(root, "one"))
    again = replay_here(root, 2)
    assert (again.tables, again.records, again.files) == ((), 0, 0)
    assert log_of(root) == log
    assert opened(root) == rows
    empty = tmp_path / "empty"
    ebla.open(empty).close()
    assert replay_here(empty).segments == 0


def test_jobs_of_others_are_left_alone_whatever_they_are_called(tmp_path: Path) -> None:
    root = tmp_path / "store"
    plain(root)
    with ebla.open(root, settings=UNFLUSHED) as db:
        job = begin_job_at(root, "replay-of-monday", "t")
        commit = written(db.table("t"), job.job, pa.record_batch({"k": ["new"], "n": [1]}))
        db.table("t").put({"k": "a", "n": 1})
        abandon(db)
    replay_here(root)
    with ebla.open(root, settings=UNFLUSHED) as db:
        assert list_intents(coordination_of(db)) == [job]
        carry_out(db, commit)
        assert db.table("t").get("new")["n"] == 1


def test_a_log_that_is_flushed_already_is_only_let_go_of(tmp_path: Path) -> None:
    root = tmp_path / "store"
    plain(root)
    expected = opened(copied(root, "one"))
    with ebla.open(root, settings=UNFLUSHED) as db:
        log = copied(root, "two") / "log"
        db.table("t").flush()
    for path in log.rglob("*.log"):  # back before the one that is left, as if they had not been removed yet
        target = root / "log" / path.relative_to(log)
        target.write_bytes(path.read_bytes())
    done = replay_here(root, 2)
    assert (done.tables, done.files, done.segments > 3) == ((), 0, True)
    assert len(log_of(root)) == 1
    assert opened(root) == expected


# --- what must not be ----------------------------------------------------------------------------


@pytest.mark.parametrize("portions", [1, 3])
def test_a_torn_end_is_passed_over_and_a_damaged_middle_is_refused(tmp_path: Path, portions: int) -> None:
    root = tmp_path / "store"
    plain(root)
    expected = opened(copied(root, "whole"))
    last = segments(root)[-1]
    without_reserved(last)
    torn = last.read_bytes() + b"\xebLE\x01" + bytes(100)
    last.write_bytes(torn)
    for middle in segments(root)[1:3]:
        good = middle.read_bytes()
        middle.write_bytes(flipped(good, len(good) // 2))
        log = log_of(root)
        with pytest.raises(Corruption, match="does not match its checksum") as raised:
            replay_here(root, portions)
        assert raised.value.file == str(middle.relative_to(root))
        assert raised.value.offset is not None
        assert 64 <= raised.value.offset <= len(good) // 2
        assert log_of(root) == log, "nothing was changed"
        middle.write_bytes(good)
    assert not list(root.glob("fragments/*/*")), "what was sorted in vain is gone"
    done = replay_here(root, portions)
    assert done.torn_bytes == 104
    assert opened(root) == expected


def test_damage_is_told_with_file_and_offset_through_spark(tmp_path: Path, spark: SparkSession) -> None:
    root = tmp_path / "store"
    plain(root)
    middle = segments(root)[2]
    middle.write_bytes(flipped(middle.read_bytes(), 1_000))
    with pytest.raises(Corruption) as raised:
        replay(root, portions=4, spark=spark)
    assert (raised.value.file, raised.value.offset is not None) == (str(middle.relative_to(root)), True)


@pytest.mark.soak
def test_what_fails_in_a_task_is_told_through_spark(tmp_path: Path, spark: SparkSession) -> None:
    root = tmp_path / "store"
    plain(root)
    log = log_of(root)
    (root / "fragments").write_text("in the way of the directory")
    with pytest.raises(StoreError, match=r"^the log cannot be sorted: .*: free space or mend the cause, retry$"):
        replay(root, portions=2, spark=spark)
    assert log_of(root) == log


def test_a_log_that_lost_something_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    plain(root)
    middle, data = segments(root)[2], segments(root)[2].read_bytes()
    middle.unlink()
    with pytest.raises(MissingFile, match=middle.name):
        replay_here(root, 3)
    # Cut after a whole entry: nothing but the length, which the next segment knows, tells.
    middle.write_bytes(data[: data.rfind(b"\xebLE\x01")])
    with pytest.raises(Corruption, match="when the next segment was begun"):
        replay_here(root, len(segments(root)))
    # Another segment in its place.
    middle.write_bytes(segments(root)[1].read_bytes())
    with pytest.raises(Corruption, match="it is segment"):
        replay_here(root, 3)
    middle.write_bytes(data)
    count = len(segments(root))
    assert replay_here(root, 3).segments == count


def test_a_damaged_table_is_left_alone_and_the_log_is_kept_for_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    db = ebla.open(root, settings=UNFLUSHED)
    tables = [db.create_table(name, PLAIN) for name in ("hurt", "whole")]
    for n in range(20):
        for table in tables:
            table.put({"k": str(n), "n": n, "text": "x" * 500})
    hurt = root / "metadata" / tables[0].stats()["id"]
    abandon(db)
    expected = opened(copied(root))
    hurt.rename(tmp_path / "hurt")
    log = log_of(root)
    done = replay_here(root, 2)
    assert (done.tables, list(done.refused)) == (("whole",), ["hurt"])
    assert log_of(root) == log
    (tmp_path / "hurt").rename(hurt)
    assert opened(copied(root, "mended")) == expected
    done = replay_here(root, 2)
    assert (done.tables, done.refused) == (("hurt",), {})
    assert len(log_of(root)) == 1
    assert opened(root) == expected


def test_the_log_is_kept_for_a_table_that_the_catalog_has_lost(tmp_path: Path) -> None:
    root = tmp_path / "store"
    db = ebla.open(root, settings=UNFLUSHED)
    tables = [db.create_table(name, PLAIN) for name in ("lost", "whole")]
    for n in range(20):
        for table in tables:
            table.put({"k": str(n), "n": n, "text": "x" * 500})
    lost = state_of(tables[0]).id
    abandon(db)
    expected = opened(copied(root))
    paths = (f"tables/{lost}", "names/lost")
    with connect_at(root, SystemClock(), read_only=False) as coordination:
        nodes = {path: coordination.read(path) for path in paths}
        for path, node in nodes.items():
            coordination.delete(path, node.version)
    log = log_of(root)
    done = replay_here(root, 2)
    assert (done.tables, list(done.refused)) == (("whole",), [lost])
    assert log_of(root) == log
    with connect_at(root, SystemClock(), read_only=False) as coordination:
        for path, node in nodes.items():
            coordination.create(path, node.value)
    assert opened(root) == expected


def test_a_store_that_is_open_is_left_alone(tmp_path: Path, root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=UNFLUSHED) as db:
        db.create_table("t", PLAIN).put({"k": "a", "n": 1})
        with pytest.raises(StoreLocked):
            replay(root, spark=spark)
        with pytest.raises(RequestError, match="close this one"):
            replay(db, spark=spark)  # type: ignore[arg-type]
        assert db.table("t").put({"k": "b", "n": 1})
    with pytest.raises(StoreNotFound):
        replay(tmp_path / "nothing", spark=spark)
    for portions in (0, -1, True, "3"):
        with pytest.raises(RequestError, match="portions"):
            replay(root, portions=portions, spark=spark)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="directory"):
        replay(3, spark=spark)  # type: ignore[arg-type]


class Meanwhile(Here):
    """Sorts, and then something happens."""

    def __init__(self, happens: Any) -> None:
        super().__init__()
        self._happens = happens

    def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
        sorted_ = super().sort(task)
        self._happens(task)
        return sorted_


def test_somebody_who_flushed_meanwhile_wins_and_nothing_is_half_done(tmp_path: Path) -> None:
    root = tmp_path / "store"
    plain(root)
    expected = opened(copied(root, "one"))
    stolen = tmp_path / "stolen"

    def flush_elsewhere(task: ReplayTask) -> None:
        # Somebody who lost the lock and did not notice: it flushes what it has in memory.
        (root / "LOCK").rename(root / "LOCK.held")
        db = ebla.open(root, settings=UNFLUSHED)
        db.table("t").put({"k": "new", "n": 1})
        db.table("t").flush()
        abandon(db)
        (root / "LOCK.held").rename(root / "LOCK")
        stolen.write_text("done")

    with pytest.raises(Conflict, match="run it again"):
        replay_here(root, 3, Meanwhile(flush_elsewhere))
    assert stolen.exists()
    rows = opened(copied(root, "two"))
    assert len(rows["t as of None, 1"]) == len(expected["t as of None, 1"]) + 1
    replay_here(root, 3)
    assert opened(root) == rows


def test_a_table_that_is_dropped_or_altered_meanwhile(tmp_path: Path) -> None:
    for change, is_refused in (("drop", False), ("alter", True)):
        root = tmp_path / change
        plain(root)

        def happens(task: ReplayTask, root: Path = root, change: str = change) -> None:
            (root / "LOCK").rename(root / "LOCK.held")
            db = ebla.open(root, settings=UNFLUSHED)
            if change == "drop":
                db.drop_table("t")
            else:
                db.alter_table("t", add_columns={"more": "int64"})
            abandon(db)
            (root / "LOCK.held").rename(root / "LOCK")

        if is_refused:
            with pytest.raises(Conflict, match="changed by somebody else"):
                replay_here(root, 3, Meanwhile(happens))
        else:
            assert replay_here(root, 3, Meanwhile(happens)).tables == ()
        with ebla.open(root, settings=UNFLUSHED) as db:
            assert db.tables() == ([] if change == "drop" else ["t"])


def test_a_replay_that_dies_leaves_the_log_as_it_was_and_can_be_run_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    txns = died(root, 7)
    expected = opened(copied(root), txns)
    log = log_of(root)

    def dies(task: ReplayTask) -> None:
        raise KeyboardInterrupt

    class Killed(Here):
        """Writes its files, and is gone without a word."""

        def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
            super().sort(task)
            raise SystemExit

    with pytest.raises(KeyboardInterrupt):
        replay_here(root, 3, Meanwhile(dies))
    assert log_of(root) == log
    assert opened(copied(root, "again"), txns) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogReplay, "_end", lambda self, jobs: None)
        with pytest.raises(SystemExit):
            replay_here(root, 3, Killed())
    left = set(root.glob("fragments/*/replay-*"))
    assert left
    assert log_of(root) == log
    replay_here(root, 3)
    assert not left & set(root.glob("fragments/*/replay-*")), "the next one cleans up after it"
    assert opened(root, txns) == expected


def test_a_portion_that_is_missing_or_comes_twice_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    plain(root)

    class Forgetful(Here):
        def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
            return list(super().sort(task))[1:]

    class Stuttering(Here):
        def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
            return list(super().sort(task)) * 2

    log = log_of(root)
    for sorters in (Forgetful(), Stuttering()):
        with pytest.raises(StoreError, match="not every portion"):
            replay_here(root, 3, sorters)
    assert log_of(root) == log


def test_a_disk_that_is_full_at_the_end_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    plain(root)
    expected = opened(copied(root))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ebla.storage.log.log_writer.LogWriter.append", full)
        with pytest.raises(StoreError, match="all is in fragments now"):
            replay_here(root, 2)
    with ebla.open(root, settings=UNFLUSHED) as db:
        assert unflushed_bytes(db) == 0
        assert contents(db) == expected


@pytest.mark.parametrize("deleted", [0, 2, 5])
def test_a_replay_that_dies_while_it_removes_the_log_leaves_no_hole_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    root = tmp_path / "store"
    plain(root)
    expected = opened(copied(root))
    count = len(segments(root))
    assert count > 8
    delete = LocalFiles.delete
    gone: list[str] = []

    def dies(files: LocalFiles, path: str) -> None:
        if path.startswith("log/"):
            if len(gone) == deleted:
                raise KeyboardInterrupt
            gone.append(path)
        delete(files, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "delete", dies)
        with pytest.raises(KeyboardInterrupt):
            replay_here(root, 2)
    segments(root)[3].unlink()  # as the power may leave it: the names that went were not synced yet
    assert len(segments(root)) == count - deleted - 1
    with ebla.open(root, read_only=True) as db:
        assert contents(db) == expected
    again = copied(root, "again")
    assert replay_here(again).segments == 1
    for one in (root, again):
        with ebla.open(one, settings=UNFLUSHED) as db:
            assert contents(db) == expected
            assert len(log_of(one)) == 1
    assert ebla.verify(root).is_clean


def test_a_disk_that_is_full_in_a_task_is_told_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    plain(root)
    log = log_of(root)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for place in ("_DirectFile.write", "_DirectFile.flush", "_DirectFile.sync", "DirectFiles.create"):
        with monkeypatch.context() as patch:
            patch.setattr(f"ebla.storage.files.direct_files.{place}", full)
            with pytest.raises(StoreError, match="No space left"):
                replay_here(root, 3)
        assert log_of(root) == log
        assert not list(root.glob("fragments/*/*"))


def test_segments_are_divided_evenly_and_each_once() -> None:
    dice = random.Random(5)
    for _ in range(300):
        sizes = [dice.choice((0, 1, 64, dice.randint(1, 1_000))) for _ in range(dice.randint(1, 40))]
        portions = dice.randint(1, 12)
        divided = divide_segments(sizes, portions)
        assert [at for own in divided for at in own] == list(range(len(sizes)))
        assert 1 <= len(divided) <= portions
        assert all(divided)
        shares = [sum(sizes[at] for at in own) for own in divided]
        assert max(shares) <= sum(sizes) / min(portions, len(sizes)) + max(sizes)
