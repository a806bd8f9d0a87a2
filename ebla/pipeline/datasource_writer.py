"""Writing through ``format("ebla")``: tasks write fragments, one commit adds them to the table.

    EblaWriter.start   (a worker of the driver)   table and columns checked, an intent registered
    write              (tasks)                    rows in any order -> fragments; the message has their references
    commit             (a worker of the driver)   the references of the messages, in one METADATA transaction
    abort              (a worker of the driver)   what tasks left behind goes

Nothing but what a message names is committed: files of attempts that failed, or lost to a faster one, are nobody's, and
are removed when the job ends. The commit goes to whoever has the store open, the user's own process perhaps; if nobody
has, the store is opened for it.

*Files are removed only when it is certain that no commit names them.* Spark calls `abort` also after a commit that
failed; whether that one left its files to METADATA is not for `abort` to guess. A commit that fails for certain has
removed them itself.

Of several rows with one key the last wins: within a partition by their order, between partitions by their number.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ebla.client.bulk import begin_job_at, commit_bulk_at, end_job_at
from ebla.client.bulk_writer import BulkWriter
from ebla.client.database import open as open_database
from ebla.client.row_columns import plans_of
from ebla.errors import EblaError, InvalidBatch, OutcomeUnknown, RequestError, UnknownColumn, UnknownTable
from ebla.pipeline.datasource_options import Operation, WriteOptions
from ebla.pipeline.failures import told_plainly
from ebla.pipeline.location import store_of
from ebla.pipeline.types import array_from_spark
from ebla.schema import WILDCARD, TableSchema
from ebla.storage.files import LocalFiles
from ebla.tablet.bulk import BulkCommit, BulkFragment

__all__ = ["EblaWriter", "FragmentsWritten", "rows_from_spark"]


@dataclass
class FragmentsWritten(WriterCommitMessage):
    """What one task wrote."""

    fragments: tuple[BulkFragment, ...]
    rows: int


@dataclass
class EblaWriter(DataSourceArrowWriter):
    """One save. Goes from process to process: its state are plain values."""

    root: str
    table_id: str
    schema: TableSchema
    job: str
    is_job_given: bool
    operation: Operation
    overwrite: bool
    stamp_microseconds: int

    @classmethod
    def start(cls, options: WriteOptions, given: StructType, *, overwrite: bool) -> EblaWriter:
        """Check what can be checked before anything is written, and say that files are about to come."""
        if overwrite and options.operation == "erase":
            raise RequestError("overwriting a table with erasures would empty it: use mode('append') to erase rows")
        address = options.address
        with open_database(address.root, read_only=True) as database:
            if address.table not in database.tables():
                raise UnknownTable(
                    f"there is no table {address.table!r} in {address.root}: create it with db.create_table, or let "
                    "ebla.pipeline.load make it from the DataFrame"
                )
            table = store_of(database).table(address.table)
            table_id, schema = table.id, table.view.schema
        check_columns(given, schema, options.operation)
        job = options.job or f"write-{uuid.uuid4()}"
        if begin_job_at(address.root, job, address.table).table_id != table_id:
            raise UnknownTable(f"the table {address.table!r} was dropped and made anew at this moment: save again")
        return cls(
            root=address.root,
            table_id=table_id,
            schema=schema,
            job=job,
            is_job_given=options.job is not None,
            operation=options.operation,
            overwrite=overwrite,
            # Given out once, so that an attempt that is repeated writes the same.
            stamp_microseconds=time.time_ns() // 1_000,
        )

    @told_plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task to fragments."""
        context = TaskContext.get()
        writer = BulkWriter(
            LocalFiles(self.root),
            self.table_id,
            self.schema,
            self.job,
            0 if context is None else context.partitionId(),
            stamp_microseconds=self.stamp_microseconds,
            replace=self.operation == "replace",
            is_sorted=False,
        )
        take = writer.erase if self.operation == "erase" else writer.write
        try:
            for batch in iterator:
                take(rows_from_spark(batch, self.schema))
            return FragmentsWritten(tuple(writer.finish()), writer.rows)
        except BaseException:
            writer.abandon()
            raise

    @told_plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks part of the table, in one step."""
        fragments = tuple(_fragments(messages))
        commit = BulkCommit(self.job, self.table_id, self.schema.version, fragments, self.overwrite)
        try:
            commit_bulk_at(self.root, commit)
        except OutcomeUnknown:
            raise  # METADATA may name the files, or come to name them
        except EblaError:
            self._clean(fragments)
            raise
        with contextlib.suppress(EblaError, OSError):  # it is committed; what is left behind is garbage, no more
            end_job_at(self.root, self.job)

    @told_plainly
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what tasks wrote, if no commit was tried: Spark tries one only when every task has a message."""
        if all(message is not None for message in messages):
            return
        self._clean(tuple(_fragments(messages)))

    def _clean(self, fragments: Iterable[BulkFragment]) -> None:
        """Remove the files of a save that was not committed and will not be."""
        with contextlib.suppress(Exception):  # why the save failed is what matters, and Spark would not tell it then
            if not self.is_job_given:
                end_job_at(self.root, self.job)
                return
            # Another run under the same id may be about to commit: only what is known to be of this run may go.
            files = LocalFiles(self.root)
            for one in fragments:
                with contextlib.suppress(OSError):
                    files.delete(one.fragment.file)


def _fragments(messages: Iterable[WriterCommitMessage | None]) -> Iterator[BulkFragment]:
    for message in messages:
        if isinstance(message, FragmentsWritten):
            yield from message.fragments


# --- columns -------------------------------------------------------------------------------------


def check_columns(given: StructType, schema: TableSchema, operation: Operation) -> None:
    """Raise unless the table takes rows with these columns; nothing is looked at but names and types."""
    if operation == "erase":
        others = [name for name in given.names if name not in schema.key_names]
        missing = [name for name in schema.key_names if name not in given.names]
        if others or missing:
            raise InvalidBatch(
                f"rows are erased by their keys: select {', '.join(schema.key_names)} and nothing else, "
                f"not {', '.join(given.names[:20])}"
            )
    if WILDCARD in given.names:
        raise UnknownColumn(
            f"a column {WILDCARD!r} of cells can be read and not written: give one column for each family in it, a map "
            "from qualifier to value"
        )
    arrow = to_arrow_schema(given, timezone="UTC")
    empty = pa.record_batch([pa.array([], field.type) for field in arrow], schema=arrow)
    plans_of(schema).plan(rows_from_spark(empty, schema).schema)


def rows_from_spark(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """Return rows in the types of the table, where Spark has another type for them: times of day, for one.

    Cells, and columns that the table does not have, stay as they are: putting them takes the one and refuses the other.
    """
    stored = {column.name: column.type for column in schema.key}
    stored |= {column.name: column.type for group in schema.groups for column in group.columns}
    names = batch.schema.names
    arrays = [
        array_from_spark(array, stored[name], f"column {name!r}") if name in stored else array
        for name, array in zip(names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=names)
