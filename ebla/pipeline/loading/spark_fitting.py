"""Rows of a DataFrame on their way into a table: fitted by Python workers, with the code of a load in the process.

    DataFrame                     Python workers (`Fitting`)                                      Spark
    user string, day string  -->  c0, c1, ... with `_reason`, `_rejected`, `_row`,           -->  divided and sorted
                                  the partition and the place of each row in the input

Columns travel by number (c0, c1, ...): names of Ebla have colons, and Spark does not tell upper from lower case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType

from ebla.direct.fragments import ROW, pack_schema, unpack_schema
from ebla.errors import RequestError
from ebla.model.schema import TableSchema
from ebla.pipeline.inputs.input_files import CORRUPT
from ebla.pipeline.inputs.text_parsing import parsed_type
from ebla.pipeline.loading.fitting import Fitting, Rejects
from ebla.pipeline.loading.keyed_rows import places_of
from ebla.pipeline.loading.load_task import REASON, REJECTED
from ebla.pipeline.loading.matching import Given, Matched, match
from ebla.pipeline.spark.failures import plain_errors
from ebla.pipeline.spark.types import array_to_spark, spark_type

__all__ = ["PARTITION", "SEQUENCE", "SparkFitting", "fitting_of", "without_corrupt"]

PARTITION = "_partition"
SEQUENCE = "_seq"

# A worker numbers the rows of its partition of the input; there are fewer than this.
_ROWS_OF_PARTITION = 1 << 40

_Fit = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def without_corrupt(given: StructType) -> StructType:
    """Return the columns of the rows themselves: not the one with lines that could not be read."""
    return StructType([field for field in given.fields if field.name != CORRUPT])


def fitting_of(frame: DataFrame, schema: TableSchema, key_bytes_max: int) -> SparkFitting:
    """Return what makes rows of a table of those of a DataFrame; raise if the table cannot take its columns."""
    fields = without_corrupt(frame.schema).fields
    columns = match([Given(f.name, _arrow_type(f), f.dataType.simpleString()) for f in fields], schema)
    types = [
        spark_type(parsed_type(column.stored)) if column.is_parsed and column.stored is not None else field.dataType
        for column, field in zip(columns, fields, strict=True)
    ]
    return SparkFitting(tuple(frame.columns), tuple(columns), tuple(types), pack_schema(schema), key_bytes_max)


def _arrow_type(field: StructField) -> pa.DataType:
    try:
        return to_arrow_type(field.dataType, timezone="UTC")
    except (PySparkException, AssertionError):
        raise RequestError(
            f"column {field.name!r} is {field.dataType.simpleString()}, which a table cannot hold: cast or drop it"
        ) from None


@dataclass(frozen=True)
class SparkFitting:
    """What Python workers do with the rows of one DataFrame: plain values, sent to wherever they run."""

    names: tuple[str, ...]
    columns: tuple[Matched, ...]
    types: tuple[DataType, ...]
    schema: bytes
    key_bytes_max: int

    def fitted(self, frame: DataFrame, cuts: Sequence[bytes]) -> DataFrame:
        """Return the rows with their partition between the cuts; rejects are in one behind all others."""
        more = {REASON: StringType(), REJECTED: StringType(), ROW: BinaryType()}
        more |= {PARTITION: IntegerType(), SEQUENCE: LongType()}
        fields = {f"c{at}": kind for at, kind in enumerate(self.types)} | more
        wanted = StructType([StructField(name, kind) for name, kind in fields.items()])
        return self._numbered(frame).mapInArrow(self._fit(tuple(cuts)), wanted)

    def sample(self, frame: DataFrame, fraction: float) -> list[bytes]:
        """Return the rows of a sample of the keys, sorted; what is rejected for its key is not among them."""
        keys = [column for column in self.columns if column.is_key]
        chosen = self._numbered(frame).select(*[f"c{self.columns.index(column)}" for column in keys])
        if fraction < 1.0:
            chosen = chosen.sample(fraction, 1)
        fitting = Fitting(keys, unpack_schema(self.schema), self.key_bytes_max)
        rows: list[bytes] = []
        for batch in chosen.toArrow().rename_columns([column.name for column in keys]).to_batches():
            for fits in fitting.split(batch)[0]:
                rows += fits.column(ROW).to_pylist()
        return sorted(rows)

    def _numbered(self, frame: DataFrame) -> DataFrame:
        numbers = iter(range(len(self.columns)))
        return frame.toDF(*[CORRUPT if name == CORRUPT else f"c{next(numbers)}" for name in self.names])

    # --- in a worker ---

    def _fit(self, cuts: Sequence[bytes]) -> _Fit:
        def fit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            number = _ROWS_OF_PARTITION * (0 if context is None else context.partitionId())
            fitting = Fitting(self.columns, unpack_schema(self.schema), self.key_bytes_max)
            for batch in batches:
                with plain_errors():
                    rows, rejects = fitting.split(pa.RecordBatch.from_arrays(batch.columns, names=list(self.names)))
                for fits in rows:
                    yield self._sent(fits, places_of(fits.column(ROW), cuts), number)
                    number += fits.num_rows
                if rejects:
                    places = pa.repeat(pa.scalar(len(cuts) + 1, pa.int32()), len(rejects))
                    yield self._sent(self._rejected(rejects), places, number)
                    number += len(rejects)

        return fit

    def _sent(self, rows: pa.RecordBatch, places: pa.Array, number: int) -> pa.RecordBatch:
        """Return rows as they are sent to Spark, numbered in their order."""
        arrays = [
            array_to_spark(array) if column.is_parsed else array
            for column, array in zip(self.columns, rows.columns, strict=False)
        ]
        arrays += [*rows.columns[len(arrays) :], places, pa.array(np.arange(number, number + rows.num_rows))]
        return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, PARTITION, SEQUENCE])

    def _rejected(self, rejects: Rejects) -> pa.RecordBatch:
        """Return rejects in the columns of rows that fit."""
        reasons, rows = (pa.array(list(texts), pa.string()) for texts in zip(*rejects, strict=True))
        nothing = [
            pa.nulls(len(rejects), parsed_type(column.stored) if column.is_parsed and column.stored else column.given)
            for column in self.columns
        ]
        names = [*[f"c{at}" for at in range(len(nothing))], REASON, REJECTED, ROW]
        return pa.RecordBatch.from_arrays([*nothing, reasons, rows, pa.nulls(len(rejects), pa.binary())], names=names)
