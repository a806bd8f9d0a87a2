"""A stream of changes (`change_stream`) as Structured Streaming asks for it.

Spark runs all of this in one Python process for as long as the query runs, `read` in tasks. It says where a query is by
offsets that it keeps in its checkpoint, as JSON.
"""

from __future__ import annotations

import contextlib
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

from ebla.direct.following import follower_of
from ebla.direct.opens import store_of
from ebla.errors import RequestError
from ebla.pipeline.change_feed.changes import Portion, read_changes
from ebla.pipeline.datasource.datasource_reader import conformed
from ebla.pipeline.spark.failures import plain_errors, told_plainly
from ebla.pipeline.spark.types import spark_schema
from ebla.pipeline.streaming.change_stream import ChangeStream, columns_of
from ebla.pipeline.streaming.stream_offsets import Offset
from ebla.pipeline.streaming.stream_options import StreamReadOptions

__all__ = ["EblaStreamReader", "RefusingReader", "stream_schema"]


def stream_schema(options: StreamReadOptions) -> StructType:
    """Return the columns of a stream of changes, as Spark knows them."""
    address = options.address
    with contextlib.closing(follower_of(address.root, address.table, address.cluster)) as follower:
        return spark_schema(columns_of(options, store_of(follower.newest()).table(address.table)))


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
        self._stream = ChangeStream(self._options, lambda columns: spark_schema(columns) == self._schema)
        self._initial: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @told_plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins, with its history held. Spark asks more than once."""
        if self._initial is None:
            self._initial = self._stream.begin()
        return self._initial.to_json()

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
        self._stream.fix_end()

    @told_plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch; `start` itself if there is nothing to give out."""
        began = Offset.of_json(start)
        ended = self._stream.next(
            began,
            rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            bytes_max=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        )
        return start if ended is began else ended.to_json()

    @told_plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return nothing: what is newest is no offset of this stream yet."""
        return None

    @told_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of rows that the tasks of a batch compare."""
        portions = self._stream.portions(Offset.of_json(start), Offset.of_json(end), os.cpu_count() or 1)
        return [ChangePartition(portion) for portion in portions]

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
        self._stream.done(Offset.of_json(end))

    def stop(self) -> None:
        """Close the store. The pin stays: the query may go on later."""
        self._stream.close()


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
