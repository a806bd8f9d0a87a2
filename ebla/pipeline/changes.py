"""What changed in a table between two txns, as a DataFrame: one row for each row that was touched, with its outcome.

    since                 until
      |  a=1   a=2  b=1     |        a: update, a=2      b: insert or update     c: erase
      |    c erased         |        what came and went between the two is no change

    driver   sources with txns in (since, until]  -->  the rows they touched      nothing else is opened
    tasks    some of these rows each              -->  read at both txns, compared

So the time goes with what changed, as long as compaction has not mixed it with what did not; and even then only txns
and keys of the mixed files are read. Rows that a range erasure covered are looked at one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from ebla.client.database import Database
from ebla.client.table import AsOf, txn_of
from ebla.errors import RequestError
from ebla.metadata.table_metadata import FragmentRef
from ebla.pipeline.holding import Holding
from ebla.pipeline.layers import SECTION_ROWS_MAX, as_stream, distinct, rows_from_stream
from ebla.pipeline.location import settle_worker, store_of
from ebla.pipeline.sections import ScanArguments, Target, opened, range_asked, resumed, target_of
from ebla.pipeline.session import active_session, session
from ebla.pipeline.types import spark_schema
from ebla.ranges import KeyRange
from ebla.storage.merge import Erasure
from ebla.storage.records import ROW, TXN, Block, Run
from ebla.tablet.projection import Projection
from ebla.tablet.reader import Reader, ReadPoint
from ebla.tablet.store import TabletStore
from ebla.tablet.table_state import TableState
from ebla.tablet.view import TableView, check_history

__all__ = ["BEFORE", "CHANGE", "changes", "json_lines", "outcome", "touched_rows"]

# No column of a table has such names.
CHANGE = "_change"
BEFORE = "_before"
BATCH_ROWS = 16_384


def changes(
    source: Database | str | os.PathLike[str],
    table: str,
    since: AsOf,
    until: AsOf | None = None,
    *,
    before: bool = False,
    spark: SparkSession | None = None,
    **asked: Unpack[ScanArguments],
) -> DataFrame:
    """Return the rows of a table that changed after `since`, up to `until` or now, with their columns as they are then.

    `_change` says whether a row is an ``insert``, an ``update`` (also if it was set to what it was), or an ``erase``:
    then all but its key is null. With `before`, the struct `_before` has its columns as they were, null for an insert.
    `asked` are `columns`, `start`, `stop` and `prefix`, each if it is wanted. Raises `HistoryGone` if history does not
    reach back to `since`.
    """
    if spark is None:
        spark = active_session() or session()
    if asked.get("as_of") is not None:
        raise RequestError("changes have two ends: give since and until, not as_of")
    holding = Holding()
    with opened(source) as database:
        store = store_of(database)
        state = store.table(table)
        key_range = range_asked(state, asked.get("start"), asked.get("stop"), asked.get("prefix"))
        target = target_of(database, state, table, asked.get("columns"), until)
        first = txn_of(since)
        if first > target.as_of:
            raise RequestError(f"since ({first}) is later than until ({target.as_of}): exchange them")
        if store.is_writable:
            holding.hold(store, first)
        try:
            projection = state.projection(target.columns)
            rows = touched_rows(state.view, state.reader, projection, key_range, first, target.as_of)
        except BaseException:
            holding.release()
            raise
    schema = _schema(projection, before)
    own = holding.given_to(spark)
    portions = _portions(rows, spark.sparkContext.defaultParallelism)
    if not portions:
        return own.createDataFrame([], spark_schema(schema))
    numbers = own.range(0, len(portions), 1, len(portions))
    return numbers.mapInArrow(_comparer(target, first, before, portions), spark_schema(schema))


def json_lines(frame: DataFrame) -> Iterator[str]:
    """Yield the rows of a frame as JSON, bytes in base64, a partition at a time."""
    text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    for row in frame.select(text).toLocalIterator():
        yield row[0]


def _schema(projection: Projection, before: bool) -> pa.Schema:
    stored = projection.arrow_schema
    schema = stored.append(pa.field(CHANGE, pa.string()))
    if before:
        values = [field for field in stored if field.name not in projection.schema.key_names]
        schema = schema.append(pa.field(BEFORE, pa.struct(values)))
    return schema


# --- on the driver -------------------------------------------------------------------------------


def touched_rows(
    view: TableView, reader: Reader, projection: Projection, key_range: KeyRange, since: int, until: int
) -> pa.Array:
    """Return the rows that some record or range erasure with a txn in (since, until] touched, sorted, each once."""
    found: list[pa.Array] = []
    for tablet, share in view.tablets_in(key_range):
        for group in projection.groups:
            state = tablet.group(group.id)
            check_history(state, since)
            memory = view.memory_of(group.id)
            erasures: list[Erasure] = [*state.erasures, *memory.erasures]
            origins: list[FragmentRef | Block] = [*state.fragments, *memory.blocks]
            erased = [
                part
                for erasure in erasures
                if since < erasure.txn <= until
                and (part := share.intersect(KeyRange(erasure.first, erasure.last))) is not None
            ]
            for origin in origins:
                counted = origin.within(share) if isinstance(origin, FragmentRef) else share
                if counted is None or origin.txn_min > until:
                    continue
                if origin.txn_max > since:
                    found += _rows(origin, reader, counted, since, until)
                for part in erased:
                    # What an erasure covers is a change if it was there before.
                    if origin.txn_min <= since and (both := counted.intersect(part)) is not None:
                        found += _rows(origin, reader, both, 0, since)
    return distinct(found)


def _rows(origin: FragmentRef | Block, reader: Reader, share: KeyRange, since: int, until: int) -> Iterator[pa.Array]:
    """Yield the rows in a range of which a source has records with txns in (since, until]."""
    run: Run | None
    if isinstance(origin, FragmentRef):
        run = reader.fragment(origin).read_range(share.first, share.last, [ROW, TXN])
    else:
        run = origin.slice_range(share.first, share.last)
    if run is None:
        return
    rows = run.column(ROW)
    assert rows is not None
    if origin.txn_min > since and origin.txn_max <= until:
        yield rows
        return
    txns = run.txns()
    yield rows.filter(pa.array((txns > since) & (txns <= until)))


def _portions(rows: pa.Array, cores: int) -> list[bytes]:
    if not len(rows):
        return []
    count = max(ceil(len(rows) / SECTION_ROWS_MAX), min(cores, ceil(len(rows) / BATCH_ROWS)))
    bounds = np.linspace(0, len(rows), count + 1).astype(int).tolist()
    return [as_stream(rows.slice(begin, end - begin)) for begin, end in pairwise(bounds)]


# --- in a task -----------------------------------------------------------------------------------


def _comparer(
    target: Target, since: int, before: bool, portions: Sequence[bytes]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def compare(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = partial(_compared, since=since, before=before)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from resumed(target, rows_from_stream(portions[number]), read)
        settle_worker()

    return compare


def _compared(
    store: TabletStore, table: TableState, target: Target, left: pa.Array, *, since: int, before: bool
) -> Iterator[tuple[pa.Table, pa.Array]]:
    projection = table.projection(target.columns)
    with store.pins.held(since):
        for begin in range(0, len(left), BATCH_ROWS):
            rows = left.slice(begin, BATCH_ROWS)
            yield outcome(table, projection, rows, since, target.as_of, before), left.slice(begin + BATCH_ROWS)


def outcome(
    table: TableState, projection: Projection, rows: pa.Array, since: int, until: int, before: bool
) -> pa.Table:
    """Read rows at both txns, and return those that are there at one of them at least."""
    (old, old_at), (new, new_at) = (_at(table, projection, rows, txn) for txn in (since, until))
    is_there = pc.or_(pc.is_valid(old_at), pc.is_valid(new_at))
    rows, old_at, new_at = (array.filter(is_there) for array in (rows, old_at, new_at))
    keys = table.codec.decode_arrays(rows)
    names = projection.schema.key_names
    schema = _schema(projection, before)
    columns = [
        keys[names.index(field.name)] if field.name in names else _one(new.column(field.name).take(new_at))
        for field in projection.arrow_schema
    ]
    kept = pc.if_else(pc.is_valid(old_at), "update", "insert")
    columns.append(pc.if_else(pc.is_valid(new_at), kept, "erase"))
    if before:
        fields = schema.field(BEFORE).type
        values = [_one(old.column(field.name).take(old_at)) for field in fields]
        columns.append(pa.StructArray.from_arrays(values, fields=list(fields), mask=pc.is_null(old_at)))
    return pa.table(columns, schema=schema)


def _at(table: TableState, projection: Projection, rows: pa.Array, txn: int) -> tuple[pa.Table, pa.Array]:
    """Return what is there of rows at a txn, and where in it each of them is."""
    batches = table.reader.read_rows(table.view, rows, ReadPoint(txn, projection))
    found = pa.Table.from_batches(batches, projection.arrow_schema)
    keys = [_one(found.column(name)) for name in projection.schema.key_names]
    return found, pc.index_in(rows, value_set=table.codec.encode_arrays(keys))


def _one(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
