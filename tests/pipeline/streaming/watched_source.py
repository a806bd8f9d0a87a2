"""The data source with a witness: every step that Spark takes is noted, with the process that took it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from ebla.pipeline.spark_format import EblaSource


class Witness:
    def __init__(self, file: str) -> None:
        self.file = file

    def note(self, step: str) -> None:
        with open(self.file, "a") as file:
            file.write(f"{step} {os.getpid()}\n")


class WatchedReader(DataSourceReader):
    def __init__(self, inner: DataSourceReader, witness: Witness) -> None:
        self.inner = inner
        self.witness = witness

    def partitions(self) -> Any:
        self.witness.note("partitions")
        return self.inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self.witness.note("read")
        yield from self.inner.read(partition)


class WatchedWriter(DataSourceArrowWriter):
    """What goes wrong: with ``lose``, the first attempt of partition 0 writes all its files and is killed before it can
    say so; with ``full``, no file can be larger than a few KiB, as if the disk were full.
    """

    def __init__(self, inner: DataSourceArrowWriter, witness: Witness, wrong: str) -> None:
        self.inner = inner
        self.witness = witness
        self.wrong = wrong

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if self.wrong == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # of this process, which will end
        message = self.inner.write(iterator)
        self.witness.note(f"write-{context.partitionId()}-{context.attemptNumber()}")
        if self.wrong == "lose" and context.partitionId() == 0 and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return message

    def commit(self, messages: Any) -> None:
        self.witness.note("commit")
        self.inner.commit(messages)

    def abort(self, messages: Any) -> None:
        self.witness.note("abort")
        self.inner.abort(messages)


class WatchedSource(EblaSource):
    """``table|file`` names the table and the file for the notes; a third part says what goes wrong."""

    @classmethod
    def name(cls) -> str:
        return "watched"

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        options["table"], file, *more = options["table"].split("|")
        self.witness = Witness(file)
        self.wrong = more[0] if more else ""

    def schema(self) -> StructType:
        self.witness.note("schema")
        return super().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        self.witness.note("reader")
        return WatchedReader(super().reader(schema), self.witness)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        self.witness.note("writer")
        return WatchedWriter(super().writer(schema, overwrite), self.witness, self.wrong)
