"""What one task of a load does: sorted rows of its range of keys in, fragments out, and one line about them.

    batches of Spark --> exact types --> keys encoded --> BulkWriter --> files
                     `-> rows that do not fit --> rejects                  |
    TaskResult <-----------------------------------------------------------'

Partitions from `partitions` on hold the rows that were rejected already; they are only counted and kept.

A task may run several times: after a failure, or twice at once when Spark speculates. Every attempt writes files of its
own and names them in its result. Spark hands one result per partition to the driver; what others wrote is never named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ebla.direct.bulk_writer import BulkWriter
from ebla.direct.files import Files, LocalFiles
from ebla.direct.fragments import ROW, unpack_schema
from ebla.errors import InvalidBatch, RequestError, StoreError
from ebla.model.keys import KeyCodec
from ebla.pipeline.loading.keyed_rows import each_that_fits
from ebla.pipeline.loading.rejects import EXAMPLES_MAX, RejectsWriter, row_as_json
from ebla.pipeline.spark.failures import plain_errors
from ebla.pipeline.spark.types import array_from_spark
from ebla.rows.rows import to_put_batch
from ebla.service.job_orders import BulkFragment
from ebla.settings import Settings

__all__ = ["REASON", "REJECTED", "RESULT_SCHEMA", "LoadTask", "TaskResult", "decode_result"]

RESULT_SCHEMA = "result binary"
# Why a row is rejected (null: it fits so far), and the row as it came, as JSON.
REASON = "_reason"
REJECTED = "_rejected"


class TaskResult(msgspec.Struct, frozen=True):
    """What an attempt of a task did. Duplicates and their examples are those of keys, rejects are rows."""

    partition: int
    rows: int = 0
    duplicates: int = 0
    duplicate_examples: tuple[str, ...] = ()
    fragments: tuple[BulkFragment, ...] = ()
    rejected: int = 0
    reject_examples: tuple[str, ...] = ()
    rejects_file: str | None = None


def decode_result(packed: bytes) -> TaskResult:
    """Return the result that a task sent."""
    return msgspec.msgpack.decode(packed, type=TaskResult)


@dataclass(frozen=True)
class LoadTask:
    """The work of every task of a load: plain values, sent to wherever it runs."""

    root: str
    table_id: str
    schema: bytes
    job: str
    names: tuple[str, ...]
    cuts: tuple[bytes, ...]
    stamp_microseconds: int
    replace: bool
    shows_duplicates: bool
    rejects: str | None
    settings: Settings

    @property
    def partitions(self) -> int:
        """How many partitions have rows to write; those after them have rejects."""
        return len(self.cuts) + 1

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as one attempt of the task that Spark says it is."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        with plain_errors():
            result = self.run(partition, batches, LocalFiles(self.root))
        yield pa.record_batch({"result": pa.array([msgspec.msgpack.encode(result)], pa.binary())})

    def run(self, partition: int, batches: Iterator[pa.RecordBatch], files: Files) -> TaskResult:
        """Write the rows of one partition."""
        rejects = RejectsWriter(self.rejects, self.job)
        try:
            if partition >= self.partitions:
                return self._reject_all(partition, batches, rejects)
            return _Attempt(self, partition, files, rejects).run(batches)
        except BaseException:
            rejects.abandon()
            raise

    def _reject_all(self, partition: int, batches: Iterator[pa.RecordBatch], rejects: RejectsWriter) -> TaskResult:
        for batch in batches:
            reasons, rows = batch.column(REASON), batch.column(REJECTED)
            if reasons.null_count:
                raise StoreError("a row that fits was sent to the rejects: this is a fault, report it")
            rejects.add(zip(reasons.to_pylist(), rows.to_pylist(), strict=True))
        return TaskResult(
            partition,
            rejected=rejects.count,
            reject_examples=tuple(rejects.examples),
            rejects_file=rejects.finish(),
        )


class _Attempt:
    """One attempt at writing one partition."""

    def __init__(self, task: LoadTask, partition: int, files: Files, rejects: RejectsWriter) -> None:
        # Set once.
        self._task = task
        self._partition = partition
        self._rejects = rejects
        self._schema = unpack_schema(task.schema)
        self._codec = KeyCodec(self._schema.key, task.settings.key_bytes_max)
        self._stored = {column.name: column.type for column in self._schema.key}
        self._stored |= {column.name: column.type for group in self._schema.groups for column in group.columns}
        self._has_cells = any(name not in self._stored for name in task.names)
        self._first = task.cuts[partition - 1] if partition else b""
        self._end = task.cuts[partition] if partition < len(task.cuts) else None
        self._writer = BulkWriter(
            files,
            task.table_id,
            self._schema,
            task.job,
            partition,
            stamp_microseconds=task.stamp_microseconds,
            is_sorted=True,
            settings=task.settings,
            replace=task.replace,
        )
        # What goes on.
        self._last: bytes | None = None
        self._duplicates: list[str] = []

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        try:
            for batch in batches:
                if batch.column(REASON).null_count < batch.num_rows:
                    raise StoreError("a rejected row was sent to be written: this is a fault, report it")
                columns = batch.columns[: len(self._task.names)]
                given = pa.RecordBatch.from_arrays(columns, names=list(self._task.names))
                for fitting in each_that_fits(given, self._exact, self._reject):
                    self._write(fitting)
            fragments = tuple(self._writer.finish())
        except BaseException:
            self._writer.abandon()
            raise
        return TaskResult(
            self._partition,
            self._writer.rows,
            self._writer.duplicates,
            tuple(self._duplicates),
            fragments,
            self._rejects.count,
            tuple(self._rejects.examples),
            self._rejects.finish(),
        )

    def _write(self, fitting: pa.RecordBatch) -> None:
        rows = fitting.column(ROW)
        self._check_range(rows)
        if self._task.shows_duplicates:
            self._show_duplicates(rows)
        self._writer.write(fitting)

    def _reject(self, given: pa.RecordBatch, reason: RequestError) -> None:
        self._rejects.add([(str(reason), row_as_json(given.to_pylist()[0]))])

    def _exact(self, given: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the types of the table, with their encoded keys; raise if one of them does not fit."""
        arrays = [
            array_from_spark(array, self._stored[name], f"column {name!r}") if name in self._stored else array
            for name, array in zip(given.schema.names, given.columns, strict=True)
        ]
        exact = pa.RecordBatch.from_arrays(arrays, names=given.schema.names)
        try:
            exact.validate(full=True)
        except pa.ArrowException as reason:
            raise InvalidBatch(f"the values are damaged: {reason}") from None
        limit = self._task.settings.value_bytes_max
        if self._has_cells or exact.get_total_buffer_size() > limit:
            to_put_batch(exact, self._schema, value_bytes_max=limit, batch_bytes_max=1 << 62)
        keys = [exact.column(name) for name in self._schema.key_names]
        return exact.append_column(ROW, self._codec.encode_arrays(keys))

    def _check_range(self, rows: pa.Array) -> None:
        """Make sure that Spark compared keys as Ebla does, and numbered partitions as asked."""
        first, last = rows[0].as_py(), rows[-1].as_py()
        if first < self._first or (self._end is not None and last >= self._end):
            raise StoreError(f"partition {self._partition} got rows of another: this is a fault, report it")

    def _show_duplicates(self, rows: pa.Array) -> None:
        is_repeated = pc.equal(rows.slice(1), rows.slice(0, len(rows) - 1))
        found = rows.slice(1).filter(is_repeated).slice(0, EXAMPLES_MAX).to_pylist() if len(rows) > 1 else []
        if self._last is not None and rows[0].as_py() == self._last:
            found.insert(0, self._last)
        self._last = rows[-1].as_py()
        for row in found:
            key = self._codec.decode(row)
            shown = repr(key[0] if len(key) == 1 else key)
            if len(self._duplicates) < EXAMPLES_MAX and shown not in self._duplicates:
                self._duplicates.append(shown)
