"""A long log: replayed on Spark, against the one process that opening a store is.

A child process writes the rows of `data` in batches of 1,000, with flush limits so high that everything stays in the
log, and kills itself. Every round takes a copy of the files, and times:

    on Spark        `ebla.pipeline.replay`, and `ebla.open` of what it left
      against       `ebla.open` with default settings, and the flush of what is left in memory

Both end in the same state: the store open, all rows in fragments, and the log let go of. Compaction is off, so
that none begins within the time that is measured. The session is there before the clock starts, and so are its Python
workers: what that costs is the same for every job. The number of rows is checked afterwards. A note tells how long
opening alone took, which leaves less than `flush_bytes` in memory and all of the log where it was.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import ebla
import ebla.pipeline
from benchmarks import data, store
from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.report import Comparison, Figure, Report, at_least_ratio

BATCHES_WAITED_FOR = 1_000


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(full=10_000_000, quick=1_500_000)
    spark = ebla.pipeline.session(app_name="ebla-benchmarks", log_level="OFF")
    try:
        with scratch(options) as root:
            killed = root / "killed"
            say(f"sparkreplay: writing {rows:,} rows, to be killed")
            process = multiprocessing.get_context("spawn").Process(target=_child, args=(killed, rows))
            process.start()
            process.join()
            check(process.exitcode, -signal.SIGKILL, "exit of the child that wrote")
            lines = _lines(spark, killed, rows, options)
    finally:
        spark.stop()
    return Report("sparkreplay", f"{rows:,} rows in the log at a kill, local[*], compaction off", lines)


def _child(path: Path, rows: int) -> None:
    database, table = store.create(path, store.NO_FLUSH)
    for number, batch in enumerate(data.stream(rows)):
        table.put(batch, wait="none" if number % BATCHES_WAITED_FOR else "durable")
    database.sync()
    os.kill(os.getpid(), signal.SIGKILL)


def _lines(spark: Any, killed: Path, rows: int, options: Options) -> list[Comparison]:
    log_bytes = store.log_bytes(killed)
    opening: list[float] = []
    files: list[int] = []
    _warm(spark)
    best = interleave(
        options.repeats(3),
        {
            "on Spark": partial(_on_spark, spark, killed, rows, files),
            "one process": partial(_one_process, killed, rows, opening),
        },
    )
    return [
        Comparison(
            "replay of a log",
            Figure(log_bytes / 1e6 / best["on Spark"], "MB/s"),
            "one process",
            Figure(log_bytes / 1e6 / best["one process"], "MB/s"),
            at_least_ratio(2),
            f"{log_bytes / 1e9:.2f} GB in {best['on Spark']:.1f} s into {files[0]} files, against "
            f"{best['one process']:.1f} s, of which opening alone {min(opening):.1f} s",
        )
    ]


def _warm(spark: Any) -> None:
    """Start the Python workers, and have them load what every job of Ebla loads."""

    def load(batches: Any) -> Any:
        import ebla.direct.log_sorting  # noqa: F401 - for the time that it takes

        yield from batches

    spark.range(0, 64, 1, 16).mapInArrow(load, "id long").collect()


def _on_spark(spark: Any, killed: Path, rows: int, files: list[int]) -> float:
    def work(path: Path) -> Any:
        files.append(ebla.pipeline.replay(path, spark=spark).files)
        return store.reopen(path, store.AS_LOADED)

    return _on_a_copy(killed, rows, work)


def _one_process(killed: Path, rows: int, opening: list[float]) -> float:
    def work(path: Path) -> Any:
        seconds, opened = timed(lambda: store.reopen(path, store.AS_LOADED))
        opening.append(seconds)
        opened[1].flush()
        return opened

    return _on_a_copy(killed, rows, work)


def _on_a_copy(killed: Path, rows: int, work: Any) -> float:
    """Time work on a fresh copy of what the kill left, so that every round meets the same files."""
    copy = killed.with_name("copy")
    shutil.copytree(killed, copy)
    os.sync()
    seconds, (database, table) = timed(lambda: work(copy))
    found = sum(batch.num_rows for batch in table.scan(columns=["id"]).to_batches())
    check(found, rows, "rows after the replay")
    database.close()
    shutil.rmtree(copy)
    return float(seconds)
