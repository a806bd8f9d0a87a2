"""Tasks on Spark: every portion is one task of a job of Spark's, and only what reaches the driver counts.

    portions by number --> tasks --> pickled results --> the driver, each once

Attempts that were lost, or ran twice at once, may have left something behind; a job removes what no result names.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from ebla.errors import StoreError
from ebla.pipeline.spark.failures import plain_errors, unwrapping
from ebla.pipeline.spark.progress import Report, watched
from ebla.pipeline.spark.worker import numbers_of

__all__ = ["OnSpark"]

RESULT_SCHEMA = "number bigint, result binary"

Portion = TypeVar("Portion")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Tasks of a Spark session."""

    spark: SparkSession

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
        return self.spark.sparkContext.defaultParallelism

    def run(
        self,
        task: Callable[[Portion], Result],
        portions: Sequence[Portion],
        *,
        group: str,
        phase: str,
        report: Report | None,
    ) -> list[Result]:
        """Run the task once for every portion, and return the results in the order of the portions."""
        if not portions:
            return []
        with unwrapping(), watched(self.spark, group, phase, report):
            numbers = self.spark.range(0, len(portions), 1, len(portions))
            found = numbers.mapInArrow(_attempts(task, portions), RESULT_SCHEMA).collect()
        results: dict[int, Result] = {row["number"]: pickle.loads(bytes(row["result"])) for row in found}
        if len(found) != len(portions) or len(results) != len(portions):
            raise StoreError("Spark did not report every task once: nothing was done, run the job again")
        return [results[number] for number in range(len(portions))]


def _attempts(
    task: Callable[[Portion], Result], portions: Sequence[Portion]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers_of(batches):
            with plain_errors():
                packed = pickle.dumps(task(portions[number]))
            yield pa.record_batch({"number": pa.array([number], pa.int64()), "result": pa.array([packed], pa.binary())})

    return attempt
