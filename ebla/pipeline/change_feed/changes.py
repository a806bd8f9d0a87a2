"""What changed in a table between two txns: one row for each row that was touched, with its outcome.

    since                 until
      |  a=1   a=2  b=1     |        a: update, a=2      b: insert or update     c: erase
      |    c erased         |        what came and went between the two is no change

    driver   ranges of rows in which something with a txn in (since, until] lies     `change_plan`
    tasks    one range each: the rows that were touched, read at both txns, compared

Tasks run on Spark, and then the answer is a DataFrame; or in this process, one after the other as they are asked for,
and then it is a stream of Arrow batches.

So the time goes with what changed, as long as compaction has not mixed it with what did not; and even then only txns
and keys of the mixed files are read. Rows that a range erasure covered are looked at one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, overload

import pyarrow as pa
import pyarrow.compute as pc

from ebla.arguments import checked_flag
from ebla.client.database import Database
from ebla.client.moments import AsOf, txn_of
from ebla.clock import SystemClock, txn_at
from ebla.direct.clusters import forget_cluster, moment_in
from ebla.direct.holding import Holding, Needs, held_plan
from ebla.direct.opens import forget, store_of, txn_in
from ebla.direct.views import TableState, TabletStore, read_range
from ebla.errors import RequestError
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange, successor
from ebla.pipeline.change_feed.change_plan import check_since, steps, touched_rows
from ebla.pipeline.change_feed.compare import rows_at, rows_since, were_there
from ebla.pipeline.scanning.sections import Target, range_asked, rest_of, resumed, target_of
from ebla.pipeline.spark.engine import session_for
from ebla.pipeline.spark.spark_text import json_lines as lines_of
from ebla.pipeline.spark.types import arrow_for_spark, spark_schema
from ebla.pipeline.spark.worker import numbers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "BEFORE",
    "CHANGE",
    "Portion",
    "change_schema",
    "changes",
    "json_lines",
    "outcome",
    "plan_changes",
    "read_changes",
    "txn_since",
]

# No column of a table has such names.
CHANGE = "_change"
BEFORE = "_before"
BATCH_ROWS = 16_384
# One task looks through at most about so many records, of a table that is given out from its beginning so many; there
# is a step for every core, but no more than needed, for a task takes time even if it has nothing to do.
STEP_RECORDS = 65_536
SCAN_RECORDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task compares: the rows of a range, at `since` and at the txn of the target. A plain value."""

    target: Target
    since: int
    before: bool
    range: KeyRange


@overload
def changes(
    source: Database | str | os.PathLike[str],
    table: str,
    since: AsOf,
    until: AsOf | None = None,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    before: bool = False,
    spark: SparkSession | Literal[True] | None = None,
) -> DataFrame: ...


@overload
def changes(
    source: Database | str | os.PathLike[str],
    table: str,
    since: AsOf,
    until: AsOf | None = None,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    before: bool = False,
    spark: Literal[False],
) -> pa.RecordBatchReader: ...


def changes(
    source: Database | str | os.PathLike[str],
    table: str,
    since: AsOf,
    until: AsOf | None = None,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    before: bool = False,
    spark: SparkSession | bool | None = None,
) -> DataFrame | pa.RecordBatchReader:
    """Return the rows of a table that changed after `since`, up to `until` or now, with their columns as they are then.

    `_change` says whether a row is an ``insert``, an ``update`` (also if it was set to what it was), or an ``erase``:
    then all but its key is null. With `before`, the struct `_before` has its columns as they were, null for an insert.
    Txn 0 is before everything: since then, all rows that are there are inserts. Raises `HistoryGone` if history does
    not reach back to `since`.

    It is a DataFrame, of the SparkSession given, of the running one or of a new one. With ``spark=False`` no Spark is
    needed: it is a stream of Arrow batches in the order of the key, in the same types, that can be read once.
    """
    before = checked_flag("before", before)
    session = None if spark is False else session_for(spark, "ebla.pipeline.changes, unless it is told spark=False,")
    cores = 1 if session is None else session.sparkContext.defaultParallelism
    since, until = moment_in(source, since), None if until is None else moment_in(source, until)
    holding = Holding()

    def plan(database: Database) -> tuple[tuple[Projection, list[Portion]], Needs]:
        nonlocal since, until
        store = store_of(database)
        state = store.table(table)
        key_range = range_asked(state, start, stop, prefix)
        target = target_of(database, state, table, columns, until)
        moment = txn_in(store, since) if isinstance(since, str) else since
        first = txn_of(moment) if until is not None else txn_since(moment, target.as_of)
        if first > target.as_of:
            raise RequestError(f"since ({first}) is later than until ({target.as_of}): exchange them")
        if database is source:
            since, until = first, target.as_of  # another plan, if there has to be one, is of the same moments
        if store.is_writable:
            holding.hold(store, first or target.as_of)
        projection = state.projection(target.columns)
        portions = plan_changes(state, target, first, key_range, before=before, cores=cores)
        groups = tuple(group.id for group in projection.groups)
        is_fixed = bool(first) or until is not None
        needs = Needs("changes", state, first or target.as_of, groups, key_range, is_fixed=is_fixed)
        return (projection, portions), needs

    try:
        projection, portions = held_plan(source, holding, plan, table=table, as_of=until)
    except BaseException:
        holding.release()
        raise
    schema = change_schema(projection, before)
    if session is None:
        batches = _batches(portions, holding)
        holding.kept_by(batches)  # if nobody reads them
        return pa.RecordBatchReader.from_batches(
            pa.schema([(f.name, arrow_for_spark(f.type)) for f in schema]), batches
        )
    own = holding.given_to(session)
    if not portions:
        return own.createDataFrame([], spark_schema(schema))
    numbers = own.range(0, len(portions), 1, len(portions))
    return numbers.mapInArrow(_reader_of(portions), spark_schema(schema))


def txn_since(since: AsOf, newest: int) -> int:
    """Return the txn that `since` means: of a time after the newest commit that is not in the future, that commit."""
    first = txn_of(since)
    is_past = isinstance(since, datetime) and first <= txn_at(SystemClock().microseconds())
    return min(first, newest) if is_past else first


def json_lines(found: DataFrame | pa.RecordBatchReader) -> Iterator[str]:
    """Yield rows as JSON, bytes in base64, a partition or a batch at a time."""
    if isinstance(found, pa.RecordBatchReader):
        for batch in found:
            yield from lines_of(batch).to_pylist()
        return
    names = found.columns

    def lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            named = pa.RecordBatch.from_arrays(batch.columns, names=names)
            yield pa.RecordBatch.from_arrays([lines_of(named)], names=["line"])

    # By number: a column may be called `*`, which means something to Spark.
    for row in found.toDF(*map(str, range(len(names)))).mapInArrow(lines, "line string").toLocalIterator():
        yield row[0]


def change_schema(projection: Projection, before: bool) -> pa.Schema:
    """Return the columns of change rows, in the types in which they are stored."""
    stored = projection.arrow_schema
    schema = stored.append(pa.field(CHANGE, pa.string()))
    if before:
        values = [field for field in stored if field.name not in projection.schema.key_names]
        schema = schema.append(pa.field(BEFORE, pa.struct(values)))
    return schema


def plan_changes(
    table: TableState, target: Target, since: int, key_range: KeyRange, *, before: bool, cores: int
) -> list[Portion]:
    """Share out what has to be looked through for the changes of a range since a txn, up to that of the target.

    Raises `HistoryGone` if history does not reach back to it; since before everything, to the txn of the target.
    """
    projection = table.projection(target.columns)
    check_since(table.view, projection, key_range, since or target.as_of)
    records_max = STEP_RECORDS if since else SCAN_RECORDS
    found = steps(table.view, table.reader, projection, key_range, since, target.as_of, records_max, cores)
    return [Portion(target, since, before, step.range) for step in found]


def _batches(portions: Sequence[Portion], holding: Holding) -> Iterator[pa.RecordBatch]:
    with holding:
        try:
            for portion in portions:
                yield from read_changes(portion)
        finally:
            for root, cluster in {(portion.target.root, portion.target.cluster) for portion in portions}:
                # Workers of Spark keep what is open for the next task; this process is the user's.
                if cluster:
                    forget_cluster(cluster)
                else:
                    forget(root)


# --- in a task -----------------------------------------------------------------------------------


def _reader_of(portions: Sequence[Portion]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers_of(batches):
            yield from read_changes(portions[number])

    return read


def read_changes(portion: Portion) -> Iterator[pa.RecordBatch]:
    """Yield the change rows of a portion, as Arrow batches in the types that Spark takes."""
    compare = partial(_compared, since=portion.since, before=portion.before)
    appear = partial(_appeared, before=portion.before)
    yield from resumed(portion.target, portion.range, compare if portion.since else appear)


def _compared(
    store: TabletStore, table: TableState, target: Target, left: KeyRange, *, since: int, before: bool
) -> Iterator[tuple[pa.Table, KeyRange]]:
    """Yield the rows of a range that were touched, and what is left of it after each batch of them."""
    projection = table.projection(target.columns)
    with store.pins.held(since):
        touched = touched_rows(table.view, table.reader, projection, left, since, target.as_of)
        for begin in range(0, len(touched), BATCH_ROWS):
            rows = touched.slice(begin, BATCH_ROWS)
            rest = KeyRange(successor(rows[-1].as_py()), left.last)
            yield outcome(table, projection, rows, since, target.as_of, before), rest


def _appeared(
    store: TabletStore, table: TableState, target: Target, left: KeyRange, *, before: bool
) -> Iterator[tuple[pa.Table, KeyRange]]:
    """Yield all rows of a range as inserts, and what is left of it after each batch of them."""
    projection = table.projection(target.columns)
    schema = change_schema(projection, before)
    for found in read_range(store, table, projection, left, target.as_of):
        columns = [*found.columns, pa.repeat("insert", found.num_rows)]
        if before:
            columns.append(pa.nulls(found.num_rows, schema.field(BEFORE).type))
        yield pa.table(columns, schema=schema), rest_of(table, found, left)


def outcome(
    table: TableState, projection: Projection, rows: pa.Array, since: int, until: int, before: bool
) -> pa.Table:
    """Read rows at both txns, and return those that are there at one of them at least."""
    new, new_at = rows_since(table, projection, rows, since, until)
    old: pa.Table | None = None
    was_there: pa.Array
    if before:
        old, old_at = rows_at(table, projection, rows, since)
        was_there = pc.is_valid(old_at)
    else:
        was_there = were_there(table, projection, rows, since)
    is_there = pc.or_(was_there, pc.is_valid(new_at))
    rows, was_there, new_at = (array.filter(is_there) for array in (rows, was_there, new_at))
    keys = table.codec.decode_arrays(rows)
    names = projection.schema.key_names
    schema = change_schema(projection, before)
    columns = [
        keys[names.index(field.name)] if field.name in names else _one(new.column(field.name).take(new_at))
        for field in projection.arrow_schema
    ]
    kept = pc.if_else(was_there, "update", "insert")
    columns.append(pc.if_else(pc.is_valid(new_at), kept, "erase"))
    if old is not None:
        old_at = old_at.filter(is_there)
        fields = schema.field(BEFORE).type
        values = [_one(old.column(field.name).take(old_at)) for field in fields]
        columns.append(pa.StructArray.from_arrays(values, fields=list(fields), mask=pc.is_null(old_at)))
    return pa.table(columns, schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
