"""A table as a stream of its changes, for Structured Streaming.

    initialOffset    a pin: history is held from here on                    since: everything, now, a txn, a time
    latestOffset     how far the next batch goes: to the newest commit, or as many rows as the limit allows
    partitions       ranges of rows with something to look at               `changes` compares them in tasks
    commit           the pin moves forward to what is still needed

Spark runs these in one Python process for as long as the query runs, `read` in tasks.

**Rounds.** A limit cuts a batch at a key. The rows behind the cut follow in the next batches, up to the same txn,
before anything newer is looked at. So at the end of a round all rows are at one txn, the state of the table at that
moment, and every row has its turn however fast others change.

**History.** A batch is read at the txn where it begins and at the one where it ends, also if it is read again after a
crash. A pin in the coordination service holds the older one. Its name is in the offsets, so that a query that goes on
from its checkpoint goes on with its pin; it expires `hold_seconds` after the query was last seen.

**A quiet table** in a busy store goes on by an empty batch now and then: its pin holds the history of all tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ebla.client.database import Database
from ebla.client.embedded.opening import open_alone
from ebla.clock import microseconds_of
from ebla.direct.following import Follower
from ebla.direct.opens import store_of
from ebla.direct.views import TableState
from ebla.errors import RequestError, SchemaChanged, UnknownTable
from ebla.model.ranges import KeyRange
from ebla.pipeline.change_feed.change_plan import check_since, has_touched, steps, touched_rows
from ebla.pipeline.change_feed.changes import Portion, change_schema, plan_changes, read_changes, txn_since
from ebla.pipeline.datasource.datasource_options import key_from_text
from ebla.pipeline.datasource.datasource_reader import conformed
from ebla.pipeline.scanning.sections import range_asked, target_of
from ebla.pipeline.spark.failures import plain_errors, told_plainly
from ebla.pipeline.spark.types import spark_schema
from ebla.pipeline.streaming.stream_holding import StreamHolding
from ebla.pipeline.streaming.stream_offsets import Offset, Position
from ebla.pipeline.streaming.stream_options import StreamReadOptions

__all__ = ["EblaStreamReader", "RefusingReader", "stream_schema"]

# Where nothing changes, a batch without rows comes so often.
QUIET_SECONDS = 60.0
ROWS_LOOKED_AT_MIN = 4_096


def stream_schema(options: StreamReadOptions) -> StructType:
    """Return the columns of a stream of changes, as Spark knows them."""
    with open_alone(options.address.root, read_only=True) as database:
        table = store_of(database).table(options.address.table)
        return _columns(options, table)


def _columns(options: StreamReadOptions, table: TableState) -> StructType:
    return spark_schema(change_schema(table.projection(options.columns), options.before))


class ChangePartition(InputPartition):
    """What one task compares."""

    def __init__(self, portion: Portion) -> None:
        self.portion = portion


class EblaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams the changes of a table. What goes to tasks are plain values; the open store stays in its process."""

    def __init__(self, options: StreamReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._start()

    def _start(self) -> None:
        self._follower = Follower(self._options.address.root, self._options.address.table)
        self._initial: Offset | None = None
        self._last: int | None = None  # of AvailableNow: nothing later is given out
        self._holding = StreamHolding(self._options.address.root, self._options.hold_seconds)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # --- where it begins ---

    @told_plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins, with its history held. Spark asks more than once."""
        if self._initial is None:
            self._initial = self._begin()
        return self._initial.to_json()

    def _begin(self) -> Offset:
        database, table = self._table(at_once=True)
        newest = store_of(database).sequencer.committed
        since = self._options.since
        first = 0 if since == "snapshot" else newest if since == "now" else txn_since(since, newest)
        if first > newest:
            raise RequestError(
                f"since ({first}) is later than the newest commit ({newest}): say now, or an earlier one"
            )
        # First it is held, then it is looked whether it is still there.
        pin = self._holding.begin(self._options.address.table, first or newest)
        database, table = self._table(at_once=True)
        check_since(table.view, table.projection(self._options.columns), self._asked(table), first or newest)
        return Offset(table.id, pin, Position(txns=(first,)))

    # --- how far the next batch goes ---

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that the options say."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    @told_plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix what is available now: everything that is committed at this moment."""
        database, _ = self._table(at_once=True)
        self._last = store_of(database).sequencer.committed

    @told_plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch; `start` itself if there is nothing to give out."""
        began = Offset.of_json(start)
        if began.began is not None:  # else it is not written down yet, and may never be
            self._holding.renew(began.pin, began.at.needed)
        database, table = self._table(began)
        at = began.at
        until = at.newest
        if at.is_even:
            until = max(until, store_of(database).sequencer.committed)
            if self._last is not None:
                until = max(at.newest, min(until, self._last))
            if until == at.newest or not self._is_worth_a_batch(table, at, until):
                return start
        return began.next(self._advanced(table, at, until, self._rows_max(table, limit))).to_json()

    @told_plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return nothing: what is newest is no offset of this stream yet."""
        return None

    def _is_worth_a_batch(self, table: TableState, at: Position, until: int) -> bool:
        quiet_seconds = (microseconds_of(until) - microseconds_of(at.newest)) / 1e6
        projection = table.projection(self._options.columns)
        return quiet_seconds > QUIET_SECONDS or has_touched(
            table.view, projection, self._asked(table), at.newest, until
        )

    def _rows_max(self, table: TableState, limit: ReadLimit) -> int | None:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            return max(1, limit.max_bytes // _row_bytes(table))
        return None

    def _advanced(self, table: TableState, at: Position, until: int, rows_max: int | None) -> Position:
        """Return the position with all rows at `until`, or only as many as the limit allows, from the first on."""
        asked = self._asked(table)
        for rows, since in at.ranges():
            if since >= until:
                continue
            wanted = rows.intersect(asked)
            if wanted is not None and rows_max is not None:
                found, cut = self._cut(table, wanted, since, until, rows_max)
                if cut is not None:
                    return at.moved(KeyRange(rows.first, cut), until)
                rows_max -= found
            at = at.moved(rows, until)
        return at

    def _cut(
        self, table: TableState, rows: KeyRange, since: int, until: int, rows_max: int
    ) -> tuple[int, bytes | None]:
        """Return how many rows of a range were touched; if they are too many, also the first of those."""
        parts = (table.view, table.reader, table.projection(self._options.columns))
        found = 0
        for step in steps(*parts, rows, since, until, max(rows_max, ROWS_LOOKED_AT_MIN)):
            touched = touched_rows(*parts, step.range, since, until)
            if found + len(touched) > rows_max:
                return found, touched[rows_max - found].as_py()
            found += len(touched)
        return found, None

    # --- a batch ---

    @told_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of rows that the tasks of a batch compare."""
        began, ended = Offset.of_json(start), Offset.of_json(end)
        # From now on the batch is written down, and may be asked for again after any time.
        self._holding.renew(ended.pin, (ended.began or ended.at).needed or ended.at.needed)
        database, table = self._table(ended)
        asked = self._asked(table)
        cores = os.cpu_count() or 1
        found: list[InputPartition] = []
        for part in ended.batch_since(began):
            rows = part.range.intersect(asked)
            if rows is None:
                continue
            target = target_of(database, table, self._options.address.table, self._options.columns, part.until)
            planned = plan_changes(table, target, part.since, rows, before=self._options.before, cores=cores)
            found += [ChangePartition(portion) for portion in planned]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of a partition."""
        assert isinstance(partition, ChangePartition)
        expected = to_arrow_schema(self._schema, timezone="UTC")
        with plain_errors():
            for batch in read_changes(partition.portion):
                yield conformed(batch, expected)

    @told_plainly
    def commit(self, end: dict[str, Any]) -> None:
        """Let go of the history before `end`: no batch will ask for it again."""
        done = Offset.of_json(end)
        self._holding.move(done.pin, done.at.needed)

    def stop(self) -> None:
        """Close the store. The pin stays: the query may go on later."""
        self._follower.close()

    # --- the table ---

    def _table(self, offset: Offset | None = None, *, at_once: bool = False) -> tuple[Database, TableState]:
        """Return the store and the table as they are now; raise if the table is not what the stream began with."""
        name = self._options.address.table
        try:
            database = self._follower.newest(at_once=at_once)
            table = store_of(database).table(name)
        except UnknownTable:
            raise UnknownTable(f"the table {name!r} was dropped, and its stream ends with it") from None
        if offset is not None and table.id != offset.table_id:
            raise UnknownTable(
                f"the table {name!r} was dropped and made anew since the stream began: start another stream of it, "
                "with another checkpoint"
            )
        if _columns(self._options, table) != self._schema:
            raise SchemaChanged(
                f"the columns of {name!r} are not those that the stream was started with: load it again with "
                "readStream and start the query again; it goes on where it was, with the columns that there are now"
            )
        return database, table

    def _asked(self, table: TableState) -> KeyRange:
        schema = table.view.schema
        texts = (self._options.start, self._options.stop, self._options.prefix)
        return range_asked(table, *(key_from_text(text, schema) for text in texts))


class RefusingReader(DataSourceStreamReader):
    """Says what is wrong with a stream when it is asked where it begins: Spark loses an error that comes earlier."""

    def __init__(self, error: RequestError) -> None:
        self._error = error

    @told_plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise."""
        raise self._error

    @told_plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise."""
        raise self._error

    @told_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise."""
        raise self._error


def _row_bytes(table: TableState) -> int:
    """Return about how many bytes a row has, by what is in files; a guess if nothing is."""
    view = table.view
    groups = [state for tablet in view.metadata.tablets for state in tablet.groups]
    rows: dict[int, int] = {}
    bytes_ = 0
    for state in groups:
        rows[state.group] = rows.get(state.group, 0) + sum(ref.rows for ref in state.fragments)
        bytes_ += sum(ref.bytes for ref in state.fragments)
    most = max(rows.values(), default=0)
    return max(1, bytes_ // most) if most else 100
