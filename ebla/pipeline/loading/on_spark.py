"""Loading on Spark: the rows of a DataFrame fitted by its workers, divided and sorted by it, and given to the tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame

from ebla.direct.fragments import ROW
from ebla.errors import RequestError
from ebla.model.declaration import Schema
from ebla.model.schema import TableSchema
from ebla.pipeline.loading.load_plan import Shares, count_partitions, input_bytes, sample_fraction
from ebla.pipeline.loading.load_task import RESULT_SCHEMA, LoadTask, TaskResult, decode_result
from ebla.pipeline.loading.spark_fitting import PARTITION, SEQUENCE, SparkFitting, fitting_of, without_corrupt
from ebla.pipeline.spark.complaints import SPARK_ERRORS, said_by_spark
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.progress import Report, watched
from ebla.pipeline.spark.types import table_schema
from ebla.pipeline.spark.worker import start_workers
from ebla.settings import Settings

__all__ = ["SparkRows"]


class SparkRows:
    """The rows of a DataFrame on their way into a table."""

    def __init__(self, frame: DataFrame, job: str, report: Report | None) -> None:
        self._frame = frame
        self._job = job
        self._report = report
        self._fitting: SparkFitting | None = None

    def new_schema(self, key: Sequence[str]) -> Schema:
        """Return the schema of a table that is made for these rows."""
        return table_schema(without_corrupt(self._frame.schema), key)

    def prepare(self, schema: TableSchema, settings: Settings) -> tuple[str, ...]:
        """Match the columns with those of the table, and return their names."""
        start_workers(self._frame.sparkSession)
        self._fitting = fitting_of(self._frame, schema, settings.key_bytes_max)
        return tuple(column.name for column in self._fitting.columns)

    def survey(self, partitions: int | None) -> Shares:
        """Return how much there is, in how many partitions it goes, and a sample of its keys."""
        assert self._fitting is not None
        bytes_ = input_bytes(self._frame)
        count = count_partitions(bytes_, self._frame.sparkSession.sparkContext.defaultParallelism, partitions)
        sample: list[bytes] = []
        if count > 1:
            with self._on_spark("sampling"):
                sample = self._fitting.sample(self._frame, sample_fraction(bytes_, count))
        return Shares(bytes_, count, sample)

    def write(self, task: LoadTask) -> list[TaskResult]:
        """Have Spark divide and sort the rows, and tasks write them; one result for each partition."""
        assert self._fitting is not None
        rows = (
            self._fitting.fitted(self._frame, task.cuts)
            .repartitionById(task.partitions + 1, PARTITION)
            .sortWithinPartitions(ROW, SEQUENCE)
            .drop(ROW, PARTITION, SEQUENCE)
        )
        with self._on_spark("writing"):
            # Only what reached the driver counts: one result per partition, whatever else attempts left behind.
            found = rows.mapInArrow(task.attempt, RESULT_SCHEMA).collect()
        return [decode_result(bytes(row["result"])) for row in found]

    def close(self) -> None:
        """Do nothing: the DataFrame is the caller's."""

    @contextlib.contextmanager
    def _on_spark(self, phase: str) -> Iterator[None]:
        """Run Spark jobs: watched, and with errors that say what happened."""
        try:
            with unwrapping(), watched(self._frame.sparkSession, self._job, phase, self._report):
                yield
        except SPARK_ERRORS as error:
            raise RequestError(f"Spark could not compute the rows: {said_by_spark(error)}") from error
