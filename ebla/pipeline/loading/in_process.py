"""Loading in this process: rows read a batch at a time, divided by key range, sorted, and given to the tasks of a load.

    files or Arrow --> fitted (`fitting`) --> held in memory, or on disk if there are many     a sample of keys
                                                   `--> divided at the cuts --> sorted --> LoadTask --> fragments
                              rejects ---------------------------------------------------> LoadTask --> rejects

What Spark's shuffle does for a load on Spark, `Held` does here, with at most so many bytes in memory: one partition is
sorted at a time by each of a few threads. The tasks are the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.direct.files import LocalFiles
from ebla.direct.fragments import ROW
from ebla.errors import RequestError, StoreError
from ebla.model.declaration import Schema
from ebla.model.order import sort_rows
from ebla.model.schema import TableSchema
from ebla.pipeline.inputs.file_batches import FileBatches, types_in
from ebla.pipeline.inputs.input_files import InputFiles
from ebla.pipeline.loading.fitting import Fitting
from ebla.pipeline.loading.keyed_rows import places_of
from ebla.pipeline.loading.load_plan import Shares
from ebla.pipeline.loading.load_task import REASON, REJECTED, LoadTask, TaskResult
from ebla.pipeline.loading.matching import Given, match, plain_type
from ebla.pipeline.spark.engine import Engine
from ebla.pipeline.spark.progress import JobProgress, Report
from ebla.pipeline.spark.types import schema_of, stored_from_arrow
from ebla.settings import MIB, Settings

__all__ = ["ArrowRows", "FileRows", "LocalRows"]

MEMORY_BYTES_MAX = 64 * MIB
PARTITION_BYTES = 32 * MIB
PARTITIONS_MAX = 512
SAMPLE_ROWS_MAX = 16_384
BATCH_ROWS = 65_536
_REJECTS = pa.schema([(REASON, pa.string()), (REJECTED, pa.string())])


class LocalRows:
    """Rows on their way into a table, in this process. It is used once, from one thread, and closed in the end."""

    def __init__(self, engine: Engine, report: Report | None) -> None:
        self._engine = engine
        self._report = report
        self._directory = tempfile.TemporaryDirectory(prefix="ebla-load-", ignore_cleanup_errors=True)
        self._fitting: Fitting | None = None
        self._held = self._holder("rows")
        self._rejects = self._holder("rejects")

    # --- where they come from ---

    def columns_of_new(self) -> list[tuple[str, pa.DataType]]:
        """Return the columns of a table that is made for these rows."""
        raise NotImplementedError

    def matched(self, schema: TableSchema) -> pa.Schema:
        """Get ready to be read for a table, and return the columns there are."""
        raise NotImplementedError

    def batches(self) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Yield batches, each with how many of how many parts were done before it."""
        raise NotImplementedError

    # --- what a load does with them ---

    def new_schema(self, key: Sequence[str]) -> Schema:
        """Return the schema of a table that is made for these rows."""
        return schema_of([(name, stored_from_arrow(kind, name, key)) for name, kind in self.columns_of_new()], key)

    def prepare(self, schema: TableSchema, settings: Settings) -> tuple[str, ...]:
        """Match the columns with those of the table, and return their names."""
        found = [(field.name, plain_type(field.type)) for field in self.matched(schema)]
        given = [Given(name, kind, str(kind)) for name, kind in found]
        self._fitting = Fitting(match(given, schema), schema, settings.key_bytes_max)
        return tuple(column.name for column in given)

    def survey(self, partitions: int | None) -> Shares:
        """Read everything, and return how much there is, in how many partitions it goes, and a sample of its keys."""
        assert self._fitting is not None
        sample = _Sample()
        part = -1
        for batch, done, parts in self.batches():
            if self._report is not None and done != part:
                self._report(JobProgress("reading", done, parts))
                part = done
            rows, rejects = self._fitting.split(batch)
            for one in rows:
                self._held.add(one)
                sample.add(one.column(ROW))
            if rejects:
                arrays = [pa.array(list(texts), pa.string()) for texts in zip(*rejects, strict=True)]
                self._rejects.add(pa.RecordBatch.from_arrays(arrays, schema=_REJECTS))
        count = min(PARTITIONS_MAX, partitions or max(1, -(-self._held.bytes // PARTITION_BYTES)))
        return Shares(self._held.bytes, count, sample.sorted() if count > 1 else [])

    def write(self, task: LoadTask) -> list[TaskResult]:
        """Divide and sort the rows, and have the tasks write them; one result for each partition."""
        parts = self._divided(task.cuts)

        def write(number: int) -> TaskResult:
            batches = parts[number].sorted() if number < len(parts) else self._rejects.batches()
            return task.run(number, batches, LocalFiles(task.root))

        return self._engine.run(write, range(len(parts) + 1), group=task.job, phase="writing", report=self._report)

    def _divided(self, cuts: Sequence[bytes]) -> list[_Held]:
        if not cuts:
            return [self._held]
        parts = [self._holder(f"part-{number}", MEMORY_BYTES_MAX // (len(cuts) + 1)) for number in range(len(cuts) + 1)]
        for batch in self._held.batches():
            places = places_of(batch.column(ROW), cuts).to_numpy(zero_copy_only=False)
            for number in np.unique(places):
                parts[number].add(batch.filter(pa.array(places == number)))
        self._held.close()
        return parts

    def _holder(self, name: str, memory_bytes_max: int = MEMORY_BYTES_MAX) -> _Held:
        return _Held(Path(self._directory.name) / name, memory_bytes_max)

    def close(self) -> None:
        """Forget all rows."""
        self._held.close()
        self._rejects.close()
        self._directory.cleanup()


class FileRows(LocalRows):
    """Rows of files."""

    def __init__(self, files: InputFiles, engine: Engine, report: Report | None) -> None:
        super().__init__(engine, report)
        self._files = files
        self._read: FileBatches | None = None

    def columns_of_new(self) -> list[tuple[str, pa.DataType]]:
        """Return the columns of a table that is made for these rows."""
        return types_in(self._files)

    def matched(self, schema: TableSchema) -> pa.Schema:
        """Get ready to be read for a table, and return the columns there are."""
        self._read = FileBatches(self._files, schema)
        return self._read.schema

    def batches(self) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Yield batches, each with how many of how many files were done before it."""
        assert self._read is not None
        for number, batch in self._read:
            yield batch, number, self._read.count


class ArrowRows(LocalRows):
    """Rows of whatever gives Arrow: a table, a stream, a frame of pandas or polars."""

    def __init__(self, given: Any, engine: Engine, report: Report | None) -> None:
        super().__init__(engine, report)
        try:
            whole = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
            self._reader = pa.RecordBatchReader.from_stream(whole)
        except (pa.ArrowException, TypeError) as error:
            raise RequestError(f"the rows cannot be read as Arrow: {error}") from error

    def columns_of_new(self) -> list[tuple[str, pa.DataType]]:
        """Return the columns of a table that is made for these rows."""
        return [(field.name, field.type) for field in self._reader.schema]

    def matched(self, schema: TableSchema) -> pa.Schema:
        """Return the columns there are."""
        return self._reader.schema.remove_metadata()

    def batches(self) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Yield batches of a bearable size."""
        for batch in self._reader:
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(begin, BATCH_ROWS), 0, 1


class _Held:
    """Batches that wait: in memory, and in a file from a size on. First all are added, then they are read."""

    def __init__(self, path: Path, memory_bytes_max: int) -> None:
        self.bytes = 0
        self._path = path
        self._memory_bytes_max = memory_bytes_max
        self._memory: list[pa.RecordBatch] = []
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._is_on_disk = False

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.bytes += batch.nbytes
        if self._writer is None and self.bytes <= self._memory_bytes_max:
            self._memory.append(batch)
            return
        try:
            if self._writer is None:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writer = pa.ipc.new_stream(str(self._path), batch.schema, options=options)
                self._is_on_disk = True
            for one in (*self._memory, batch):
                self._writer.write_batch(one)
        except OSError as error:
            raise StoreError(
                f"rows cannot be kept in {self._path.parent}: {error}: set TMPDIR to a larger disk"
            ) from error
        self._memory = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._is_on_disk:
            with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
                yield from stream
        yield from self._memory

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in the order of their keys, those of one key in the order in which they came; once."""
        found = list(self.batches())
        self.close()
        if not found:
            return
        rows = pa.Table.from_batches(found)
        del found
        order, _ = sort_rows(rows.column(ROW).combine_chunks())
        rows = rows.drop_columns(ROW)
        for begin in range(0, len(order), BATCH_ROWS):
            part = rows.take(pa.array(order[begin : begin + BATCH_ROWS])).combine_chunks()
            yield from part.to_batches()

    def close(self) -> None:
        self._memory = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._path.unlink(missing_ok=True)


class _Sample:
    """Keys at even distances, never more than so many."""

    def __init__(self) -> None:
        self._stride = 1
        self._seen = 0
        self._rows: list[bytes] = []

    def add(self, rows: pa.Array) -> None:
        first = -self._seen % self._stride
        self._rows += rows.take(pa.array(np.arange(first, len(rows), self._stride))).to_pylist()
        self._seen += len(rows)
        while len(self._rows) > SAMPLE_ROWS_MAX:
            self._rows = self._rows[::2]
            self._stride *= 2

    def sorted(self) -> list[bytes]:
        return sorted(self._rows)
