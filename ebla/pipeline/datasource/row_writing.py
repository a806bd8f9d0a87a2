"""What a task does with rows that came through ``format("ebla")``: put, replaced or erased, written to fragments.

    rows                      all are put, replace what is there, or are erased, as the operation says
    rows with ``_change``     those that say ``erase`` are erased, the others put, or replaced unless told otherwise

Rows come in any order; of several with one key the last one counts. Change rows are gathered until they are worth a
file: of each key the last is kept, so that erasures and puts have no key in common and their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from ebla.direct.bulk_writer import UNSORTED_CHUNK_BYTES, BulkWriter
from ebla.direct.files import LocalFiles
from ebla.errors import InvalidBatch, RequestError, UnknownColumn
from ebla.model.keys import KeyCodec
from ebla.model.order import sort_rows
from ebla.model.schema import WILDCARD, TableSchema
from ebla.pipeline.change_feed.changes import BEFORE, CHANGE
from ebla.pipeline.datasource.datasource_options import Operation
from ebla.pipeline.spark.types import array_from_spark
from ebla.rows.row_columns import plans_of
from ebla.service.job_orders import BulkFragment
from ebla.settings import Settings

__all__ = ["FragmentsWritten", "TaskWriting", "check_columns", "operation_for", "rows_from_spark"]

KINDS = ("insert", "update", "erase")


@dataclass
class FragmentsWritten(WriterCommitMessage):
    """What one task wrote."""

    fragments: tuple[BulkFragment, ...]
    rows: int


@dataclass(frozen=True)
class TaskWriting:
    """How tasks write rows: plain values, sent to wherever a task runs."""

    root: str
    table_id: str
    schema: TableSchema
    job: str
    operation: Operation
    # Given out once, so that an attempt that is repeated writes the same.
    stamp_microseconds: int

    def run(self, partition: int, batches: Iterable[pa.RecordBatch]) -> FragmentsWritten:
        """Write the rows of one task attempt, or nothing of them if it fails."""
        writer = BulkWriter(
            LocalFiles(self.root),
            self.table_id,
            self.schema,
            self.job,
            partition,
            stamp_microseconds=self.stamp_microseconds,
            replace=self.operation == "replace",
            is_sorted=False,
        )
        take = writer.erase if self.operation == "erase" else writer.write
        changes = _ChangeRows(writer, self.schema)
        try:
            for batch in batches:
                if CHANGE in batch.schema.names:
                    changes.take(batch)
                else:
                    take(rows_from_spark(batch, self.schema))
            changes.write()
            return FragmentsWritten(tuple(writer.finish()), writer.rows)
        except BaseException:
            writer.abandon()
            raise


class _ChangeRows:
    """Change rows on their way to a writer."""

    def __init__(self, writer: BulkWriter, schema: TableSchema) -> None:
        self._writer = writer
        self._schema = schema
        self._codec = KeyCodec(schema.key, Settings().key_bytes_max)
        self._gathered: list[pa.RecordBatch] = []
        self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        kinds = batch.column(CHANGE)
        if kinds.null_count or not pc.all(pc.is_in(kinds, value_set=pa.array(KINDS))).as_py():
            raise InvalidBatch(f"{CHANGE} of a row is {', '.join(KINDS[:-1])} or {KINDS[-1]}, and nothing else")
        self._gathered.append(batch)
        self._bytes += batch.get_total_buffer_size()
        if self._bytes > UNSORTED_CHUNK_BYTES:
            self.write()

    def write(self) -> None:
        """Write what was gathered."""
        if not self._gathered:
            return
        batch = pa.concat_batches(self._gathered)
        self._gathered, self._bytes = [], 0
        if not batch.num_rows:
            return
        kinds = batch.column(CHANGE)
        rows = rows_from_spark(batch.drop_columns(_extra(batch.schema.names)), self._schema)
        order, repeats = sort_rows(self._codec.encode_arrays([rows.column(name) for name in self._schema.key_names]))
        is_last = np.append(~repeats[1:], True)
        is_erased = np.asarray(pc.equal(kinds, "erase").to_numpy(zero_copy_only=False))
        kept = np.zeros(len(order), dtype=np.bool_)
        kept[order[is_last]] = True
        if (kept & is_erased).any():
            self._writer.erase(rows.select(list(self._schema.key_names)).filter(pa.array(kept & is_erased)))
        if (kept & ~is_erased).any():
            self._writer.write(rows.filter(pa.array(kept & ~is_erased)))


def _extra(names: Sequence[str]) -> list[str]:
    return [name for name in (CHANGE, BEFORE) if name in names]


# --- columns -------------------------------------------------------------------------------------


def operation_for(given: Operation | None, columns: StructType) -> Operation:
    """Return what is done with rows of these columns: change rows replace and others are put, unless it was said."""
    has_changes = CHANGE in columns.names
    if has_changes and given == "erase":
        raise RequestError(f"rows with {CHANGE} say themselves which of them are erased: leave the operation out")
    if has_changes and not isinstance(columns[CHANGE].dataType, StringType):
        raise InvalidBatch(f"{CHANGE} is a string: {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return given or ("replace" if has_changes else "put")


def check_columns(given: StructType, schema: TableSchema, operation: Operation) -> None:
    """Raise unless the table takes rows with these columns; nothing is looked at but names and types."""
    if CHANGE in given.names:
        given = StructType([field for field in given.fields if field.name not in (CHANGE, BEFORE)])
    if operation == "erase":
        others = [name for name in given.names if name not in schema.key_names]
        missing = [name for name in schema.key_names if name not in given.names]
        if others or missing:
            raise InvalidBatch(
                f"rows are erased by their keys: select {', '.join(schema.key_names)} and nothing else, "
                f"not {', '.join(given.names[:20])}"
            )
    if WILDCARD in given.names and schema.wildcard_group is None:
        raise UnknownColumn(
            f"the column {WILDCARD!r} has cells of any family, and the table takes those of its own only: give one "
            "column for each family in it, a map from qualifier to value"
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
