"""Care of tables on Spark, against Spark's own work on the same Parquet files in the same session.

The table is that of the workload `spark`: ten columns in random order of the key, loaded, and then every tenth row
updated and flushed. Timed, best of the rounds:

    compact         `ebla.pipeline.compact` of a clone of it: both files of every tablet become one again
      against       `spark.read.parquet(files).write.parquet(...)` of the files that are merged, as they lie there
    verify          `ebla.pipeline.verify`: checksums, order, keys, and every promise of METADATA
      against       `spark.read.parquet(files)` of the same files in full, written nowhere

Planning and the commit count. No history is kept, so that compaction may leave out what was updated.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import ebla
import ebla.pipeline
from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.report import Comparison, Figure, Report, within_time
from benchmarks.spark import KEY, make_input, size_text, update
from benchmarks.store import AS_LOADED

NO_HISTORY = replace(AS_LOADED, history_seconds=0.0)


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(5_000_000, 200_000)
    spark = ebla.pipeline.session(app_name="ebla-benchmarks", log_level="OFF")
    try:
        with scratch(options) as root:
            say(f"pipeline: {rows:,} rows")
            make_input(spark, rows, root / "input")
            with ebla.open(root / "ebla", settings=NO_HISTORY) as db:
                ebla.pipeline.load(db, "bench", spark.read.parquet(str(root / "input")), key=[KEY])
                _correct(db, rows)
                lines = [_compact(spark, db, root, rows, options), _verify(spark, db, rows, options)]
    finally:
        spark.stop()
    return Report("pipeline", "compact and verify, ten columns, local[*]", lines)


def _correct(db: Any, rows: int) -> None:
    table = db.table("bench")
    every = table.scan().to_arrow()
    update(table, every.take(pa.array(range(0, rows, 10))))


def _compact(spark: Any, db: Any, root: Path, rows: int, options: Options) -> Comparison:
    files, done = db.table("bench").files(), []

    def by_ebla() -> float:
        db.clone_table("bench", "clone")
        seconds, summary = timed(lambda: ebla.pipeline.compact(db, "clone", spark=spark))
        check(summary.records_read, rows + rows // 10, "records read")
        check(summary.records_written, rows, "records written")
        check(db.table("clone").scan(columns=["half"]).count(), rows, "rows left")
        db.drop_table("clone")
        done.append(summary)
        return seconds

    def by_spark() -> float:
        target = root / "rewritten"
        shutil.rmtree(target, ignore_errors=True)
        return timed(lambda: _read(spark, db, files).write.parquet(str(target)))[0]

    best = interleave(options.repeats(3), {"Ebla": by_ebla, "Spark": by_spark})
    return Comparison(
        f"compact, {size_text(rows)}",
        Figure(best["Ebla"], "s"),
        "read and write.parquet",
        Figure(best["Spark"], "s"),
        within_time(1.5),
        f"{done[0].files_read} files into {done[0].files_written}",
    )


def _verify(spark: Any, db: Any, rows: int, options: Options) -> Comparison:
    files = db.table("bench").files()

    def by_ebla() -> float:
        seconds, report = timed(lambda: ebla.pipeline.verify(db, ["bench"], spark=spark))
        check((report.findings, report.rows), ((), rows + rows // 10), "findings and records")
        return seconds

    def by_spark() -> float:
        return timed(lambda: _read(spark, db, files).write.format("noop").mode("overwrite").save())[0]

    best = interleave(options.repeats(4), {"Ebla": by_ebla, "Spark": by_spark})
    return Comparison(
        f"verify, {size_text(rows)}",
        Figure(best["Ebla"], "s"),
        "read.parquet in full",
        Figure(best["Spark"], "s"),
        within_time(1.3),
    )


def _read(spark: Any, db: Any, files: list[str]) -> Any:
    """Return the records of fragments, txns and all, as Spark reads them."""
    shape = db.spark("bench").schema.add("_txn", "long")
    return spark.read.schema(shape).parquet(*(f"{db.path}/{file}" for file in files))
