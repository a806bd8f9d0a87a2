"""Merges, updates and deletions by Spark: both sides joined, or the table filtered, and change rows written by tasks.

source  ----.
             >-- join on the key --> clauses --> by key, sorted --> tasks write --> files, counts
table at T -'     with the columns that expressions name
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from ebla.client.database import Database
from ebla.direct.fragments import ROW, unpack_schema
from ebla.direct.holding import Holding
from ebla.errors import InvalidKey, RequestError, SchemaChanged
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.pipeline.merging.change_commit import Read
from ebla.pipeline.merging.change_rows import Changes, ChangeWriting, Written, encoded_keys, joined
from ebla.pipeline.merging.clauses import Clause, columns_named, values_of
from ebla.pipeline.merging.small_merge import with_values
from ebla.pipeline.merging.sql_clauses import CLAUSE, SOURCE, TARGET, decided, values_name
from ebla.pipeline.scanning.scan import frame_of
from ebla.pipeline.scanning.sections import plan_scan
from ebla.pipeline.spark.complaints import said_by_spark
from ebla.pipeline.spark.failures import plain_errors, unwrapped, unwrapping
from ebla.pipeline.spark.types import array_from_spark, spark_type
from ebla.settings import Settings

__all__ = ["LargeMerge", "TableChange"]

RESULT_SCHEMA = "result binary"


class LargeMerge:
    """A merge of a DataFrame that may be large, by a join."""

    def __init__(self, store: Database | str, table: str, source: DataFrame, clauses: Sequence[Clause]) -> None:
        self._store = store
        self._table = table
        self._source = source
        self._clauses = list(clauses)

    def attempt(self, writing: ChangeWriting, schema: TableSchema) -> Read:
        """Read, decide and write once."""
        texts = [text for clause in self._clauses for text in clause.texts]
        values = [values_of(clause, schema, self._source.columns) for clause in self._clauses]
        keys = list(schema.key_names)
        given = [_source_key(self._source, column.name, spark_type(column.type)) for column in schema.key]
        source = self._source.select(
            F.struct(*[F.col(_quoted(name)) for name in self._source.columns]).alias(SOURCE),
            *[key.alias(f"_s{at}") for at, key in enumerate(given)],
        )
        with unwrapping(), Holding() as holding:
            held, as_of = _held(self._store, self._table, columns_named(texts, schema), schema, self._spark, holding)
            target = held.select(
                F.struct(*[F.col(_quoted(name)) for name in held.columns]).alias(TARGET),
                *[F.col(_quoted(name)).alias(f"_t{at}") for at, name in enumerate(keys)],
            )
            same = [F.col(f"_s{at}") == F.col(f"_t{at}") for at in range(len(keys))]
            pairs = source.join(target, same, self._how()).select(
                SOURCE,
                TARGET,
                *[F.coalesce(f"_s{at}", f"_t{at}").alias(f"_k{at}") for at in range(len(keys))],
            )
            named = [f"_k{at}" for at in range(len(keys))]
            changed = decided(pairs, self._clauses, values, named)
            spread = changed.repartition(self._spark.sparkContext.defaultParallelism, *named)
            task = _Task(writing, tuple(clause.kind for clause in self._clauses))
            return Read(as_of, _run(spread.sortWithinPartitions(*named), task))

    @property
    def _spark(self) -> SparkSession:
        return self._source.sparkSession

    def _how(self) -> str:
        sides = {clause.side for clause in self._clauses}
        if "not_matched_by_source" in sides:
            return "full" if len(sides) > 1 else "right"
        return "left" if "not_matched" in sides else "inner"


class TableChange:
    """An update or a deletion of the rows of a table for which a condition is true."""

    def __init__(
        self, store: Database | str, table: str, where: str | None, sets: dict[str, str] | None, spark: SparkSession
    ) -> None:
        self._store = store
        self._table = table
        self._where = where
        self._sets = sets
        self._spark = spark

    def attempt(self, writing: ChangeWriting, schema: TableSchema) -> Read:
        """Read, decide and write once."""
        texts = [text for text in (self._where, *(self._sets or {}).values()) if text is not None]
        with unwrapping(), Holding() as holding:
            rows, as_of = _held(self._store, self._table, columns_named(texts, schema), schema, self._spark, holding)
            try:
                found = rows if self._where is None else rows.where(F.expr(self._where))
                keys = [F.col(_quoted(name)).alias(f"_k{at}") for at, name in enumerate(schema.key_names)]
                sets = [F.expr(text).alias(name) for name, text in (self._sets or {}).items()]
                changed = found.select(
                    *keys, F.lit(0).alias(CLAUSE), *([F.struct(*sets).alias(values_name(0))] if sets else [])
                )
            except PySparkException as error:
                raise RequestError(f"Spark cannot work that out: {said_by_spark(error)}") from error
            return Read(as_of, _run(changed, _Task(writing, ("delete" if self._sets is None else "update",))))


def _held(
    store: Database | str,
    table: str,
    columns: Sequence[str],
    schema: TableSchema,
    spark: SparkSession,
    holding: Holding,
) -> tuple[DataFrame, int]:
    """Return a table with some columns as a DataFrame, and the txn it is of; it is held by `holding`."""
    # Of all columns, or of none: a row is there if any group has it.
    planned = plan_scan(
        store,
        table,
        columns=columns if len(schema.groups) == 1 or not columns else None,
        cores=spark.sparkContext.defaultParallelism,
        holding=holding,
    )
    if planned.target.schema_version != schema.version:
        raise SchemaChanged(f"the schema of {table!r} was changed at this moment")
    return frame_of(planned, spark), planned.target.as_of


def _source_key(source: DataFrame, name: str, wanted: object) -> Column:
    """Return a key column of the source, which fails the job where it is null."""
    given = source.schema[name].dataType
    if given != wanted:
        raise InvalidKey(
            f"key column {name!r} is {given.simpleString()} in the source and {wanted.simpleString()} in the table: "  # type: ignore[attr-defined]
            "cast it"
        )
    column = F.col(_quoted(name))
    said = f"ebla.errors.InvalidKey: key column {name!r} is null in the source: a key has none"
    return F.when(column.isNotNull(), column).otherwise(F.raise_error(F.lit(said)).cast(given))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _run(changed: DataFrame, task: _Task) -> Written:
    try:
        found = changed.mapInArrow(task.attempt, RESULT_SCHEMA).collect()
    except PySparkException as error:
        if unwrapped(error) is not None:
            raise
        raise RequestError(f"Spark could not compute the changes: {said_by_spark(error)}") from error
    return joined(msgspec.msgpack.decode(bytes(row["result"]), type=Written) for row in found)


class _Task:
    """What a task does with the rows that change: a plain value, sent to wherever it runs."""

    def __init__(self, writing: ChangeWriting, kinds: Sequence[str]) -> None:
        self._writing = writing
        self._kinds = tuple(kinds)

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as one attempt of the task that Spark says it is."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        schema = unpack_schema(self._writing.schema)
        with plain_errors():
            written = self._writing.run(partition, (self._unit(batch, schema) for batch in batches))
        yield pa.record_batch({"result": pa.array([msgspec.msgpack.encode(written)], pa.binary())})

    def _unit(self, batch: pa.RecordBatch, schema: TableSchema) -> list[Changes]:
        rows = pa.Table.from_batches([batch])
        keys = pa.table(
            {
                column.name: array_from_spark(batch.column(f"_k{at}"), column.type, f"key column {column.name!r}")
                for at, column in enumerate(schema.key)
            }
        )
        keys = keys.append_column(ROW, encoded_keys(keys, schema, KeyCodec(schema.key, Settings().key_bytes_max)))
        unit = []
        for number, kind in enumerate(self._kinds):
            here = pc.equal(rows.column(CLAUSE), number)
            own = keys.filter(here)
            if values_name(number) in rows.column_names:
                sets = rows.column(values_name(number)).filter(here).combine_chunks()
                own = with_values(own, sets, schema)
            if own.num_rows:
                unit.append(Changes(kind, own))  # type: ignore[arg-type]
        return unit
