"""Bulk load, scans and the data source on Spark, against Spark's own Parquet in the same session.

Every size has one input: a Parquet file of ten columns in random order of the key. Timed, best of the rounds:

    load            `ebla.pipeline.load` of the input into a new table
      against       `repartitionByRange + sortWithinPartitions + write.parquet` of the same DataFrame into as many files
    clean           count, sum and filter over `db.spark(table)`, planning included
      against       the same queries over `spark.read.parquet` of the same fragments
    clustered       the same after a tenth of the rows, neighbours by key, were updated and flushed
    uniform         the same after every tenth row was updated and flushed
    data source     all ten columns through `spark.read.format("ebla")`, written nowhere

Compaction is off: it would merge the updates that are measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import ebla
import ebla.pipeline
from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.report import Comparison, Figure, Report, at_least, rate, within_time
from benchmarks.store import AS_LOADED

KEY = "key"
MODULUS = 1_000


def run(options: Options) -> Report:
    """Measure and compare."""
    sizes = [options.rows] if options.rows is not None else [200_000] if options.quick else [1_000_000, 5_000_000]
    spark = ebla.pipeline.session(app_name="ebla-benchmarks", log_level="OFF")
    lines: list[Comparison] = []
    try:
        for rows in sizes:
            with scratch(options) as root:
                say(f"spark: {rows:,} rows")
                make_input(spark, rows, root / "input")
                lines += _load_lines(spark, root, rows, options)
                lines += _scan_lines(spark, root, rows, options)
    finally:
        spark.stop()
    return Report("spark", "ten columns, local[*], compaction off", lines)


def make_input(spark: Any, rows: int, path: Path) -> None:
    """Write the rows of the workload, in random order of the key, as Parquet."""
    from pyspark.sql import functions as f

    number = f.col("id")
    mixed = f.xxhash64(number)
    spark.range(0, rows, 1, 4).select(
        f.format_string("%016x", mixed).alias(KEY),
        (number % MODULUS).cast("int").alias("small"),
        number.alias("number"),
        (mixed / 1e6).alias("ratio"),
        (number * 0.5).alias("half"),
        f.concat(f.lit("name-"), (mixed % 100_000).cast("string")).alias("name"),
        f.concat(f.lit("city "), (number % 500).cast("string")).alias("city"),
        f.timestamp_micros(number * 1_000_000 + 1_700_000_000_000_000).alias("at"),
        f.date_add(f.lit("2020-01-01").cast("date"), (number % 2_000).cast("int")).alias("day"),
        (number % 3 == 0).alias("flag"),
    ).write.parquet(str(path))


def _load_lines(spark: Any, root: Path, rows: int, options: Options) -> list[Comparison]:
    source = spark.read.parquet(str(root / "input"))
    files: list[int] = []

    def by_ebla() -> float:
        shutil.rmtree(root / "ebla", ignore_errors=True)
        with ebla.open(root / "ebla", settings=AS_LOADED) as db:
            seconds, done = timed(lambda: ebla.pipeline.load(db, "bench", source, key=[KEY]))
            check(done.rows, rows, "rows loaded")
            files.append(done.files)
        return seconds

    def by_spark() -> float:
        target = root / "sorted"
        shutil.rmtree(target, ignore_errors=True)
        ordered = source.repartitionByRange(files[0], KEY).sortWithinPartitions(KEY)
        return timed(lambda: ordered.write.parquet(str(target)))[0]

    best = interleave(options.repeats(3), {"Ebla": by_ebla, "Spark": by_spark})
    return [
        Comparison(
            f"load, {size_text(rows)}",
            rate(rows, best["Ebla"]),
            "sorted write.parquet",
            rate(rows, best["Spark"]),
            within_time(2),
            f"{best['Ebla']:.1f} s into {files[0]} files, against {best['Spark']:.1f} s",
        )
    ]


Queries = dict[str, Callable[[Any], Any]]


def _queries() -> Queries:
    from pyspark.sql import functions as f

    return {
        "count": lambda frame: frame.count(),
        "sum": lambda frame: frame.agg(f.sum("number"), f.sum("ratio")).collect(),
        "filter": lambda frame: (
            frame.where((f.col("small") < 100) & (f.col("city") > "city 3")).agg(f.max("name")).collect()
        ),
    }


def _scan_lines(spark: Any, root: Path, rows: int, options: Options) -> list[Comparison]:
    lines = []
    with ebla.open(root / "ebla", settings=AS_LOADED) as db:
        table = db.table("bench")
        tenth = rows // 10
        clustered = table.scan().to_arrow().slice(4 * tenth, tenth)
        lines += _compare(spark, db, rows, "clean", 1.2, options)
        lines.append(_data_source(spark, root, rows, options))
        update(table, clustered)
        lines += _compare(spark, db, rows, "clustered", 2, options)
    with ebla.open(root / "ebla2", settings=AS_LOADED) as db:
        ebla.pipeline.load(db, "bench", spark.read.parquet(str(root / "input")), key=[KEY])
        table = db.table("bench")
        everything = table.scan().to_arrow()
        update(table, everything.take(pa.array(range(0, rows, 10))))
        del everything
        lines += _compare(spark, db, rows, "uniform", 4, options)
    return lines


def update(table: Any, rows: pa.Table) -> None:
    """Change one column of these rows, and flush."""
    place = rows.schema.get_field_index("half")
    changed = rows.set_column(place, "half", pa.array(np.full(len(rows), 0.25)))
    for begin in range(0, len(changed), 50_000):
        table.put(changed.slice(begin, 50_000), wait="none")
    table.flush()


def _compare(spark: Any, db: Any, rows: int, state: str, factor: float | None, options: Options) -> list[Comparison]:
    files = sorted(str(path) for path in Path(db.path).glob("fragments/*/*.parquet"))
    shape = db.spark("bench").schema
    lines = []
    for name, query in _queries().items():
        if name == "count":
            check(query(db.spark("bench")), rows, f"{state}: rows")
        best = interleave(
            options.repeats(4),
            {
                "Ebla": partial(_timed_query, lambda: db.spark("bench"), query),
                "Spark": partial(_timed_query, lambda: spark.read.schema(shape).parquet(*files), query),
            },
        )
        goal = None if factor is None else within_time(factor)
        measure = f"{state}, {name}, {size_text(rows)}"
        lines.append(Comparison(measure, Figure(best["Ebla"], "s"), "read.parquet", Figure(best["Spark"], "s"), goal))
    return lines


def _timed_query(frame: Callable[[], Any], query: Callable[[Any], Any]) -> float:
    return timed(lambda: query(frame()))[0]


def _data_source(spark: Any, root: Path, rows: int, options: Options) -> Comparison:
    def read() -> float:
        frame = spark.read.format("ebla").option("root", str(root / "ebla")).load("bench")
        return timed(lambda: frame.write.format("noop").mode("overwrite").save())[0]

    best = interleave(options.repeats(3), {"data source": read})
    return Comparison(
        f"data source, {size_text(rows)}", rate(rows, best["data source"]), goal=at_least(1_000_000, "rows/s")
    )


def size_text(rows: int) -> str:
    """Return a number of rows as people say it."""
    return f"{rows // 1_000_000}M" if rows >= 1_000_000 else f"{rows // 1_000}k"
