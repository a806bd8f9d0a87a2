"""Compaction by a job: the rows stay, one run is left, and whatever happens beside it goes first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

import ebla
from ebla.clock import COUNTER_BITS
from ebla.errors import Corruption, HistoryGone, OutcomeUnknown, StoreError, TableUnloaded, UnknownTable
from ebla.pipeline import compact
from ebla.pipeline.care import compact_plan
from ebla.pipeline.care.compact import CompactSummary
from ebla.pipeline.care.compact_task import CompactTask, SectionResult
from ebla.service.job_orders import CompactCommit, CompactResult
from ebla.settings import Settings
from ebla.tablet.garbage.job_intents import list_intents
from ebla.tablet.tables.runs import runs_of
from tests.pipeline.tables import EVERYTHING, expected, fill, fragment_files
from tests.support.compact_here import compact_here, compacting, tasks_here
from tests.support.inside import carry_out, coordination_of, engine_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebla.pipeline.care.compact import _Compaction

BY_HAND = Settings(background_compaction=False, history_seconds=0.0)
NUMBERS = ebla.Schema(key={"k": "string"}, columns={"n": "int32", "s": "string"})


def filled(db: ebla.Database, count: int = 3_000, splits: Sequence[str] = ("01000", "02000")) -> ebla.Table:
    """Rows, corrections of some, erasures of others, in several files over three tablets."""
    table = db.create_table("t", NUMBERS, splits=list(splits))
    keys = [f"{n:05}" for n in range(count)]
    table.put([{"k": key, "n": n, "s": key} for n, key in enumerate(keys)])
    table.flush()
    table.put([{"k": key, "n": -n} for n, key in enumerate(keys) if n % 3 == 0])
    table.flush()
    table.erase_many(keys[::10])
    table.flush()
    return table


def rows(table: ebla.Table, **arguments: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**arguments)]


def groups_of(table: ebla.Table) -> list[Any]:
    return [state for tablet in state_of(table).view.metadata.tablets for state in tablet.groups if state.fragments]


@pytest.fixture
def here() -> Iterator[SparkSession]:
    """Tasks run in this process."""
    with tasks_here() as spark:
        yield spark


def before_commit(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> list[int]:
    """Do something each time that the job has merged everything and is about to commit; return how often that was."""
    commit, waiting = compacting._Compaction._commit, list(steps)
    seen: list[int] = []

    def late(self: _Compaction, *arguments: Any) -> Any:
        seen.append(len(seen))
        if waiting:
            waiting.pop(0)()
        return commit(self, *arguments)

    monkeypatch.setattr(compacting._Compaction, "_commit", late)
    return seen


# --- on Spark ------------------------------------------------------------------------------------


def test_a_table_of_everything_reads_as_before_and_has_one_run_for_each_group(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = db.create_table("t", EVERYTHING, splits=[("u020",)])
        fill(table)
        twin = db.clone_table("t", "twin")
        before = expected(table)
        summary = compact(db, "t", spark=spark)
        assert expected(table) == before
        assert all(len(runs_of(state.fragments)) == 1 and not state.erasures for state in groups_of(table))
        twin.compact()
        assert [
            [(ref.rows, ref.first, ref.last, ref.txn_min, ref.txn_max, ref.topped, ref.settled_txn > 0) for ref in own]
            for own in (state.fragments for state in groups_of(table))
        ] == [
            [(ref.rows, ref.first, ref.last, ref.txn_min, ref.txn_max, ref.topped, ref.settled_txn > 0) for ref in own]
            for own in (state.fragments for state in groups_of(twin))
        ], "what the engine itself would have written"
        assert summary.tablets == 2
        assert summary.files_written == sum(len(state.fragments) for state in groups_of(table))
        assert summary.records_written < summary.records_read
        assert ebla.verify(root).is_clean
        assert list_intents(coordination_of(db)) == []


def test_a_job_elsewhere_commits_through_the_process_that_has_the_store_open(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        before = rows(table)
        reports: list[Any] = []
        summary = compact(root, "t", spark=spark, progress=reports.append)
        assert summary.tablets == 3
        assert (summary.files_read, summary.files_written) == (3, 3), "all tablets shared three files"
        assert summary.records_written < summary.records_read
        assert {report.phase for report in reports} == {"planning", "merging", "committing"}
        assert rows(table) == before, "the owner reads what the job wrote"
        assert set(table.files()) <= fragment_files(root, table)
    summary = compact(root, "t", spark=spark)
    assert summary.tablets == 3, "nobody has it open: it is opened for a moment"
    with ebla.open(root) as db:
        assert rows(db.table("t")) == before


def test_a_task_that_fails_leaves_nothing(root: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(CompactTask):
        def run(self, portion: int, files: Any) -> list[SectionResult]:
            super().run(portion, files)
            raise StoreError("the disk is full: free space")

    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        before, files = rows(table), table.files()
        monkeypatch.setattr(compacting, "CompactTask", Fails)
        with pytest.raises(StoreError, match="free space"):
            compact(db, "t", spark=spark)
        assert table.files() == files
        assert fragment_files(root, table) == set(files)
        assert list_intents(coordination_of(db)) == []
        assert rows(table) == before


# --- what is compacted ---------------------------------------------------------------------------


def test_large_tablets_are_divided_and_their_files_lie_side_by_side(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_plan, "SECTION_BYTES_MIN", 4_000)
    schema = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"}, block_bytes=1_024)])
    with ebla.open(root, settings=BY_HAND) as db:
        table = db.create_table("t", schema)
        for step in (1, 2, 7):
            table.put([{"k": f"{n:05}", "n": n * step} for n in range(0, 4_000, step)])
            table.flush()
        table.erase_many([f"{n:05}" for n in range(0, 4_000, 5)])
        before = rows(table)
        summary = compact(db, "t", spark=here)
        assert summary.files_written > 3
        (state,) = groups_of(table)
        assert len(runs_of(state.fragments)) == 1
        assert rows(table) == before
        assert not any(ref.has_erasures for ref in state.fragments)


def test_a_range_compacts_the_tablets_that_it_touches(root: str, here: SparkSession) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        before = rows(table)
        assert compact(db, "t", start="01500", stop="01600", spark=here).tablets == 1
        assert [len(state.fragments) for state in groups_of(table)] == [3, 1, 3]
        assert compact(db, "t", prefix="00", spark=here).tablets == 1
        assert [len(state.fragments) for state in groups_of(table)] == [1, 1, 3]
        assert rows(table) == before


def test_only_what_is_due_is_merged_if_that_is_asked(root: str, here: SparkSession) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = db.create_table("t", NUMBERS, splits=["5"])
        table.put({"k": "9", "n": 1})
        table.flush()
        for n in range(6):
            table.put({"k": "1", "n": n})
            table.flush()
        assert compact(db, "t", only_due=True, spark=here).files_read == 6
        assert compact(db, "t", only_due=True, spark=here).files_read == 0


def test_a_table_that_nobody_has_is_told(root: str, db: ebla.Database, here: SparkSession) -> None:
    with pytest.raises(UnknownTable, match="check the name"):
        compact(db, "nothing", spark=here)
    db.create_table("t", NUMBERS)
    assert compact(db, "t", spark=here) == CompactSummary("t", rounds=1, seconds=pytest.approx(0, abs=60))
    db.unload_table("t")
    with pytest.raises(TableUnloaded):
        compact(db, "t", spark=here)


# --- what happens beside it ----------------------------------------------------------------------

BESIDE: dict[str, tuple[Callable[[ebla.Database, ebla.Table], object], bool]] = {
    # what is done, and whether the job has to plan something anew
    "writes": (lambda db, t: t.put([{"k": f"{n:05}", "n": 7} for n in range(0, 3_000, 7)]), False),
    "a flush": (lambda db, t: (t.put({"k": "00001", "n": 8}), t.flush()), False),
    "a range erasure": (lambda db, t: t.erase_range("00500", "01500"), False),
    "a range erasure, flushed": (lambda db, t: (t.erase_range("00500", "01500"), t.flush()), False),
    "a clone": (lambda db, t: db.clone_table("t", "u"), False),
    "a split": (lambda db, t: t.split("01500"), True),
    "a join": (lambda db, t: t.join("00000", "01500"), True),
    "a compaction": (lambda db, t: t.compact(), True),
    "a split, a compaction, a join": (lambda db, t: (t.split("00500"), t.compact(), t.join("00000", "00600")), True),
    "another column": (lambda db, t: db.alter_table("t", add_columns={"more": "int64"}), True),
    "a column less": (lambda db, t: db.alter_table("t", drop_columns=["s"]), True),
    "another name": (lambda db, t: db.alter_table("t", rename={"n": "number"}), True),
    "another type": (lambda db, t: db.alter_table("t", change_types={"n": "int64"}), True),
    "a column moved": (
        lambda db, t: db.alter_table("t", groups=[ebla.Group("h", columns={})], move={"s": "h"}),
        True,
    ),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_whatever_happens_between_plan_and_commit_goes_first(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    step, plans_anew = BESIDE[beside]
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        twin = db.clone_table("t", "twin")
        seen = before_commit(monkeypatch, lambda: step(db, table))
        summary = compact(db, "t", spark=here)
        assert summary.given_up == ()
        assert (summary.rounds > 1) is plans_anew
        assert len(seen) == summary.rounds
        monkeypatch.undo()
        twin_step = {"a clone": lambda db, t: None}.get(beside, step)
        twin_step(cast("ebla.Database", _Renamed(db)), twin)
        assert rows(table) == rows(twin)
        for name in db.tables():
            table.flush()
            assert rows(db.table(name)) == rows(db.table(name), as_of=db.sync())
        assert ebla.verify(root).is_clean
        assert fragment_files(root, table) >= set(table.files())
        unnamed = fragment_files(root, table) - {file for name in db.tables() for file in db.table(name).files()}
        assert not any("compact-" in file for file in unnamed), "what was refused is gone"
    with ebla.open(root, read_only=True) as db:
        assert rows(db.table("t")) == rows(db.table("twin"))


class _Renamed:
    """A database in which the twin is called as the table is."""

    def __init__(self, db: ebla.Database) -> None:
        self._db = db

    def alter_table(self, name: str, **arguments: Any) -> ebla.Table:
        return self._db.alter_table("twin", **arguments)


def test_the_store_leaves_the_files_of_a_job_alone_and_merges_what_has_come_since(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db, splits=())
        compactor, driver = engine_of(db).compactor, engine_of(db).compact_jobs
        merged: list[int] = []

        def disturb() -> None:
            for n in range(5):
                table.put([{"k": f"{k:05}", "n": n} for k in range(0, 3_000, 11)])
                table.flush()
            assert len(table.files()) == 8, "more than enough to be merged"
            assert compactor.compact_next()
            merged.append(compactor.tally.recent[-1].fragments_read)
            assert not compactor.compact_next()
            assert len(driver.merges.files_of(state_of(table).id)) == 3

        before_commit(monkeypatch, disturb)
        assert compact(db, "t", spark=here).rounds == 1
        assert merged == [5]
        assert driver.merges.files_of(state_of(table).id) == frozenset()
        assert len(table.files()) == 2

        def fail(*arguments: Any) -> Any:
            assert driver.merges.files_of(state_of(table).id)
            raise StoreError("the disk is full")

        monkeypatch.setattr(compacting._Compaction, "_commit", fail)
        with pytest.raises(StoreError):
            compact(db, "t", spark=here)
        assert driver.merges.files_of(state_of(table).id) == frozenset(), "given back"
        assert ebla.verify(root).is_clean


def test_a_drop_ends_the_job_and_leaves_no_file_of_it(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        before_commit(monkeypatch, lambda: db.drop_table("t"))
        with pytest.raises(UnknownTable, match="dropped"):
            compact(db, "t", spark=here)
        assert not any("compact-" in str(path) for path in Path(root).glob("fragments/*/*"))
        assert table is not None
        assert list_intents(coordination_of(db)) == []


def test_a_tablet_that_changes_every_time_is_given_up_and_others_are_done(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)

        def disturb() -> None:
            # The last tablet only.
            table.put([{"k": "02500", "n": 1}])
            table.flush()
            tablet = state_of(table).view.metadata.tablets[-1]
            assert engine_of(db).compactor.compact_tablet(state_of(table), tablet.id) == 1

        before_commit(monkeypatch, *[disturb] * 4)
        summary = compact(db, "t", spark=here)
        (left,) = summary.given_up
        assert left.tablet == table.tablets()[-1]["id"]
        assert left.reason == "another compaction has replaced its files"
        assert summary.tablets == 2
        assert ebla.verify(root).is_clean


def test_a_snapshot_that_is_held_shows_the_same_afterwards(root: str, here: SparkSession) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        old = rows(table)
        with db.snapshot() as held:
            table.erase_range("00000", "01500")
            table.put({"k": "00001", "n": 5})
            new = rows(table)
            compact(db, "t", spark=here)
            assert rows(table, as_of=held.txn) == old
        assert rows(table) == new
        compact(db, "t", spark=here)
        assert rows(table) == new
        with pytest.raises(HistoryGone):
            rows(table, as_of=held.txn)


def test_a_snapshot_that_is_taken_between_plan_and_commit_is_kept(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        old, held = rows(table), []
        before_commit(monkeypatch, lambda: held.append(db.snapshot()), lambda: table.erase_range())
        compact(db, "t", spark=here)
        table.erase_range()
        compact(db, "t", spark=here)
        assert rows(table, as_of=held[0].txn) == old
        held[0].release()


def test_an_old_txn_that_somebody_begins_to_hold_refuses_what_would_hide_it(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        old, txn = rows(table), db.sync()
        table.put([{"k": f"{n:05}", "n": 0} for n in range(3_000)])
        before_commit(monkeypatch, lambda: engine_of(db).pins.hold(txn))
        assert compact(db, "t", spark=here).rounds == 2
        assert rows(table, as_of=txn) == old


def test_writers_do_not_wait_and_nothing_is_lost(root: str, here: SparkSession) -> None:
    with ebla.open(root, settings=Settings(history_seconds=0.0, flush_bytes=20_000)) as db:
        table = filled(db)
        told: dict[str, int] = {}
        stop = threading.Event()

        def write() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                key = f"{n * 37 % 3_000:05}"
                table.put({"k": key, "n": 10_000 + n})
                told[key] = 10_000 + n

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(5):
                compact(db, "t", spark=here)
        finally:
            stop.set()
            writer.join()
        found = {row["k"]: row["n"] for row in table.scan()}
        assert told
        assert {key: found[key] for key in told} == told
        assert ebla.verify(root).is_clean


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_damaged_file_is_told_and_other_tablets_are_compacted(root: str, here: SparkSession) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = db.create_table("t", NUMBERS, splits=["5"])
        for n in range(3):
            table.put([{"k": f"{half}{k:04}", "n": n} for half in (0, 9) for k in range(2_000)])
            table.flush()
            table.split("5") if len(table.tablets()) == 1 else None
        table.put([{"k": f"9{k:04}", "n": 5} for k in range(2_000)])
        table.flush()
        (bad,) = {ref.file for ref in groups_of(table)[1].fragments} - {
            ref.file for ref in groups_of(table)[0].fragments
        }
    path = Path(root, bad)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 4] ^= 0xFF
    path.write_bytes(raw)
    with ebla.open(root, settings=BY_HAND) as db:
        with pytest.raises(Corruption, match="others were compacted"):
            compact(db, "t", spark=here)
        assert [len(state.fragments) for state in groups_of(db.table("t"))] == [1, 4]


def test_files_of_an_unknown_outcome_stay_until_the_intent_expires_and_garbage_collection_takes_them(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=Settings(background_compaction=False, garbage_age_seconds=0.0)) as db:
        table = filled(db)
        before = rows(table)

        def lost(*arguments: Any) -> Any:
            raise OutcomeUnknown("the connection broke")

        monkeypatch.setattr(engine_of(db).compact_jobs, "commit", lost)
        with pytest.raises(OutcomeUnknown):
            compact(db, "t", spark=here)
        written = {file for file in fragment_files(root, table) if "compact-" in file}
        assert len(written) == 6, "three of what is current, and three of history"
        assert db.gc(dry_run=False).by_jobs == 6
        end_intent(db)
        removed = [*db.gc(dry_run=False).removed, *db.gc(dry_run=False).removed]
        assert set(removed) == written
        assert rows(table) == before


KILLED = """
import os, signal, sys
from tests.support.compact_here import compact_here, compacting
compacting._Compaction._commit = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
compact_here(sys.argv[1], "t")
"""


def test_a_job_that_is_killed_has_changed_nothing_and_its_files_are_garbage_once_its_intent_is_gone(root: str) -> None:
    with ebla.open(root, settings=Settings(background_compaction=False, garbage_age_seconds=0.0)) as db:
        table = filled(db)
        before, named = rows(table), table.files()
        there = Path(ebla.__file__).parent.parent
        environment = os.environ | {"PYTHONPATH": str(there)}
        done = subprocess.run([sys.executable, "-c", KILLED, root], env=environment, check=False, timeout=100)
        assert done.returncode == -signal.SIGKILL
        written = {file for file in fragment_files(root, table) if "compact-" in file}
        assert len(written) == 6
        assert table.files() == named
        assert compact_here(db, "t").tablets == 3, "it is in nobody's way"
        assert db.gc(dry_run=False).by_jobs == 6
        end_intent(db)
        removed = [*db.gc(dry_run=False).removed, *db.gc(dry_run=False).removed]
        assert written <= set(removed)
        assert rows(table) == before


def end_intent(db: ebla.Database) -> None:
    """Let the one job that is under way be expired."""
    (intent,) = list_intents(coordination_of(db))
    node = coordination_of(db).read(f"intents/{intent.job}")
    assert node is not None
    coordination_of(db).delete(f"intents/{intent.job}", node.version)


def test_a_commit_that_is_repeated_does_no_harm_and_strange_ones_are_refused(
    root: str, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=BY_HAND) as db:
        table = filled(db)
        before = rows(table)
        orders: list[CompactCommit] = []
        driver = engine_of(db).compact_jobs
        commit = driver.commit
        monkeypatch.setattr(driver, "commit", lambda order: (orders.append(order), commit(order))[1])
        compact(db, "t", spark=here)
        files = table.files()
        (order,) = orders
        counted = db.stats()["compactions"]
        assert (counted["count"], counted["recent"][-1]["reason"]) == (3, "job")
        again = carry_out(db, order)
        assert isinstance(again, CompactResult)
        assert [reason for _, reason in again.refused] == ["fragments_changed"] * 3
        assert table.files() == files
        assert rows(table) == before
        strange = msgspec.structs.replace(order, job="another")
        with pytest.raises(ebla.RequestError, match="is not a file of job another"):
            carry_out(db, strange)
        Path(root, order.replacements[0].added[0].file).rename(Path(root, "elsewhere"))
        with pytest.raises(ebla.RequestError, match="is not as it was written"):
            carry_out(db, order)
        assert engine_of(db).pending.paths() == frozenset()
        assert order.replacements[0].merge.horizon >> COUNTER_BITS > 0
