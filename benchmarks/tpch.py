"""TPC-H: the 22 queries on plain Parquet and on Ebla, freshly loaded, after updates, and compacted; refresh functions.

    data            tpchgen-cli, scale 0.2 unless `--scale` says otherwise
    plain           the generator's Parquet files as views of the session
    frames          `db.spark(table)` of every table, made once for each state, as views
    SQL             the same store attached (`ebla.pipeline.attach`): views that every query looks up anew
    format          `spark.read.format("ebla")` of every table, as views; for the updated state alone

    loaded          as `ebla.pipeline.load` left it
    1 % updated     every hundredth lineitem put again with another quantity, price and comment, and flushed
    compacted       after `compact`, with the history that is kept by default

Every query is run on all ways in turns, once before it counts; the median of the rounds counts. A line is the sum of
the 22 medians. Every answer is held against DuckDB's, which works on rows that Arrow changed, not Ebla. Beside each sum
stands the query that is furthest from what a single one may take: twice its time on Parquet and 0.2 s.

The refresh functions add and remove a thousandth of all orders with their lines: by `put` and `erase_many`, and by
frames through Spark. A merge has a hundredth of lineitem, changed, and the new lines of the refresh functions;
the peer is deltalake's merge of the same rows into the same table. Compaction in the background is off.

Scale 0.2 takes five to eight minutes on two quiet cores, `--quick` (0.02, one round) two to three.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import ebla
import ebla.pipeline
from benchmarks.harness import Options, check, say, scratch, timed
from benchmarks.report import Comparison, Figure, Goal, Report, at_least_ratio, rate, under, within_time
from benchmarks.store import AS_LOADED
from benchmarks.tpch_data import (
    Answers,
    changed_lines,
    differences,
    load_tables,
    make_tables,
    new_orders,
    read,
    with_changes,
)
from benchmarks.tpch_queries import TABLES, queries

SCALE, SCALE_QUICK = 0.2, 0.02
SINGLE_FACTOR, SINGLE_SECONDS = 2.0, 0.2
_TABLE = re.compile(rf"\b({'|'.join(TABLES)})\b")

Seconds = dict[str, dict[str, float]]  # by way, by query


def run(options: Options) -> Report:
    """Measure and compare."""
    scale = options.scale or (SCALE_QUICK if options.quick else SCALE)
    spark = ebla.pipeline.session(app_name="ebla-benchmarks", log_level="OFF")
    try:
        with scratch(options) as root:
            say(f"tpch: scale {scale}")
            files = make_tables(scale, root / "plain")
            with ebla.open(root / "store", settings=AS_LOADED) as db:
                lines = _Run(spark, db, files, scale, options.repeats(2)).all()
    finally:
        spark.stop()
    return Report("tpch", f"scale {scale}, local[*], medians, sums of 22 queries, history as by default", lines)


class _Run:
    def __init__(self, spark: Any, db: Any, files: Mapping[str, Path], scale: float, rounds: int) -> None:
        self.spark = spark
        self.db = db
        self.files = files
        self.queries = queries(scale)
        self.rounds = rounds
        self.held: list[Any] = []

    def all(self) -> list[Comparison]:
        lines = [self._load()]
        for name in TABLES:
            self.spark.read.parquet(str(self.files[name])).createOrReplaceTempView(f"plain_{name}")
        ebla.pipeline.attach(self.spark, self.db, database="sql")
        rows, expected = read(self.files["lineitem"]), dict(self.files)
        lines += self._state("loaded", Answers(expected), 1.1)
        changes = changed_lines(rows)
        self.db.table("lineitem").put(changes)
        self.db.table("lineitem").flush()
        expected["lineitem"] = self.files["lineitem"].with_name("changed.parquet")
        pq.write_table(with_changes(rows, changes), expected["lineitem"])
        self.spark.read.parquet(str(expected["lineitem"])).createOrReplaceTempView("plain_lineitem")
        lines += self._state("1 % updated", Answers(expected), 1.4, ("format",))
        lines += self._compacted()
        lines += self._state("compacted", Answers(expected), 1.15)
        more = new_orders(read(self.files["orders"]), rows)
        return [*lines, *self._refresh(*more), self._merge(rows, more[1])]

    # --- load ---

    def _load(self) -> Comparison:
        total, _ = timed(lambda: load_tables(self.db, self.spark, self.files))
        count = sum(self.db.table(name).scan().count() for name in TABLES)
        check(count, sum(len(read(file)) for file in self.files.values()), "rows loaded")
        return Comparison("load of eight tables", rate(count, total), note=f"{total:.1f} s, the session's first minute")

    # --- queries ---

    def _compacted(self) -> list[Comparison]:
        """Compact lineitem, and say how long that took, and how much room what is only history takes."""
        table = self.db.table("lineitem")
        before = table.stats()["fragment_bytes"]
        seconds, _ = timed(table.compact)
        groups = table.stats()["groups"].values()
        every, history = (sum(one[name] for one in groups) for name in ("fragment_bytes", "history_bytes"))
        return [
            Comparison("compaction of lineitem, 1 % updated", Figure(seconds, "s")),
            Comparison(
                "room with history, against without",
                Figure(every / max(1, every - history), "x"),
                note=f"{before:,} bytes before, {every - history:,} current and {history:,} of history after",
            ),
        ]

    def _state(self, state: str, answers: Answers, factor: float, others: tuple[str, ...] = ()) -> list[Comparison]:
        self.held = [self.db.spark(name) for name in TABLES]
        for name, frame in zip(TABLES, self.held, strict=True):
            frame.createOrReplaceTempView(f"frames_{name}")
        for way in others:
            for name in TABLES:
                load = self.spark.read.format("ebla").option("root", str(self.db.path.absolute())).load(name)
                load.createOrReplaceTempView(f"{way}_{name}")
        seconds: Seconds = {way: {} for way in ("plain", "frames", "sql", *others)}
        for query, text in self.queries.items():
            say(f"  {state}, {query}")
            taken: dict[str, list[float]] = {way: [] for way in seconds}
            for turn in range(self.rounds + 1):
                for way in taken if turn % 2 else reversed(taken):
                    spent, found = timed(partial(self._ask, text, way))
                    if turn:
                        taken[way].append(spent)
                    else:
                        check(differences(found, answers.to(text)), [], f"{state}, {query}, {way}")
            for way, each in taken.items():
                seconds[way][query] = median(each)
        return self._lines(state, seconds, factor)

    def _ask(self, text: str, way: str) -> list[Any]:
        place = "sql." if way == "sql" else f"{way}_"
        return self.spark.sql(_TABLE.sub(rf"{place}\1", text)).collect()

    def _lines(self, state: str, seconds: Seconds, factor: float) -> list[Comparison]:
        sums = {way: sum(each.values()) for way, each in seconds.items()}
        plain = seconds["plain"]
        worst, bound = _furthest(seconds["frames"], plain)
        return [
            _against(f"{state}, frames", sums["frames"], "read.parquet", sums["plain"], within_time(factor)),
            _against(
                f"{state}, frames, {worst}", seconds["frames"][worst], "read.parquet", plain[worst], under(bound, "s")
            ),
            _against(f"{state}, SQL", sums["sql"], "frames", sums["frames"], within_time(1.3)),
            *(
                _against(f"{state}, {way}", sums[way], "frames", sums["frames"], within_time(1.3))
                for way in sums
                if way not in ("plain", "frames", "sql")
            ),
        ]

    # --- refresh functions ---

    def _refresh(self, orders: pa.Table, lines: pa.Table) -> list[Comparison]:
        more = {"orders": orders, "lineitem": lines}
        count = sum(map(len, more.values()))
        keys = {name: rows.select(TABLES[name]) for name, rows in more.items()}
        frames = {name: self.spark.createDataFrame(rows).cache() for name, rows in more.items()}
        for frame in frames.values():
            frame.count()

        def each(work: Callable[[str], object]) -> float:
            return timed(lambda: [work(name) for name in more])[0]

        def erase_by_frame(name: str) -> None:
            writer = frames[name].select(*TABLES[name]).write.format("ebla").mode("append")
            writer.options(root=str(self.db.path), operation="erase").save(name)

        before = self._counts()
        by_put = each(lambda name: self.db.table(name).put(more[name]))
        check(sum(self._counts()) - sum(before), count, "rows added")
        erased_by_key = each(lambda name: self.db.table(name).erase_many(keys[name]))
        by_frame = each(lambda name: ebla.pipeline.load(self.db, name, frames[name]))
        erased_by_frame = each(erase_by_frame)
        check(self._counts(), before, "rows after the refresh functions")
        return [
            Comparison("refresh, new orders by put", rate(count, by_put)),
            Comparison("refresh, orders removed by erase_many", rate(count, erased_by_key)),
            Comparison("refresh, new orders by frame", rate(count, by_frame)),
            Comparison("refresh, orders removed by frame", rate(count, erased_by_frame)),
        ]

    def _merge(self, lines: pa.Table, new: pa.Table) -> Comparison:
        from deltalake import DeltaTable, write_deltalake

        path = str(self.files["lineitem"].with_name("delta"))
        write_deltalake(path, lines)
        there = lines.take(pa.array(range(50, len(lines), 100)))
        comments = pa.array(["merged"] * len(there), there.schema.field("l_comment").type)
        source = pa.concat_tables(
            [there.set_column(there.schema.get_field_index("l_comment"), "l_comment", comments), new]
        )
        key = TABLES["lineitem"]
        seconds, done = timed(lambda: ebla.pipeline.merge(self.db, "lineitem", source, on=key))
        check((done.updated, done.inserted), (len(there), len(new)), "lines merged")
        condition = " and ".join(f"s.{name} = t.{name}" for name in key)
        merger = DeltaTable(path).merge(source, condition, source_alias="s", target_alias="t")
        peer, told = timed(merger.when_matched_update_all().when_not_matched_insert_all().execute)
        check(told["num_target_rows_updated"], len(there), "lines merged by deltalake")
        return Comparison(
            f"merge of {len(source):,} into lineitem",
            rate(len(source), seconds),
            "deltalake",
            rate(len(source), peer),
            at_least_ratio(5),
            f"{seconds:.2f} s, against {peer:.2f} s",
        )

    def _counts(self) -> list[int]:
        return [self.db.table(name).scan().count() for name in ("orders", "lineitem")]


def _furthest(taken: Mapping[str, float], plain: Mapping[str, float]) -> tuple[str, float]:
    """Return the query that comes closest to its bound, or goes furthest beyond it, and the bound in seconds."""
    bounds = {query: SINGLE_FACTOR * seconds + SINGLE_SECONDS for query, seconds in plain.items()}
    worst = max(taken, key=lambda query: taken[query] / bounds[query])
    return worst, round(bounds[worst], 2)


def _against(measure: str, seconds: float, peer: str, peer_seconds: float, goal: Goal) -> Comparison:
    return Comparison(measure, Figure(seconds, "s"), peer, Figure(peer_seconds, "s"), goal)
