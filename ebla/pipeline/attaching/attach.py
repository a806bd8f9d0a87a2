"""Attaching a store: its tables as views of a database in a Spark session, for SQL and `spark.table`.

    ebla.pipeline.attach(spark, db, database="shop")
    SELECT * FROM shop.orders                                         the newest rows, whoever wrote them last
    SELECT * FROM shop.ebla('orders', '2026-01-31T12:00:00')          as of a time, a txn, or the name of a snapshot

A view asks for the plan of its table when a query is analysed (`table_function`), and gets that of `db.spark`: Spark's
own Parquet reader with pruned columns and pushed filters where files are clean. All tables of a query are read at one
snapshot of the store. A DataFrame keeps the snapshot of the moment it was made, as every DataFrame does, and holds its
files as long as Spark can use it (`fresh_plans`).

Views belong to Spark's catalog, the function behind them to the session: another session attaches the store itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ebla.arguments import checked_path
from ebla.client.database import Database
from ebla.client.moments import AsOf
from ebla.direct.place import Place
from ebla.errors import RequestError, shown
from ebla.pipeline.attaching.fresh_plans import FreshPlans
from ebla.pipeline.attaching.table_function import register_function, unregister_function
from ebla.pipeline.datasource.datasource_options import moment
from ebla.pipeline.scanning.scan import scan

__all__ = ["Attachment", "attach"]

FUNCTION = "ebla"
_NAME = re.compile(r"[A-Za-z0-9_]+")


class Attachment:
    """A store that is attached to a session as a database. `tables` are those that have a view."""

    def __init__(self, spark: SparkSession, store: Database | str, database: str) -> None:
        self.database = database
        self.tables: tuple[str, ...] = ()
        self.left_out: tuple[str, ...] = ()  # names that Spark cannot have, reached by ebla('name') alone
        self._spark = spark
        self._store = store
        self._plans = FreshPlans(store, spark.sparkContext._jvm, self._scan)

    def __repr__(self) -> str:
        return f"Attachment({self.database!r}, {len(self.tables)} tables)"

    @property
    def held(self) -> int:
        """How many snapshots of tables are held for queries and frames."""
        self._plans.sweep()
        return self._plans.held

    def refresh(self) -> None:
        """Make views of tables that are new, and drop those of tables that are gone."""
        every = Place.of(self._store).tables()
        taken: dict[str, str] = {}
        for name in every:
            if _NAME.fullmatch(name):
                taken.setdefault(name.casefold(), name)  # Spark does not tell upper from lower case
        kept = tuple(sorted(taken.values()))
        for name in self.tables:
            if name not in kept:
                self._spark.sql(f"DROP VIEW IF EXISTS {self.database}.`{name}`")
        for name in kept:
            if name not in self.tables:
                self._spark.sql(
                    f"CREATE OR REPLACE VIEW {self.database}.`{name}` WITH SCHEMA EVOLUTION AS "
                    f"SELECT * FROM {self.database}.{FUNCTION}('{name}')"
                )
        self.tables = kept
        self.left_out = tuple(name for name in every if name not in kept)

    def detach(self) -> None:
        """Drop the views and let go of what is held; the store stays as it is."""
        for name in self.tables:
            self._spark.sql(f"DROP VIEW IF EXISTS {self.database}.`{name}`")
        unregister_function(self._spark, self.database, FUNCTION)
        self._plans.release()
        self.tables = ()

    def _scan(self, table: str, as_of: AsOf) -> DataFrame:
        return scan(self._store, table, as_of=as_of, spark=self._spark)

    def _answer(self, arguments: Sequence[Any], query: int) -> Any:
        if not 1 <= len(arguments) <= 2 or not isinstance(arguments[0], str):
            raise RequestError(f"write {self.database}.{FUNCTION}('table'), or {FUNCTION}('table', as_of)")
        table = arguments[0]
        return self._plans.plan_of(table, None if len(arguments) == 1 else _moment(arguments[1]), query)


def attach(spark: SparkSession, store: Database | str | os.PathLike[str], database: str = FUNCTION) -> Attachment:
    """Make the tables of a store views of a database in a Spark session, each query of which sees the newest rows.

    `store` is an open database, or the directory of a store that any process may have open. The database is made if it
    is not there. Tables that are made later get views by `refresh`, or by attaching again. Views are for reading: write
    with ``db.table``, `ebla.pipeline.load` and `merge`, or ``format("ebla")``.
    """
    if not isinstance(database, str) or not _NAME.fullmatch(database):
        raise RequestError(f"a database of Spark's is named by letters, digits and _, not {shown(database)}")
    if not hasattr(spark, "_jsparkSession"):
        raise RequestError("attach takes a SparkSession with its driver in this process, not one of Spark Connect")
    place = Place.of(store)
    made = Attachment(
        spark, store if isinstance(store, Database) else str(checked_path("the store", place.root)), database
    )
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    register_function(spark, database, FUNCTION, made._answer)
    made.refresh()
    return made


def _moment(given: Any) -> AsOf:
    """Return what a constant of SQL means: a txn, a time, or the name of a snapshot."""
    if isinstance(given, tuple):
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=given[1])
    return given if isinstance(given, int) else moment(given)
