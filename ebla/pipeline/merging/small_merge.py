"""A merge whose source is in memory: the rows that match are looked up by key, in this process.

    source: Arrow  -->  keys  -->  which are there  -->  clauses  -->  change rows  -->  one task, here
                                      `-> what they hold, and Spark to work out expressions, only if there are any

Of the table nothing is read but the blocks that may have the keys; all of its keys, if rows that are in the table alone
are deleted, a window at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ebla.client.database import Database
from ebla.direct.fragments import ROW
from ebla.errors import RequestError
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.pipeline.merging.change_commit import Read
from ebla.pipeline.merging.change_rows import Changes, ChangeWriting, encoded_keys
from ebla.pipeline.merging.clauses import Clause, columns_named, needs_sql, values_of
from ebla.pipeline.merging.target_rows import Indices, Keys, TargetRows, reading_target
from ebla.pipeline.spark.complaints import said_by_spark
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.types import array_from_spark, to_spark
from ebla.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SmallMerge"]

_AT = "_at"


class SmallMerge:
    """A merge of rows that are in memory. `session` starts Spark, if there are expressions to work out."""

    def __init__(
        self,
        store: Database | str,
        table: str,
        source: pa.Table,
        clauses: Sequence[Clause],
        session: Callable[[], SparkSession],
    ) -> None:
        self._store = store
        self._table = table
        self._source = source
        self._clauses = list(clauses)
        self._session = session

    def attempt(self, writing: ChangeWriting, schema: TableSchema) -> Read:
        """Read, decide and write once."""
        rows = encoded_keys(self._source, schema, KeyCodec(schema.key, Settings().key_bytes_max))
        keys = Keys(rows)
        with reading_target(self._store, self._table, schema) as target:
            return Read(target.as_of, writing.run(0, self._units(keys, target, schema)))

    def _units(self, keys: Keys, target: TargetRows, schema: TableSchema) -> Iterator[list[Changes]]:
        of_source = [clause for clause in self._clauses if clause.side != "not_matched_by_source"]
        if of_source and self._source.num_rows:
            yield (
                self._by_sql(of_source, keys, target, schema)
                if needs_sql(of_source)
                else self._plain(of_source, keys, target, schema)
            )
        if len(of_source) < len(self._clauses):
            for found in target.others(keys.distinct):
                yield [Changes("delete", found.append_column(ROW, target.encoded(found)))]

    # --- without expressions ---

    def _plain(self, clauses: Sequence[Clause], keys: Keys, target: TargetRows, schema: TableSchema) -> list[Changes]:
        matched = keys.matched(target)
        sides = {"matched": np.flatnonzero(matched), "not_matched": np.flatnonzero(~matched)}
        return [self._changes(clause, sides[clause.side], keys, schema) for clause in clauses]

    def _changes(self, clause: Clause, at: Indices, keys: Keys, schema: TableSchema) -> Changes:
        """Return what a clause makes of rows of the source that are set as they are, or deleted."""
        columns = list(schema.key_names) if clause.kind == "delete" else self._source.column_names
        found = self._source.select(columns).take(pa.array(at))
        return Changes(clause.kind, found.append_column(ROW, keys.rows.take(pa.array(at))))

    # --- with expressions ---

    def _by_sql(self, clauses: Sequence[Clause], keys: Keys, target: TargetRows, schema: TableSchema) -> list[Changes]:
        from pyspark.errors import PySparkException

        from ebla.pipeline.merging.sql_clauses import CLAUSE, SOURCE, TARGET, decided, values_name

        names = self._source.column_names
        # What is set as it is in the source is taken from there, not through Spark.
        values = [None if clause.sets is None else values_of(clause, schema, names) for clause in clauses]
        texts = [text for clause in clauses for text in clause.texts]
        held = target.read(keys, columns_named(texts, schema))
        pairs = pa.table(
            {
                _AT: pa.array(np.arange(len(self._source)), pa.int64()),
                SOURCE: _struct(to_spark(self._source), None),
                TARGET: _struct(to_spark(held), held.column(schema.key_names[0]).is_null()),
            }
        )
        try:
            with unwrapping():
                frame = self._session().createDataFrame(pairs)
                found = decided(frame, clauses, values, [_AT]).toArrow()
        except PySparkException as error:
            raise RequestError(f"Spark cannot work out the clauses: {said_by_spark(error)}") from error
        numbers, at = found.column(CLAUSE).to_numpy(), found.column(_AT).to_numpy()
        changes = []
        for number, clause in enumerate(clauses):
            here = np.flatnonzero(numbers == number)
            if not values[number]:
                changes.append(self._changes(clause, at[here], keys, schema))
                continue
            sets = found.column(values_name(number)).take(pa.array(here)).combine_chunks()
            rows = self._source.select(schema.key_names).take(pa.array(at[here]))
            rows = rows.append_column(ROW, keys.rows.take(pa.array(at[here])))
            changes.append(Changes(clause.kind, with_values(rows, sets, schema)))
        return changes


def with_values(rows: pa.Table, sets: pa.StructArray, schema: TableSchema) -> pa.Table:
    """Return rows with the fields of structs, but for keys, as columns of the table's types."""
    stored = {column.name: column.type for group in schema.groups for column in group.columns}
    for field, array in zip(sets.type, sets.flatten(), strict=True):
        if field.name in schema.key_names:
            continue
        if field.name in stored:
            array = array_from_spark(array, stored[field.name], f"column {field.name!r}")
        rows = rows.append_column(field.name, array)
    return rows


def _struct(rows: pa.Table, is_null: pa.ChunkedArray | None) -> pa.Array:
    arrays = [column.combine_chunks() for column in rows.columns]
    mask = None if is_null is None else is_null.combine_chunks()
    return pa.StructArray.from_arrays(arrays, fields=list(rows.schema), mask=mask)
