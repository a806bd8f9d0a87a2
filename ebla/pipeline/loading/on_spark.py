"""Loading on Spark: a DataFrame prepared, divided by key range and sorted by Spark, and given to the tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ebla.errors import RequestError
from ebla.model.declaration import Schema
from ebla.model.schema import Column, TableSchema
from ebla.pipeline.loading.cuts import partition_by_comparing, partition_by_encoding
from ebla.pipeline.loading.load_plan import (
    Shares,
    count_partitions,
    input_bytes,
    key_columns,
    sample_fraction,
    sample_rows,
)
from ebla.pipeline.loading.load_task import REASON, REJECTED, RESULT_SCHEMA, LoadTask, TaskResult, decode_result
from ebla.pipeline.loading.spark_columns import SEQUENCE, InputColumn, columns_of, prepare, without_corrupt
from ebla.pipeline.spark.complaints import SPARK_ERRORS, said_by_spark
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.progress import Report, watched
from ebla.pipeline.spark.types import table_schema
from ebla.settings import Settings

__all__ = ["SparkRows"]

_PARTITION = "_partition"


class SparkRows:
    """The rows of a DataFrame on their way into a table."""

    def __init__(self, frame: DataFrame, job: str, report: Report | None) -> None:
        self._frame = frame
        self._job = job
        self._report = report
        self._columns: list[InputColumn] = []
        self._prepared = frame
        self._key: tuple[Column, ...] = ()

    def new_schema(self, key: Sequence[str]) -> Schema:
        """Return the schema of a table that is made for these rows."""
        return table_schema(without_corrupt(self._frame.schema), key)

    def prepare(self, schema: TableSchema, settings: Settings) -> tuple[str, ...]:
        """Match the columns with those of the table, and return their names."""
        self._columns = columns_of(without_corrupt(self._frame.schema), schema)
        self._prepared = prepare(self._frame, self._columns, schema, settings.key_bytes_max)
        self._named = key_columns(self._columns, schema)
        self._key = schema.key
        return tuple(column.name for column in self._columns)

    def survey(self, partitions: int | None) -> Shares:
        """Return how much there is, in how many partitions it goes, and a sample of its keys."""
        bytes_ = input_bytes(self._frame)
        count = count_partitions(bytes_, self._frame.sparkSession.sparkContext.defaultParallelism, partitions)
        sample: list[bytes] = []
        if count > 1:
            with self._on_spark("sampling"):
                sample = sample_rows(self._prepared, self._key, self._named, sample_fraction(bytes_, count))
        return Shares(bytes_, count, sample)

    def write(self, task: LoadTask) -> list[TaskResult]:
        """Have Spark divide and sort the rows, and tasks write them; one result for each partition."""
        rows = _divided(self._prepared, self._key, self._named, task.cuts, len(self._columns))
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


def _divided(
    prepared: DataFrame, key: Sequence[Column], named: Sequence[str], cuts: Sequence[bytes], columns: int
) -> DataFrame:
    """Return the rows divided by the cuts and sorted; rejects are in one partition behind all others."""
    given = [F.col(name) for name in named]
    place = partition_by_comparing(key, given, cuts)
    if place is None:
        place = partition_by_encoding(key, given, cuts)
    # Never null: Spark would send such a row to the first partition.
    number = F.when(F.col(REASON).isNull(), F.coalesce(place, F.lit(0))).otherwise(F.lit(len(cuts) + 1))
    return (
        prepared.withColumn(_PARTITION, number.cast("int"))
        .repartitionById(len(cuts) + 2, F.col(_PARTITION))
        .sortWithinPartitions(*named, SEQUENCE)
        .select(*[f"c{at}" for at in range(columns)], REASON, REJECTED)
    )
