"""Garbage collection at scale: files listed and METADATA read by many tasks, judged by the engine's rules.

    1. ask       the owner of the store: what is about to be named; jobs under way: which files are to come
    2. list      directories of fragments, and of METADATA of dropped tables            on Spark
    3. read      METADATA of every table: the files that it names                       on Spark, after all is listed
    4. prove     every table was read whole, and none has come meanwhile; else from 3 again
    5. judge     listed and not named: a candidate, or if it has been one for long enough, doomed
    6. remove    by the owner, which looks once more, unless this is a dry run

Whatever cannot be listed or read ends the run, and nothing is removed; nor is it if the catalog has lost a table, which
the owner looks for, too. Rounds share their memory with those that the
store makes by itself (`tablet.candidates`), so that one takes up where the other ended.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from ebla.arguments import checked_callback, checked_flag
from ebla.client.database import Database
from ebla.direct.files import FileInfo, LocalFiles
from ebla.direct.place import Place
from ebla.direct.unused_files import (
    FRAGMENTS,
    METADATA,
    Seen,
    Strangers,
    candidates,
    dropped_ids,
    look_at_strangers,
    lost,
    sum_up,
    table_configs,
    used_by_jobs,
)
from ebla.errors import StoreError, Unavailable, UnknownTable
from ebla.metadata.values.table_config import TableConfig
from ebla.pipeline.spark.failures import plain_errors, unwrapping
from ebla.pipeline.spark.progress import JobProgress, Report, watched
from ebla.pipeline.spark.session import active_session, session
from ebla.pipeline.spark.worker import numbers_of
from ebla.retry import RACES
from ebla.service.job_orders import SWEEP_MAX, PrepareSweep, Sweep
from ebla.service.reports import GarbageReport

__all__ = ["GarbageReport", "gc"]

LISTED_SCHEMA = "path string, size bigint"
NAMED_SCHEMA = "table_id string, path string, count bigint"
BATCH_ROWS = 65_536


def gc(
    source: Database | str | os.PathLike[str],
    *,
    dry_run: bool = True,
    spark: SparkSession | None = None,
    progress: Report | None = None,
) -> GarbageReport:
    """Look on Spark for files that no table names any more; without `dry_run`, remove what has been so long enough.

    By the rules of ``db.gc()``, and with its report: a file goes when two rounds, `garbage_age_seconds` apart, have
    found it unused. `source` is a database that this process has open, or the root of a store that anybody may have
    open, or nobody. If a directory or a table cannot be read, its error is raised, and nothing is removed.
    """
    checked_callback("progress", progress)
    dry_run = checked_flag("dry_run", dry_run)
    place = Place.of(source)
    if spark is None:
        spark = active_session() or session()
    work = _Round(place, f"gc-{uuid.uuid4()}", spark, progress)
    return work.run(dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Round:
    """One round."""

    place: Place
    job: str
    spark: SparkSession
    report: Report | None

    def run(self, *, dry_run: bool) -> GarbageReport:
        terms = self.place.carry_out(PrepareSweep(self.job))
        now = terms.now_microseconds
        prefixes, held = used_by_jobs(self.place, now)
        seen = self._seen()
        before, version = candidates(self.place)
        report, verdict = sum_up(seen, frozenset(terms.young), held, prefixes, before, now, terms.age_microseconds)
        if dry_run:
            return report
        if report.lost_tables:
            raise lost(report.lost_tables)
        if self.report is not None:
            self.report(JobProgress("removing"))
        removed: list[str] = []
        for begin in range(0, len(verdict.doomed) or 1, SWEEP_MAX):
            doomed = verdict.doomed[begin : begin + SWEEP_MAX]
            is_last = begin + SWEEP_MAX >= len(verdict.doomed)
            remembered = dict(verdict.candidates) if is_last else None
            answer = self.place.carry_out(Sweep(self.job, doomed, remembered, version))
            kept = set(answer.kept)
            removed += [path for at, path in enumerate(doomed) if at not in kept]
        return replace(report, removed=tuple(removed))

    def _seen(self) -> Seen:
        """List everything, and then read METADATA of every table."""
        files = LocalFiles(self.place.root)
        try:
            directories = files.list_directories(FRAGMENTS)
            saved = {path.rpartition("/")[2]: path for path in files.list_directories(METADATA)}
            # Those of tables that are dropped by now; one that is dropped later has its turn another time.
            known = table_configs(self.place)
            dropped = [path for table_id, path in saved.items() if _is_there(known.get(table_id)) is False]
            unknown = {table_id: files.list(path) for table_id, path in saved.items() if table_id not in known}
        except OSError as error:
            raise StoreError(f"files cannot be listed: {error}: nothing was removed, retry") from error
        listed = self._frame([*directories, *dropped], _lister(self.place.root), LISTED_SCHEMA).persist()
        try:
            self._do("listing", listed.count)
            named, tables = self._named()
            try:
                seen = self._compared(listed, named)
                return self._with_strangers(seen, files, {i: unknown[i] for i in unknown if i not in tables})
            finally:
                named.unpersist()
        finally:
            listed.unpersist()

    def _named(self) -> tuple[DataFrame, dict[str, TableConfig]]:
        """Return the files that tables name, with the tables; all of them, and each read whole."""
        for _ in RACES:
            tables = table_configs(self.place)
            running = [table_id for table_id, config in tables.items() if _is_there(config)]
            named = self._frame(running, _reader(self.place.root), NAMED_SCHEMA).persist()
            # Each table says how many files it names, behind the last of them; a task that is cut off does not.
            whole = named.groupBy("table_id").agg(
                F.count("path").alias("paths"), F.count("count").alias("ends"), F.max("count").alias("count")
            )
            told = {row["table_id"]: row for row in self._do("reading METADATA", whole.collect)}
            is_whole = all(row["ends"] == 1 and row["paths"] == max(0, row["count"]) for row in told.values())
            if told.keys() != set(running) or not is_whole:
                named.unpersist()
                raise StoreError("METADATA of a table did not arrive whole: nothing was removed, run it again")
            # A table that came meanwhile may be a clone, and name what its origin has replaced since.
            after = {table_id for table_id, config in table_configs(self.place).items() if _is_there(config)}
            if after <= {table_id for table_id, row in told.items() if row["count"] >= 0}:
                return named, tables
            named.unpersist()
        raise Unavailable("tables come faster than all of them could be read: nothing was removed, try again")

    def _with_strangers(self, seen: Seen, files: LocalFiles, unknown: Mapping[str, Sequence[FileInfo]]) -> Seen:
        """Add what has METADATA and is not in the catalog; such are few, if there are any."""
        strangers = look_at_strangers(files, unknown, (), dropped_ids(self.place), seen.unnamed)
        left = {
            info.path: info.size
            for table_id in (*strangers.dropped, *strangers.abandoned)
            for info in unknown[table_id]
        }
        return replace(seen, dropped={**seen.dropped, **left}, strangers=strangers)

    def _compared(self, listed: DataFrame, named: DataFrame) -> Seen:
        by_path = named.where("path IS NOT NULL").groupBy("path").agg(F.countDistinct("table_id").alias("tables"))
        both = listed.join(by_path, "path", "left").persist()
        is_fragment = F.col("path").startswith(f"{FRAGMENTS}/")
        shared = F.when(is_fragment & (F.col("tables") > 1), F.col("size"))
        sums = both.agg(
            F.count(F.when(is_fragment, 1)).alias("files"),
            F.sum(F.when(is_fragment, F.col("size"))).alias("bytes"),
            F.count(shared).alias("shared"),
            F.sum(shared).alias("shared_bytes"),
        )
        try:
            (total,) = self._do("comparing", sums.collect)
            unused = self._do("comparing", both.where("tables IS NULL").select("path", "size").toArrow)
        finally:
            both.unpersist()
        sizes = dict(zip(unused.column(0).to_pylist(), unused.column(1).to_pylist(), strict=True))
        return Seen(
            files=total["files"],
            bytes=total["bytes"] or 0,
            shared=total["shared"],
            shared_bytes=total["shared_bytes"] or 0,
            unnamed={path: size for path, size in sizes.items() if path.startswith(f"{FRAGMENTS}/")},
            dropped={path: size for path, size in sizes.items() if path.startswith(f"{METADATA}/")},
            strangers=Strangers(),
        )

    def _frame(self, things: Sequence[str], work: Callable[[str], Iterator[dict[str, Any]]], shape: str) -> DataFrame:
        """Return what tasks make of things, some to each task."""
        count = max(1, min(len(things), 4 * self.spark.sparkContext.defaultParallelism))
        shares = [tuple(things[at::count]) for at in range(count)]
        return self.spark.range(0, count, 1, count).mapInArrow(_worker(shares, work), shape)

    def _do(self, phase: str, action: Callable[[], Any]) -> Any:
        with unwrapping(), watched(self.spark, f"{self.job}-{time.time_ns()}", phase, self.report):
            return action()


def _is_there(config: TableConfig | None) -> bool | None:
    """Tell whether a table is there; None if nobody knows it."""
    return None if config is None else config.is_there


# --- in a task -----------------------------------------------------------------------------------


def _worker(
    shares: Sequence[Sequence[str]], work: Callable[[str], Iterator[dict[str, Any]]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            for number in numbers_of(batches):
                for thing in shares[number]:
                    for made in work(thing):
                        yield pa.record_batch(made)

    return run


def _lister(root: str) -> Callable[[str], Iterator[dict[str, Any]]]:
    """Return what lists a directory: the path and the size of every file."""

    def list_one(directory: str) -> Iterator[dict[str, Any]]:
        try:
            found = LocalFiles(root).list(directory)
        except FileNotFoundError:
            return  # it was empty, and is gone: then nothing of it can be removed
        except OSError as error:
            raise StoreError(f"{directory} cannot be listed: {error}: nothing was removed, retry") from error
        for begin in range(0, len(found), BATCH_ROWS):
            part = found[begin : begin + BATCH_ROWS]
            yield {"path": pa.array([one.path for one in part]), "size": pa.array([one.size for one in part])}

    return list_one


def _reader(root: str) -> Callable[[str], Iterator[dict[str, Any]]]:
    """Return what reads the METADATA of a table: the files that it names, and last how many they are."""

    def read(table_id: str) -> Iterator[dict[str, Any]]:
        try:
            paths = sorted(set(Place.of(root).metadata_of(table_id).files()))
        except UnknownTable:
            paths, count = [], -1  # dropped meanwhile; that is looked at again
        else:
            count = len(paths)
        for begin in range(0, len(paths), BATCH_ROWS):
            part = paths[begin : begin + BATCH_ROWS]
            yield _names(table_id, part, [None] * len(part))
        yield _names(table_id, [None], [count])

    return read


def _names(table_id: str, paths: Sequence[str | None], counts: Sequence[int | None]) -> dict[str, Any]:
    return {
        "table_id": pa.array([table_id] * len(paths), pa.string()),
        "path": pa.array(paths, pa.string()),
        "count": pa.array(counts, pa.int64()),
    }
