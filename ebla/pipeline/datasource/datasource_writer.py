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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ebla.direct.files import LocalFiles
from ebla.direct.place import Place
from ebla.errors import EblaError, OutcomeUnknown, RequestError, UnknownTable
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.pipeline.datasource.datasource_options import WriteOptions
from ebla.pipeline.datasource.row_writing import FragmentsWritten, TaskWriting, check_columns, operation_for
from ebla.pipeline.datasource.table_making import find_or_make, unmake
from ebla.pipeline.spark.failures import told_plainly
from ebla.service.job_orders import BulkCommit, BulkFragment

__all__ = [
    "EblaWriter",
    "batch_job",
    "commit_written",
    "fragments_of",
    "is_batch_done",
    "remove_files",
    "skipped",
]


@dataclass
class EblaWriter(DataSourceArrowWriter):
    """One save. Goes from process to process: its state are plain values."""

    writing: TaskWriting
    is_job_given: bool
    overwrite: bool
    app: str | None = None
    batch: int = 0
    is_done: bool = False  # an earlier attempt wrote this batch, or the table is left alone: nothing is left to do
    is_made: bool = False  # the table, for this save
    cluster: tuple[str, ...] = ()
    table: str = ""

    @classmethod
    def start(cls, options: WriteOptions, given: StructType, *, overwrite: bool) -> EblaWriter:
        """Check what can be checked before anything is written, and say that files are about to come."""
        operation = operation_for(options.operation, given)
        if overwrite and operation == "erase":
            raise RequestError("overwriting a table with erasures would empty it: use mode('append') to erase rows")
        address = options.address
        if operation == "erase" and (options.key is not None or options.merge_schema):
            raise RequestError("rows are erased from a table that is there, as it is: leave out key and mergeSchema")
        target = find_or_make(options, given, f"make-{uuid.uuid4()}")
        metadata = target.metadata
        app, batch = options.app, options.batch
        job = options.job or (f"write-{uuid.uuid4()}" if app is None else batch_job(app, batch, metadata.table_id))
        if not target.is_left_alone:
            check_columns(given, metadata.schema, operation)
        place = Place.at(address.root, address.cluster)
        writing = TaskWriting(place.root, metadata.table_id, metadata.schema, job, operation, time.time_ns() // 1_000)
        is_job_given = options.job is not None or app is not None
        if target.is_left_alone or (app is not None and is_batch_done(metadata, app, batch)):
            return cls(writing, is_job_given, overwrite, app, batch, is_done=True)
        if place.begin(job, address.table) != metadata.table_id:
            raise UnknownTable(f"the table {address.table!r} was made anew or renamed at this moment: save again")
        return cls(
            writing,
            is_job_given,
            overwrite,
            app,
            batch,
            is_made=target.is_made,
            cluster=address.cluster,
            table=address.table,
        )

    @told_plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task to fragments."""
        if self.is_done:
            return skipped(iterator)
        context = TaskContext.get()
        return self.writing.run(0 if context is None else context.partitionId(), iterator)

    @told_plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks part of the table, in one step."""
        if self.is_done:
            return
        fragments = tuple(fragments_of(messages))
        writing = self.writing
        commit_written(
            self._place(),
            BulkCommit(
                writing.job,
                writing.table_id,
                writing.schema.version,
                fragments,
                self.overwrite,
                self.app,
                self.batch,
            ),
            lambda: self._clean(fragments),
        )

    @told_plainly
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what tasks wrote, if no commit was tried: Spark tries one only when every task has a message."""
        if all(message is not None for message in messages):
            return
        self._clean(tuple(fragments_of(messages)))

    def _clean(self, fragments: Iterable[BulkFragment]) -> None:
        """Remove the files of a save that was not committed and will not be."""
        with contextlib.suppress(Exception):  # why the save failed is what matters, and Spark would not tell it then
            if not self.is_job_given:
                self._place().end(self.writing.job)
            else:
                # Another run under the same id may be about to commit: only what is known to be of this run may go.
                remove_files(self.writing.root, fragments)
            if self.is_made:
                unmake(self._place(), self.writing.job, self.table, self.writing.table_id)

    def _place(self) -> Place:
        return Place.at(self.writing.root, self.cluster)


def batch_job(app: str, batch: int, table_id: str) -> str:
    """Return the id of the job that writes a batch into a table: one query may write a batch into several."""
    return f"{app}-{table_id[:8]}-{batch}"


def is_batch_done(metadata: TableMetadata, app: str, batch: int) -> bool:
    """Tell whether a batch of a stream is on record, or a later one is."""
    known = metadata.stream_batch(app)
    return known is not None and known.batch >= batch


def skipped(iterator: Iterator[pa.RecordBatch]) -> FragmentsWritten:
    """Take the rows of a task that has nothing to write."""
    for _ in iterator:
        pass
    return FragmentsWritten((), 0)


def commit_written(place: Place, commit: BulkCommit, clean: Callable[[], None]) -> None:
    """Commit what tasks wrote, and remove what losing attempts left; `clean` is called if it certainly failed."""
    try:
        done = place.commit(commit)
    except OutcomeUnknown:
        raise  # METADATA may name the files, or come to name them
    except EblaError:
        clean()
        raise
    # What was committed may have been replaced by a compaction since, and somebody may be reading it.
    keep = () if done.repeated else [one.fragment.file for one in commit.fragments]
    with contextlib.suppress(EblaError, OSError):  # it is committed; what is left behind is garbage, no more
        place.end(commit.job, keep)


def remove_files(root: str, fragments: Iterable[BulkFragment]) -> None:
    """Remove files that no commit names, as far as that is possible."""
    files = LocalFiles(root)
    for one in fragments:
        with contextlib.suppress(OSError):
            files.delete(one.fragment.file)


def fragments_of(messages: Iterable[WriterCommitMessage | None]) -> Iterator[BulkFragment]:
    """Yield the files that the messages of tasks name."""
    for message in messages:
        if isinstance(message, FragmentsWritten):
            yield from message.fragments
