"""Streaming into a table: every batch becomes part of it in one commit, and once.

    write    (tasks)                    rows -> fragments; the message names them, and whose batch it is
    commit   (a worker of the driver)   these files, and "batch 7 of this app", in one METADATA transaction
    abort    (a worker of the driver)   the files that messages name go

Spark repeats a batch under the same number when its driver died after the batch and before it had written that down. A
batch whose number is on record, or less than that on record, changes nothing.

**Whose batch.** Spark gives a stream writer no id of its query, but its tasks have it among their properties: the id
that is kept in the checkpoint. So a query with a checkpoint of its own is an app of its own, and a query that begins
anew is another one. An `app` that the user names lives longer than a checkpoint, and so may be taken for one that has
written these batches already: it is for those who number their batches themselves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ebla.direct.place import Place
from ebla.errors import RequestError, SchemaChanged, StoreError, UnknownTable
from ebla.pipeline.datasource.datasource_writer import (
    batch_job,
    commit_written,
    fragments_of,
    is_batch_done,
    remove_files,
    skipped,
)
from ebla.pipeline.datasource.row_writing import FragmentsWritten, TaskWriting, check_columns, operation_for
from ebla.pipeline.spark.failures import told_plainly
from ebla.pipeline.streaming.stream_options import StreamWriteOptions
from ebla.service.job_orders import BulkCommit

__all__ = ["BATCH_PROPERTY", "QUERY_PROPERTY", "EblaStreamWriter"]

# What Spark sets for the jobs of a batch.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class BatchWritten(FragmentsWritten):
    """What one task wrote of a batch of an app; nothing if the batch is done."""

    app: str
    batch: int
    table_id: str
    schema_version: int
    is_done: bool = False


class EblaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream. Made anew for every batch, and again for its commit: it has no state."""

    def __init__(self, options: StreamWriteOptions, columns: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._columns = columns
        self._overwrite = overwrite
        self._operation = operation_for(options.operation, columns)
        if overwrite and self._operation == "erase":
            raise RequestError("a stream whose output mode is complete would erase all of the table: append to it")

    @told_plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task to fragments."""
        app, batch, partition = self._who()
        address = self._options.address
        place = Place.at(address.root, address.cluster)
        metadata = place.metadata(address.table)
        if metadata is None:
            raise UnknownTable(
                f"there is no table {address.table!r} in {place.root}: create it with db.create_table, then start "
                "the query again"
            )
        schema = metadata.schema
        check_columns(self._columns, schema, self._operation)
        if is_batch_done(metadata, app, batch):
            skipped(iterator)
            return BatchWritten((), 0, app, batch, metadata.table_id, schema.version, is_done=True)
        job = batch_job(app, batch, metadata.table_id)
        first = next((rows for rows in iterator if rows.num_rows), None)
        if first is None:
            return BatchWritten((), 0, app, batch, metadata.table_id, schema.version)
        if place.begin(job, address.table) != metadata.table_id:
            raise UnknownTable(f"the table {address.table!r} was made anew or renamed at this moment: start it again")
        writing = TaskWriting(place.root, metadata.table_id, schema, job, self._operation, time.time_ns() // 1_000)
        made = writing.run(partition, chain([first], iterator))
        return BatchWritten(made.fragments, made.rows, app, batch, metadata.table_id, schema.version)

    def _who(self) -> tuple[str, int, int]:
        """Return the app, the batch and the partition of the task that this is."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
        batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
        if context is None or query is None or batch is None:
            raise StoreError(
                "Spark does not say which batch of which query this is: write with ebla.pipeline.stream_into"
            )
        return self._options.app or query, int(batch), context.partitionId()

    @told_plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the files of all tasks part of the table, in one step, unless that was done before."""
        written = [message for message in messages if isinstance(message, BatchWritten)]
        fragments = tuple(fragments_of(written))
        if any(one.is_done for one in written) or not written or not (fragments or self._overwrite):
            return
        first = written[0]
        if first.batch != batchId:
            raise StoreError(f"batch {batchId} was written as batch {first.batch}: this is a fault, report it")
        if {(one.table_id, one.schema_version) for one in written} != {(first.table_id, first.schema_version)}:
            remove_files(self._place().root, fragments)
            raise SchemaChanged(
                f"the table {self._options.address.table!r} was changed while a batch was written: nothing of the "
                "batch stays, start the query again"
            )
        commit = BulkCommit(
            batch_job(first.app, batchId, first.table_id),
            first.table_id,
            first.schema_version,
            fragments,
            self._overwrite,
            first.app,
            batchId,
        )
        place = self._place()
        commit_written(place, commit, lambda: remove_files(place.root, fragments))

    @told_plainly
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove what tasks wrote, if no commit was tried: Spark tries one only when every task has a message."""
        if any(message is None for message in messages):
            remove_files(self._place().root, fragments_of(messages))

    def _place(self) -> Place:
        return Place.at(self._options.address.root, self._options.address.cluster)
