"""Load and what may happen to its tasks and its driver: attempts that fail or lose, kills at the worst moment."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

import ebla
from ebla.pipeline import load
from ebla.pipeline.loading.load_task import LoadTask, TaskResult
from ebla.storage.files.files import Files
from ebla.storage.files.local_files import LocalFiles
from tests.pipeline.loading.test_load import rows_of
from tests.pipeline.loading.test_load_bad_input import leftovers
from tests.support.inside import engine_of

# The workers of Spark know nothing of the tests: what is defined here goes to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LOAD = sys.modules["ebla.pipeline.loading.load"]  # the module, which the function of its name hides


def numbers(spark: SparkSession, rows: int = 400) -> DataFrame:
    return spark.range(rows).selectExpr("concat('k', lpad(id, 4, '0')) AS k", "int(id) AS n")


def attempt_number() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def leave_a_mark(task: LoadTask) -> None:
    """Let the test know that what it is about has happened."""
    assert task.rejects is not None
    (Path(task.rejects).parent / "mark").touch()


class FailsAfterWriting(LoadTask):
    """The first attempt of every task fails when its files are complete: as one that loses a race would."""

    def run(self, partition: int, batches: Iterator[pa.RecordBatch], files: Files) -> TaskResult:
        result = super().run(partition, batches, files)
        if attempt_number() == 0:
            leave_a_mark(self)
            raise RuntimeError("lost")
        return result


class DiesAfterWriting(LoadTask):
    """The worker of the first attempt is killed when its files are complete."""

    def run(self, partition: int, batches: Iterator[pa.RecordBatch], files: Files) -> TaskResult:
        result = super().run(partition, batches, files)
        if attempt_number() == 0 and partition == 0:
            leave_a_mark(self)
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class FailsInTheMiddle(LoadTask):
    """The first attempt fails after its first batch."""

    def run(self, partition: int, batches: Iterator[pa.RecordBatch], files: Files) -> TaskResult:
        def cut() -> Iterator[pa.RecordBatch]:
            yield next(batches, None) or pa.record_batch({})
            if attempt_number() == 0:
                leave_a_mark(self)
                raise RuntimeError("lost")
            yield from batches

        return super().run(partition, cut() if partition == 0 else batches, files)


class FullFiles(LocalFiles):
    """A disk with room for the beginning of a file."""

    def create(self, path: str) -> Any:
        made = super().create(path)

        def refuse(_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        made.write = made.write_buffers = refuse  # type: ignore[method-assign]
        return made


class MeetsAFullDisk(LoadTask):
    """The second partition finds no room."""

    def run(self, partition: int, batches: Iterator[pa.RecordBatch], files: Files) -> TaskResult:
        return super().run(partition, batches, FullFiles(self.root) if partition == 1 else files)


@pytest.mark.parametrize("kind", [FailsAfterWriting, DiesAfterWriting, FailsInTheMiddle])
def test_files_of_attempts_that_did_not_count_are_neither_committed_nor_left(
    spark: SparkSession, db: ebla.Database, monkeypatch: pytest.MonkeyPatch, kind: type[LoadTask], tmp_path: Path
) -> None:
    monkeypatch.setattr(LOAD, "LoadTask", kind)
    rejected = numbers(spark).selectExpr("CASE WHEN n % 100 <> 0 THEN k END AS k", "n")
    done = load(db, "t", rejected, key="k", partitions=2, rejects=tmp_path / "r")
    assert (tmp_path / "mark").exists()
    assert (done.rows, done.rejected, done.duplicates) == (396, 4, 0)
    assert len(rows_of(db, "t")) == 396
    named = set(engine_of(db).table("t").view.metadata.files())
    assert sorted(named) == sorted(leftovers(db))
    assert len(list((tmp_path / "r").iterdir())) == 1


def test_a_full_disk_fails_the_load_with_its_own_error_and_leaves_nothing(
    spark: SparkSession, db: ebla.Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    numbers(spark).write.parquet(str(tmp_path / "in"))
    monkeypatch.setattr(LOAD, "LoadTask", MeetsAFullDisk)
    with pytest.raises(ebla.StoreError) as failed:
        load(db, "t", spark.read.parquet(str(tmp_path / "in")), key="k", partitions=2, job="j", rejects=tmp_path / "r")
    assert "No space left on device" in str(failed.value)
    assert "free space" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert leftovers(db) == []
    assert db.tables() == []
    assert list((tmp_path / "r").iterdir()) == []
    # With room again, the same job succeeds.
    monkeypatch.undo()
    assert load(db, "t", spark.read.parquet(str(tmp_path / "in")), key="k", partitions=2, job="j").rows == 400


# --- the driver ----------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import ebla
from ebla.pipeline import load, session
from ebla.direct.place import Place

root, when = sys.argv[1:]
commit = Place.commit

def kill(self, made):
    if when == "after":
        commit(self, made)
    os.kill(os.getpid(), signal.SIGKILL)

Place.commit = kill
spark = session("local[2]", log_level="OFF")
with ebla.open(root) as db:
    load(db, "t", spark.range(100).selectExpr("concat('k', id) AS k", "id AS n"), key="k", job="nightly")
"""


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_killed_at_the_commit_can_run_the_job_again(
    spark: SparkSession, root: str, tmp_path: Path, when: str
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    killed = subprocess.run(
        [sys.executable, str(script), root, when],
        env=os.environ | {"PYTHONPATH": str(Path(ebla.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with ebla.open(root) as db:
        assert len(rows_of(db, "t")) == (100 if when == "after" else 0)
        frame = spark.range(100).selectExpr("concat('k', id) AS k", "id AS n")
        done = load(db, "t", frame, key="k", job="nightly")
        assert done.repeated == (when == "after")
        assert len(rows_of(db, "t")) == 100
        # What the killed run left behind is gone, too.
        assert sorted(set(engine_of(db).table("t").view.metadata.files())) == sorted(leftovers(db))


class WaitsToBeKilled(LoadTask):
    """Writes its files, says so, and does not end by itself."""

    def run(self, partition: int, batches: Iterator[pa.RecordBatch], files: Files) -> TaskResult:
        result = super().run(partition, batches, files)
        leave_a_mark(self)
        while True:
            signal.pause()
        return result


def test_a_load_that_is_interrupted_from_the_keyboard_leaves_nothing(
    db: ebla.Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    def press() -> None:
        while not is_over.wait(0.05):
            if (tmp_path / "mark").exists():
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=press)
    thread.start()
    with monkeypatch.context() as patch:
        patch.setattr(LOAD, "LoadTask", WaitsToBeKilled)
        try:
            with pytest.raises(KeyboardInterrupt):
                load(db, "t", numbers(spark), key="k", rejects=tmp_path / "rejects", job="j")
        finally:
            is_over.set()
            thread.join()
    assert db.tables() == []
    assert leftovers(db) == []
    assert load(db, "t", numbers(spark), key="k", job="j").rows == 400
