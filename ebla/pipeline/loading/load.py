"""Load: rows of files, of a DataFrame or of Arrow into a table, by many tasks, in one commit.

    1. plan      METADATA read; columns matched; a sample of keys, if the input is not small; cuts between partitions
    2. begin     a table made, if there is none; an intent registered: files of this job are about to come
    3. write     rows fitted, divided by key range, sorted, written to fragments by tasks; one result per task
    4. commit    one METADATA transaction names the files of these results, or nothing happens at all
    5. end       files that no result named (attempts that failed, or lost) go, and the intent

Where tasks run, `engine` decides: on Spark (`on_spark`) or in this process (`in_process`). They differ in who reads
files, and who divides and sorts; how rows are fitted, what is planned, what a task does, and the commit are the same.

What can fail is done before the commit, and undone if it fails: staged files, rejects, a table made for the load. A
commit is applied once under its job id, so a load that is repeated under the same id after a crash, or an outcome that
could not be known, finds out whether it had been applied and does nothing then.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ebla.client.database import Database
from ebla.direct.fragments import pack_schema
from ebla.direct.place import Place
from ebla.errors import EblaError, InvalidBatch, OutcomeUnknown, RequestError, StoreError, UnknownTable
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.declaration import Schema, check_table_name
from ebla.model.schema import TableSchema
from ebla.pipeline.inputs.input_files import InputFiles
from ebla.pipeline.loading.cuts import choose_cuts
from ebla.pipeline.loading.load_plan import Shares, tablet_keys
from ebla.pipeline.loading.load_task import LoadTask, TaskResult
from ebla.pipeline.loading.rejects import EXAMPLES_MAX, prepare_directory, publish, refusal, withdraw
from ebla.pipeline.spark.engine import InProcess, SparkChoice, choose_engine, session_for
from ebla.pipeline.spark.progress import JobProgress, Report
from ebla.service.job_files import check_job
from ebla.service.job_orders import BulkCommit
from ebla.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LoadSummary", "Mode", "load"]

Mode = Literal["upsert", "replace", "overwrite"]
OnDuplicate = Literal["last", "error"]

MODES = ("upsert", "replace", "overwrite")


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """What a load did. `repeated`: it had been done before under this job id, and nothing was done now.

    `rows` counts the rows that were taken; `duplicates` those of them that a later row of the same key replaced.
    """

    job: str
    table: str
    txn: int
    rows: int = 0
    rejected: int = 0
    duplicates: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    repeated: bool = False
    created: bool = False
    rejects_files: tuple[str, ...] = ()


def load(
    store: Database | str | os.PathLike[str],
    table: str,
    rows: DataFrame | InputFiles | Any,
    key: str | Sequence[str] | None = None,
    *,
    mode: Mode = "upsert",
    job: str | None = None,
    rejects: str | os.PathLike[str] | None = None,
    on_duplicate: OnDuplicate = "last",
    splits: Sequence[Any] | None = None,
    partitions: int | None = None,
    spark: SparkChoice = None,
    progress: Callable[[JobProgress], None] | None = None,
) -> LoadSummary:
    """Load rows into a table in one commit, all of them or nothing.

    `rows` is a DataFrame of Spark's, `InputFiles`, or what gives Arrow: a table, a stream, a frame of pandas or polars.
    `store` is an open database, or the directory of a store that any process may have open. A table that does not
    exist is made from the columns of the rows with `key` as its key, cut at the keys `splits`, or at keys from a
    sample if the input is large.

    `mode`: ``upsert`` sets the columns that the rows have and leaves others as they are, ``replace`` replaces whole
    rows, ``overwrite`` the whole table. Of several rows with one key the last wins, in the order of the input, or
    with ``on_duplicate="error"`` they fail the load. Rows that do not fit (a null in the key, a value of another type,
    something too long) fail it as well; if `rejects` names a directory, they are written there as JSON lines with the
    reason, and the others are loaded.

    A `job` id makes the load safe to repeat: it is applied once. `progress` is called a few times a second.

    `spark` says where files are loaded: on a SparkSession, on the running or a new one if it is True, in this process
    if it is False; unless it is said, few in this process, and many on Spark if it is installed. A DataFrame is loaded
    by Spark, and Arrow by this process.
    """
    began = time.monotonic()
    if mode not in MODES:
        raise RequestError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if on_duplicate not in ("last", "error"):
        raise RequestError(f"on_duplicate is 'last' or 'error', not {on_duplicate!r}")
    if partitions is not None and partitions < 1:
        raise RequestError(f"a load has at least one partition, not {partitions}")
    check_table_name(table)
    _check_rows(rows, spark)
    names = [key] if isinstance(key, str) else list(key or ())
    place = Place.of(store)
    work = _Load(
        place=place,
        table=table,
        job=check_job(job) if job is not None else f"load-{uuid.uuid4()}",
        mode=mode,
        on_duplicate=on_duplicate,
        rejects=None if rejects is None else os.fspath(rejects),
        report=progress,
        settings=Settings(),
    )
    # An id that nobody else can have needs no guard.
    with place.alone(work.job) if job is not None else contextlib.nullcontext():
        summary = work.run(rows, names, splits, partitions, spark)
    return replace(summary, seconds=time.monotonic() - began)


class LoadRows(Protocol):
    """Rows on their way into a table, wherever the tasks run."""

    def new_schema(self, key: Sequence[str]) -> Schema:
        """Return the schema of a table that is made for these rows."""
        ...

    def prepare(self, schema: TableSchema, settings: Settings) -> tuple[str, ...]:
        """Match the columns with those of the table, and return their names."""
        ...

    def survey(self, partitions: int | None) -> Shares:
        """Return how much there is, in how many partitions it goes, and a sample of its keys."""
        ...

    def write(self, task: LoadTask) -> list[TaskResult]:
        """Divide and sort the rows, and have tasks write them; one result for each partition."""
        ...

    def close(self) -> None:
        """Forget what was made of the rows."""
        ...


def _check_rows(rows: object, spark: SparkChoice) -> None:
    if hasattr(rows, "_jdf"):
        if spark is False:
            raise RequestError("a DataFrame of Spark's is loaded by Spark: leave spark=False out")
        return
    is_arrow = any(hasattr(rows, name) for name in ("__arrow_c_stream__", "__arrow_c_array__"))
    if not is_arrow and not isinstance(rows, InputFiles):
        raise RequestError(
            f"a load takes a DataFrame of a Spark session with its driver in this process, InputFiles, or Arrow, "
            f"not {_kind(rows)}: put other rows with table.put"
        )
    if is_arrow and spark:
        raise RequestError("Arrow is loaded by this process: for Spark, make a DataFrame of it, or leave spark out")


@dataclass(slots=True)
class _Work:
    """A load that is planned: what its tasks do, and on which rows."""

    metadata: TableMetadata
    task: LoadTask
    rows: LoadRows
    is_new: bool
    is_committing: bool = False  # from then on METADATA may come to name its files


def _kind(given: object) -> str:
    """Name a type so that a DataFrame of pandas is not taken for one of Spark."""
    package = type(given).__module__.partition(".")[0]
    return type(given).__name__ if package == "builtins" else f"{package}.{type(given).__name__}"


def check_key(table: str, schema: TableSchema, key: Sequence[str]) -> None:
    """Raise `RequestError` if the key that is given for a table that is there is another one."""
    if key and tuple(key) != schema.key_names:
        raise RequestError(f"the key of {table!r} is {', '.join(schema.key_names)}, not {', '.join(key)}: leave it out")


@dataclass(frozen=True, slots=True)
class _Load:
    """One run of a load."""

    place: Place
    table: str
    job: str
    mode: Mode
    on_duplicate: OnDuplicate
    rejects: str | None
    report: Report | None
    settings: Settings

    def run(
        self, rows: Any, key: list[str], splits: Sequence[Any] | None, partitions: int | None, spark: SparkChoice
    ) -> LoadSummary:
        known = self.place.metadata(self.table)
        if known is not None:
            done = known.job_txn(self.job)
            if done is not None:
                self.place.end(self.job)
                return LoadSummary(self.job, self.table, done, repeated=True)
        with contextlib.closing(self._rows(rows, known, spark)) as source:
            return self._run(self._plan(source, known, key, splits, partitions))

    def _run(self, work: _Work) -> LoadSummary:
        try:
            return self._carry_out(work)
        except OutcomeUnknown:
            raise  # METADATA may name the files, or come to name them: repeating the job finds out
        except BaseException as error:
            # Whoever is interrupted in the middle of a commit does not know its outcome either.
            if not work.is_committing or isinstance(error, Exception):
                self._undo(work)
            raise

    # --- plan ---

    def _rows(self, rows: Any, known: TableMetadata | None, spark: SparkChoice) -> LoadRows:
        """Return the rows where they are loaded: on Spark, or in this process."""
        if isinstance(rows, InputFiles):
            engine = choose_engine(spark, rows.bytes(), "a load on Spark")
            if isinstance(engine, InProcess):
                from ebla.pipeline.loading.in_process import FileRows

                return FileRows(rows, engine, self.report)
            from ebla.pipeline.inputs.source_files import read_files

            rows = read_files(
                session_for(spark, "a load on Spark"),
                rows.paths,
                rows.kind,
                None if known is None else known.schema,
                header=rows.header,
                delimiter=rows.delimiter,
                multiline=rows.multiline,
            )
        if hasattr(rows, "_jdf"):
            from ebla.pipeline.loading.on_spark import SparkRows

            return SparkRows(rows, self.job, self.report)
        from ebla.pipeline.loading.in_process import ArrowRows

        return ArrowRows(rows, choose_engine(False, None, "a load"), self.report)

    def _plan(
        self,
        rows: LoadRows,
        known: TableMetadata | None,
        key: list[str],
        splits: Sequence[Any] | None,
        partitions: int | None,
    ) -> _Work:
        made: Schema | None = None
        if known is None:
            if not key:
                raise UnknownTable(
                    f"there is no table {self.table!r}: name its key columns and it is made, as in key=['user', 'day']"
                )
            made = rows.new_schema(key)
            schema = made.number()
        else:
            check_key(self.table, known.schema, key)
            if splits is not None:
                raise RequestError(f"splits are for a new table, and {self.table!r} exists: leave them out")
            schema = known.schema
        names = rows.prepare(schema, self.settings)
        rejects = None if self.rejects is None else prepare_directory(self.rejects)
        shares = rows.survey(partitions)
        metadata = known
        if metadata is None:
            assert made is not None
            at = tablet_keys(shares.input_bytes, schema.key, shares.sample) if splits is None else splits
            metadata = self.place.create_table(self.table, made, at)
        cuts = choose_cuts([tablet.first for tablet in metadata.tablets[1:]], shares.sample, shares.partitions)
        task = LoadTask(
            root=self.place.root,
            table_id=metadata.table_id,
            schema=pack_schema(metadata.schema),
            job=self.job,
            names=names,
            cuts=tuple(cuts),
            # Given out once, so that an attempt that is repeated writes the same.
            stamp_microseconds=time.time_ns() // 1_000,
            replace=self.mode == "replace",
            shows_duplicates=self.on_duplicate == "error",
            rejects=rejects,
            settings=self.settings,
        )
        return _Work(metadata, task, rows, known is None)

    # --- carry out ---

    def _carry_out(self, work: _Work) -> LoadSummary:
        if self.place.begin(self.job, self.table) != work.metadata.table_id:
            raise UnknownTable(f"the table {self.table!r} was dropped and made anew at this moment: run the job again")
        results = work.rows.write(work.task)
        self._check(results, work)
        rejects_files: list[str] = []
        if work.task.rejects is not None:
            parts = [result.rejects_file for result in results if result.rejects_file is not None]
            rejects_files = publish(work.task.rejects, self.job, parts)
        if self.report is not None:
            self.report(JobProgress("committing"))
        fragments = tuple(one for result in results for one in result.fragments)
        work.is_committing = True
        done = self.place.commit(
            BulkCommit(
                self.job,
                work.metadata.table_id,
                work.metadata.schema.version,
                fragments,
                overwrite=self.mode == "overwrite",
            )
        )
        # What was committed may have been replaced by a compaction since, and somebody may be reading it.
        keep = () if done.repeated else [one.fragment.file for one in fragments]
        with contextlib.suppress(EblaError, OSError):  # it is committed; what is left behind is garbage, no more
            self.place.end(self.job, keep)
        return LoadSummary(
            job=self.job,
            table=self.table,
            txn=done.txn,
            rows=sum(result.rows for result in results),
            rejected=sum(result.rejected for result in results),
            duplicates=sum(result.duplicates for result in results),
            files=len(fragments),
            bytes=sum(one.fragment.bytes for one in fragments),
            repeated=done.repeated,
            created=work.is_new,
            rejects_files=tuple(rejects_files),
        )

    def _check(self, results: Sequence[TaskResult], work: _Work) -> None:
        """Raise if a task is missing, or rows came that the load does not take."""
        wanted = list(range(work.task.partitions + 1))
        # Of an input that is known to be empty, Spark runs no tasks at all.
        if results and sorted(result.partition for result in results) != wanted:
            raise StoreError("the tasks did not report every partition once: nothing was loaded, run the job again")
        rejected = sum(result.rejected for result in results)
        rows = sum(result.rows for result in results)
        if rejected and self.rejects is None:
            raise refusal(rejected, rows + rejected, [text for one in results for text in one.reject_examples])
        duplicates = sum(result.duplicates for result in results)
        if duplicates and self.on_duplicate == "error":
            shown = [text for result in results for text in result.duplicate_examples][:EXAMPLES_MAX]
            raise InvalidBatch(
                f"{duplicates:,} of {rows:,} rows have the key of another row, and nothing was loaded; remove them, "
                f"or let the last one win. Examples: {', '.join(shown)}"
            )

    def _undo(self, work: _Work) -> None:
        """Remove what a load that certainly was not committed has left."""
        with contextlib.suppress(Exception):  # why it failed is what matters
            self.place.end(self.job)
        if work.task.rejects is not None:
            with contextlib.suppress(OSError):
                withdraw(work.task.rejects, self.job)
        if work.is_new:
            self.place.drop_if_untouched(self.table, work.metadata)
