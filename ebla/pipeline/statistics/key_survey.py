"""Surveying the keys of a table: marks of where its records lie, whoever wants to know.

    METADATA --> files, with the ranges that tablets have of them --> tasks on Spark (stats_task.py) --> marks
    memory, and a sample of rows that are to be loaded           --> here                            --> marks

What is counted are records and their bytes in files: several versions of a row count several times until compaction has
merged them. All of it is about right, to a few thousandths of a file.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ebla.client.database import TABLETS_MAX, Database
from ebla.clock import txn_at
from ebla.direct.holding import Holding, Needs, held_plan
from ebla.direct.opens import TASK_SETTINGS, store_of
from ebla.direct.views import TableState
from ebla.errors import RequestError, shown
from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.pipeline.loading.load_plan import ROW_BYTES, input_bytes, sample_fraction
from ebla.pipeline.loading.spark_fitting import fitting_of
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.portions import portions_of
from ebla.pipeline.spark.progress import Report, watched
from ebla.pipeline.spark.session import active_session, session
from ebla.pipeline.statistics.histogram import Mark, Marks, pieces_by_bytes, pieces_by_count
from ebla.pipeline.statistics.stats_task import RESULT_SCHEMA, Shared, StatsTask, decode_marks, marks_of_block
from ebla.settings import MIB, Settings

__all__ = ["RECENT_SECONDS", "KeySurvey", "check_number", "check_target", "key_of", "sampled", "survey_of"]

RECENT_SECONDS = 3_600.0
# About so many marks in all, and of each file at least and at most.
MARKS_ALL = 400_000
MARKS_MIN, MARKS_MAX = 16, 512
# So much is looked at by one task: footers, or rows and txns.
TASK_BYTES = 256 * MIB


def check_target(tablets: int | None, tablet_bytes: int | None) -> None:
    """Raise `RequestError` unless this says, or leaves open, into what a table is to be cut."""
    if tablets is not None and tablet_bytes is not None:
        raise RequestError("give a number of tablets or a size of each, not both")
    if tablets is not None:
        check_number("tablets", tablets, 1, TABLETS_MAX)
    if tablet_bytes is not None:
        check_number("tablet_bytes", tablet_bytes, 1, 1 << 62)


def check_number(name: str, value: object, low: int, high: int) -> None:
    """Raise `RequestError` unless it is a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} is a whole number from {low} to {high}, not {shown(value)}")


def survey_of(
    source: Database | str | os.PathLike[str], table: str, recent_seconds: float, holding: Holding
) -> KeySurvey:
    """Begin to survey a table of a database, or of a store that anybody may have open; its files are held."""

    def plan(database: Database) -> tuple[KeySurvey, Needs]:
        found = KeySurvey(database, table, recent_seconds)
        store = store_of(database)
        files = frozenset(shared.ref.file for shared in found.files)
        if store.is_writable:
            holding.hold_files(store, files)  # a compaction may replace them meanwhile
        return found, Needs("stats", found.state, store.sequencer.committed, (), files=files, is_fixed=True)

    return held_plan(source, holding, plan, TASK_SETTINGS, table=table)


class KeySurvey:
    """A table at one moment, and the marks of all its records. Whoever makes one holds its files while it looks."""

    def __init__(self, database: Database, table: str, recent_seconds: float) -> None:
        self._database = database
        self.state: TableState = store_of(database).table(table)
        self._view = self.state.view
        self.schema: TableSchema = self._view.schema
        self.codec = self.state.codec
        self.tablets: Sequence[TabletMetadata] = self._view.metadata.tablets
        self.files = _files(self.tablets)
        self.unflushed = sum(
            len(block) for own in self._view.memory.values() for memory in own.values() for block in memory.blocks
        )
        self._recent_txn = max(0, txn_at(time.time_ns() // 1_000 - round(recent_seconds * 1e6)))
        self.marks = Marks([])
        self._by_group: dict[int, Marks] = {}

    def look(self, spark: SparkSession | None, report: Report | None, more: Sequence[Mark] = ()) -> None:
        """Find the marks: of files on Spark, of memory here, and those that are known already."""
        marks: dict[int, list[Mark]] = defaultdict(list)
        if self.files:
            for group, found in self._of_files(spark or active_session() or session(), report):
                marks[group] += found
        for own in self._view.memory.values():
            for group, memory in own.items():
                for block in memory.blocks:
                    marks[group] += marks_of_block(block, min(MARKS_MAX, len(block)), self._recent_txn)
        self._by_group = {group: Marks(own) for group, own in marks.items()}
        self.marks = Marks([*(mark for own in marks.values() for mark in own), *more])

    def _of_files(self, spark: SparkSession, report: Report | None) -> Iterator[tuple[int, list[Mark]]]:
        # A file that many tablets share needs a few marks in each of them.
        sharers = max(len(shared.ranges) for shared in self.files)
        marks_max = max(4 * sharers, MARKS_MIN, min(MARKS_MAX, MARKS_ALL // len(self.files)))
        portions = tuple(map(tuple, portions_of(self.files, lambda shared: shared.ref.bytes, TASK_BYTES)))
        task = StatsTask(str(self._database.path.absolute()), portions, marks_max, self._recent_txn)
        count = len(task.portions)
        with unwrapping(), watched(spark, f"ebla-stats-{time.time_ns()}", "looking", report):
            rows = spark.range(0, count, 1, count).mapInArrow(task.attempt, RESULT_SCHEMA).collect()
        for row in rows:
            yield from decode_marks(bytes(row["marks"]))

    def bytes_of(self, group: int, tablet: TabletMetadata) -> int:
        """Return the bytes of one group in a tablet."""
        own = self._by_group.get(group)
        return 0 if own is None else own.bucket(tablet.range).bytes

    def splits(self, tablets: int | None, tablet_bytes: int | None) -> list[bytes]:
        """Return the rows at which to cut."""
        sizes = [self.marks.bucket(tablet.range).bytes for tablet in self.tablets]
        if tablets is not None:
            pieces = pieces_by_count(sizes, tablets)
        else:
            pieces = pieces_by_bytes(sizes, tablet_bytes or Settings().tablet_bytes_max)
        found = []
        for tablet, own in zip(self.tablets, pieces, strict=True):
            found += self.marks.cuts(tablet.range, own)
        return found


def _files(tablets: Sequence[TabletMetadata]) -> list[Shared]:
    """Return every file of every group once, with the ranges that tablets have of it."""
    refs: dict[tuple[int, str], FragmentRef] = {}
    ranges: dict[tuple[int, str], list[tuple[bytes, bytes | None]]] = defaultdict(list)
    for tablet in tablets:
        for state in tablet.groups:
            for ref in state.current:
                counted = ref.within(tablet.range)
                if counted is not None:
                    refs.setdefault((state.group, ref.file), ref)
                    ranges[state.group, ref.file].append((counted.first, counted.last))
    in_order = {at: tuple(sorted(own, key=itemgetter(0))) for at, own in ranges.items()}
    return [Shared(at[0], ref, in_order[at]) for at, ref in refs.items()]


def sampled(frame: DataFrame | None, schema: TableSchema, tablets: int | None) -> list[Mark]:
    """Return a sample of the keys of rows that are to be loaded, each with its share of their bytes."""
    if frame is None:
        return []
    fitting = fitting_of(frame, schema, Settings().key_bytes_max)
    bytes_ = input_bytes(frame)
    fraction = sample_fraction(bytes_, max(16, tablets or 0))
    with unwrapping():
        rows = fitting.sample(frame, fraction)
    size = (bytes_ if bytes_ is not None else ROW_BYTES * len(rows) / fraction) / max(1, len(rows))
    return [Mark(row, 1 / fraction, size) for row in rows]


def key_of(row: bytes, codec: KeyCodec) -> Any:
    """Return a row as a key, or the first columns of one; as bytes if it is none."""
    return codec.shown_bound(row)
