"""MERGE, UPDATE and DELETE as functions: rows of a table changed in one commit, over all its tablets, or not at all.

    merge(db, "orders", changes, on="id")                                 update what is there, insert what is not
    merge(db, "orders", changes, when_matched=[("source.gone", "delete"), (None, "update")])
    update(db, "orders", "state = 'new' and day < '2026-01-01'", {"state": "'late'"})
    delete(db, "orders", "day < '2020-01-01'")

**Isolation.** A job reads the table at one txn, and its commit is refused if somebody has changed a row that it changes
since then: no update of others is lost. It then begins anew, a few times. Rows that it read and leaves alone may have
changed meanwhile.

A source in memory (Arrow, pandas, Polars), or a DataFrame that Spark thinks is small, is looked up by key in this
process (`small_merge`); a large one is joined by Spark (`large_merge`). Expressions are Spark's SQL; a merge without
any needs no Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ebla.client.database import Database
from ebla.direct.place import Place
from ebla.errors import RequestError, UnknownTable, shown
from ebla.model.declaration import check_table_name
from ebla.model.schema import TableSchema
from ebla.pipeline.merging.change_commit import Attempt, ChangeSummary, Read, change_table
from ebla.pipeline.merging.change_rows import Changes, ChangeWriting
from ebla.pipeline.merging.clauses import (
    Clause,
    When,
    check_columns,
    check_on,
    check_source,
    clauses_of,
    needs_sql,
    values_of,
)
from ebla.pipeline.merging.small_merge import SmallMerge
from ebla.pipeline.merging.target_rows import reading_target
from ebla.pipeline.spark.engine import SparkChoice, session_for
from ebla.service.job_files import check_job
from ebla.settings import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["delete", "merge", "update"]

# A DataFrame that Spark estimates to be smaller is collected, and looked up in this process.
COLLECTED_BYTES_MAX = 64 * MIB

Store = Database | str | os.PathLike[str]


def merge(
    store: Store,
    table: str,
    source: Any,
    *,
    on: str | Sequence[str] | None = None,
    when_matched: When = "update",
    when_not_matched: When = "insert",
    when_not_matched_by_source: When = None,
    job: str | None = None,
    spark: SparkChoice = None,
) -> ChangeSummary:
    """Change a table by the rows of a source, in one commit: update, insert and delete what matches, or does not.

    `source` is a DataFrame of Spark's, or what gives Arrow: a table, a frame of pandas or polars. Rows match where
    their keys are equal, and `on` says nothing but the key. Each of the three arguments is an action (``"update"``,
    ``"insert"``, ``"delete"``), a dict of column to SQL expression over ``source.x`` and ``target.x``, a list of
    (condition, action) of which the first that is true acts, or None: such rows stay as they are.

    `InvalidBatch` names a key that several rows of the source would change, `InvalidKey` a key that is null. `Conflict`
    if others changed the same rows time and again. A `job` id makes it safe to repeat: it is applied once.
    """
    clauses = [
        *clauses_of("matched", when_matched),
        *clauses_of("not_matched", when_not_matched),
        *clauses_of("not_matched_by_source", when_not_matched_by_source),
    ]
    if not clauses:
        raise RequestError("a merge that does nothing: say what happens when_matched, or when_not_matched")
    place, known = _known(store, table)
    if on is not None:
        check_on(on, table, known)
    rows = _source_of(source, spark, clauses)
    columns = rows.columns if hasattr(rows, "_jdf") else rows.column_names
    check_source(columns, known)
    check_columns(clauses, known, columns)
    reader = _reader_of(store)
    if hasattr(rows, "_jdf"):
        from ebla.pipeline.merging.large_merge import LargeMerge

        return _carried_out(place, table, LargeMerge(reader, table, rows, clauses).attempt, job)
    small = SmallMerge(reader, table, rows, clauses, lambda: _session(spark, source))
    return _carried_out(place, table, small.attempt, job)


def update(
    store: Store,
    table: str,
    where: str | None,
    set: Mapping[str, str],
    *,
    job: str | None = None,
    spark: SparkChoice = None,
) -> ChangeSummary:
    """Set columns of all rows for which a condition is true, in one commit. None is true for every row.

    `where` and the values of `set` are expressions of Spark's SQL over the columns of the table: ``{"n": "n + 1"}``; a
    text is quoted, as in ``{"state": "'late'"}``.
    """
    place, known = _known(store, table)
    _check_where(where)
    (clause,) = clauses_of("matched", set) if isinstance(set, Mapping) and set else _refused_set(set)
    sets = values_of(clause, known, ())
    from ebla.pipeline.merging.large_merge import TableChange

    change = TableChange(_reader_of(store), table, where, sets, _session(spark, None))
    return _carried_out(place, table, change.attempt, job)


def delete(
    store: Store, table: str, where: str | pc.Expression | None, *, job: str | None = None, spark: SparkChoice = None
) -> ChangeSummary:
    """Erase all rows for which a condition is true, in one commit. None is true for every row.

    `where` is an expression of Spark's SQL over the columns of the table. With ``spark=False``, or as a pyarrow
    expression, it is a filter as ``table.scan`` takes it, and this process does the work.
    """
    place, _ = _known(store, table)
    if isinstance(where, pc.Expression) or spark is False:
        if isinstance(where, pc.Expression) and spark:
            raise RequestError(
                "a pyarrow expression is worked out by this process: give SQL as text, or leave spark out"
            )
        return _carried_out(place, table, _deletion(_reader_of(store), table, where), job)
    _check_where(where)
    from ebla.pipeline.merging.large_merge import TableChange

    change = TableChange(_reader_of(store), table, where, None, _session(spark, None))
    return _carried_out(place, table, change.attempt, job)


def _deletion(store: Database | str, table: str, where: str | pc.Expression | None) -> Attempt:
    def attempt(writing: ChangeWriting, schema: TableSchema) -> Read:
        with reading_target(store, table, schema) as target:
            found = (
                [Changes("delete", rows.append_column("_row", target.encoded(rows)))] for rows in target.scan(where)
            )
            return Read(target.as_of, writing.run(0, found))

    return attempt


# --- arguments -----------------------------------------------------------------------------------


def _known(store: Store, table: str) -> tuple[Place, TableSchema]:
    check_table_name(table)
    place = Place.of(store)
    metadata = place.metadata(table)
    if metadata is None:
        raise UnknownTable(f"there is no table {table!r} in {place.root}: make it with create_table, or load the rows")
    return place, metadata.schema


def _reader_of(store: Store) -> Database | str:
    return store if isinstance(store, Database) else os.fspath(store)


def _carried_out(place: Place, table: str, attempt: Attempt, job: str | None) -> ChangeSummary:
    return change_table(place, table, attempt, None if job is None else check_job(job))


def _check_where(where: object) -> None:
    if where is not None and not (isinstance(where, str) and where.strip()):
        raise RequestError(
            f'where is a condition in SQL, such as "age > 30", or None for every row, not {shown(where)}'
        )


def _refused_set(given: object) -> list[Clause]:
    raise RequestError(f"set is a dict of column to SQL expression, such as {{'n': 'n + 1'}}, not {shown(given)}")


def _session(spark: SparkChoice, source: Any) -> SparkSession:
    if hasattr(source, "_jdf"):
        session: SparkSession = source.sparkSession
        return session
    if spark is False:
        raise RequestError("expressions are worked out by Spark: leave spark=False out, or use actions alone")
    return session_for(True if spark is None else spark, "a merge with expressions")


def _source_of(source: Any, spark: SparkChoice, clauses: Sequence[Clause]) -> Any:
    """Return the source as an Arrow table, or as the DataFrame that it is if that is large, or must be joined."""
    by_source = [clause for clause in clauses if clause.side == "not_matched_by_source"]
    is_joined = needs_sql(by_source)  # conditions on rows that the source does not have
    if hasattr(source, "_jdf"):
        if spark is False:
            raise RequestError("a DataFrame of Spark's is merged with Spark: leave spark=False out")
        if is_joined or _estimated_bytes(source) > COLLECTED_BYTES_MAX:
            return source
        return source.toArrow()
    if not any(hasattr(source, name) for name in ("__arrow_c_stream__", "__arrow_c_array__")):
        raise RequestError(
            "a merge takes a DataFrame of Spark's, an Arrow table, or a frame of pandas or polars, "
            f"not {type(source).__name__}"
        )
    try:
        rows = pa.Table.from_batches([source]) if isinstance(source, pa.RecordBatch) else pa.table(source)
    except (pa.ArrowException, TypeError) as error:
        raise RequestError(f"the source cannot be read as Arrow: {error}") from error
    rows = rows.replace_schema_metadata(None)
    return _session(spark, None).createDataFrame(rows) if is_joined else rows


def _estimated_bytes(frame: Any) -> int:
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
