"""What changed in a table, against a scan of all of it, in the same session: the time goes with what changed.

A table of ten columns, loaded and compacted; then one row in a hundred is put again, whole, and flushed, and nothing is
compacted after that. Timed, best of the rounds, every column of every row written to nowhere:

    scan            `db.spark(table)`, planning included
    changes         `ebla.pipeline.changes(db, table, since)`, planning included
    with before     the same with the rows as they were

    clustered       the rows that changed are neighbours by key
    uniform         every hundredth row changed
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import ebla
import ebla.pipeline
from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.report import Comparison, Figure, Report, within_time
from benchmarks.spark import KEY, make_input
from benchmarks.store import AS_LOADED

SHARE = 100
GOAL = 0.2


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(full=5_000_000, quick=200_000)
    spark = ebla.pipeline.session(app_name="ebla-benchmarks", log_level="OFF")
    lines: list[Comparison] = []
    try:
        with scratch(options) as root:
            make_input(spark, rows, root / "input")
            for shape in ("clustered", "uniform"):
                say(f"changes: {rows:,} rows, one in {SHARE} changed, {shape}")
                with ebla.open(root / shape, settings=AS_LOADED) as db:
                    ebla.pipeline.load(db, "bench", spark.read.parquet(str(root / "input")), key=[KEY])
                    lines += _lines(db, rows, shape, options)
    finally:
        spark.stop()
    return Report("changes", f"{rows:,} rows of ten columns, local[*], compaction off", lines)


def _lines(db: Any, rows: int, shape: str, options: Options) -> list[Comparison]:
    table = db.table("bench")
    changed = rows // SHARE
    keys = table.scan().to_arrow()
    chosen = keys.slice(rows // 2, changed) if shape == "clustered" else keys.take(pa.array(range(0, rows, SHARE)))
    del keys
    since = table.scan().txn
    _update(table, chosen, 0.25)
    best = interleave(
        options.repeats(4),
        {
            "scan": partial(_written, lambda: db.spark("bench")),
            "changes": partial(_written, lambda: ebla.pipeline.changes(db, "bench", since)),
            "before": partial(_written, lambda: ebla.pipeline.changes(db, "bench", since, before=True)),
        },
    )
    check(ebla.pipeline.changes(db, "bench", since).count(), len(chosen), f"{shape}: changed rows")
    scan = Figure(best["scan"], "s")
    goal = within_time(GOAL)
    return [
        Comparison(f"{shape}", Figure(best["changes"], "s"), "full scan", scan, goal),
        Comparison(f"{shape}, with before", Figure(best["before"], "s"), "full scan", scan),
    ]


def _update(table: Any, rows: pa.Table, half: float) -> None:
    place = rows.schema.get_field_index("half")
    changed = rows.set_column(place, "half", pa.array(np.full(len(rows), half)))
    for begin in range(0, len(changed), 50_000):
        table.put(changed.slice(begin, 50_000), wait="none")
    table.flush()


def _written(frame: Any) -> float:
    return timed(lambda: frame().write.format("noop").mode("overwrite").save())[0]
