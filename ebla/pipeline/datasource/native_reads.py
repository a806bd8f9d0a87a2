"""Reads through ``format("ebla")`` planned as `db.spark` plans them, in sessions whose driver is this process.

    spark.read.format("ebla").load("users").where("age > 30").select("name")
        Scan PythonScan, every column, every row         what Spark made of it, as of any source written in Python
        --- a rule of the optimiser, which asks here -->
        FileScan parquet, two columns, pushed filters    the plan of ebla.pipeline.scan at the snapshot of the load

Spark carries the source, pickled, in the plan; with it come the table, the txn and the range of the load. What is put
in its place shows the same rows, and filters and columns stay with the query that has them: nothing is shared between
the frames of one load. Where this cannot be done (another driver, columns of other types) the read stays what it was.

A table of Spark's catalog has no snapshot of its own: all that a query names of one store is read at one txn.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ebla.client.database import Database
from ebla.direct.freshness import newest_txn
from ebla.direct.holding import Holding
from ebla.errors import EblaError
from ebla.pipeline.datasource.datasource_options import ReadOptions
from ebla.pipeline.datasource.datasource_reader import Pinned, keys_of_load, renewed, store_of_load
from ebla.pipeline.scanning.scan import frame_of
from ebla.pipeline.scanning.sections import plan_scan
from ebla.pipeline.spark.java_classes import JavaFunction, new_java
from ebla.pipeline.spark.plan_anchors import Anchored, KeptPlans

__all__ = ["read_natively"]

QUERIES_MAX = 64
# So many plans are handed out again, if asked for within so long.
RECENT_MAX = 16
RECENT_SECONDS = 30.0
_RULE = "ebla.NativeReads"


class Source(Protocol):
    """A load as Spark carries it along."""

    def load(self, columns: StructType) -> ReadOptions | Pinned:
        """Return the snapshot of the load; what it asks for if that has no snapshot yet."""


def read_natively(spark: SparkSession) -> None:
    """Have a session plan reads through ``format("ebla")`` as it plans `db.spark`. Doing it twice is fine."""
    if not hasattr(spark, "_jsparkSession"):
        return  # Spark Connect: its driver is elsewhere
    experimental = spark._jsparkSession.experimental()
    known = experimental.extraOptimizations()
    if any(known.apply(at).getClass().getName() == _RULE for at in range(known.size())):
        return
    rule = new_java(spark, "NativeReads", "ebla", JavaFunction(_Planner(spark).plan))
    if rule is not None:
        getattr(experimental, "extraOptimizations_$eq")(known.appended(rule))


class _Planner:
    """Plans loads for the rule of a session. Threads may share it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        self._kept = KeptPlans()
        self._recent = _RecentPlans()
        self._lock = threading.Lock()
        self._queries: OrderedDict[int, tuple[Any, dict[object, int]]] = OrderedDict()  # guarded by _lock

    def plan(self, asked: Any) -> Any:
        """Return the plan of a load for a query, or None if it is to stay as Spark has it."""
        self._kept.sweep()
        source, columns = pickle.loads(bytes(asked[1])), StructType.fromJson(json.loads(asked[2]))
        try:
            load, options = self._dated(asked[0], source.load(columns))
            known = self._recent.get((options, tuple(columns.names)))
            if known is not None:
                return known
            frame = self._frame(load, options, columns)
        except EblaError:
            return None  # whoever reads it as it is says what is wrong
        if frame is None:
            return None
        self._kept.keep(Anchored.of(self._jvm, frame))
        made = frame._jdf.queryExecution().optimizedPlan()
        self._recent.put((options, tuple(columns.names)), made)
        return made

    def _dated(self, query: Any, load: ReadOptions | Pinned) -> tuple[ReadOptions | Pinned, ReadOptions]:
        """Return a load, and what it asks for at a txn."""
        if isinstance(load, Pinned):
            return load, replace(load.options, as_of=renewed(load.plan.target).as_of)
        if load.as_of is None:
            place = load.address.cluster or load.address.root
            return load, replace(load, as_of=self._txn_of(query, place, store_of_load(load)))
        return load, load

    def _frame(self, load: ReadOptions | Pinned, options: ReadOptions, columns: StructType) -> DataFrame | None:
        store = store_of_load(options)
        table_id = load.plan.target.table_id if isinstance(load, Pinned) else None
        start, stop, prefix = keys_of_load(store, options)
        holding = Holding()
        try:
            planned = plan_scan(
                store,
                options.address.table,
                columns=_asked(options, columns, load),
                start=start,
                stop=stop,
                prefix=prefix,
                as_of=options.as_of,
                cores=self._spark.sparkContext.defaultParallelism,
                merge_few=True,
                holding=holding,
            )
            frame = frame_of(planned, holding.given_to(self._spark))
            types = {field.name: field.dataType for field in frame.schema.fields}
            fits = all(types.get(field.name) == field.dataType and field.nullable for field in columns.fields)
            if not fits or table_id not in (None, planned.target.table_id):
                holding.release()
                return None
        except BaseException:
            holding.release()
            raise
        return frame.select(*(f"`{name.replace('`', '``')}`" for name in columns.names))

    def _txn_of(self, query: Any, store: object, opened: Database | str) -> int:
        """Return the txn at which a query reads a store: the newest, when it is first asked for."""
        if query is None:
            return newest_txn(opened)
        place = self._jvm.java.lang.System.identityHashCode(query)
        with self._lock:
            known = self._queries.get(place)
        if known is None or not known[0].refersTo(query):
            known = (self._jvm.java.lang.ref.WeakReference(query), {})
            with self._lock:
                self._queries[place] = known
                while len(self._queries) > QUERIES_MAX:
                    self._queries.popitem(last=False)
        if store not in known[1]:
            known[1][store] = newest_txn(opened)
        return known[1][store]


class _RecentPlans:
    """Plans of loads that were asked for a moment ago: queries come in rows. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[object, tuple[float, Any]] = OrderedDict()  # guarded by _lock

    def get(self, key: object) -> Any | None:
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                return None
            self._plans[key] = (time.monotonic(), found[1])
            self._plans.move_to_end(key)
            return found[1]

    def put(self, key: object, plan: Any) -> None:
        with self._lock:
            if not self._plans:
                self._forget_later()
            self._plans[key] = (time.monotonic(), plan)
            while len(self._plans) > RECENT_MAX:
                self._plans.popitem(last=False)

    def _forget_later(self) -> None:
        timer = threading.Timer(RECENT_SECONDS, self._forget)
        timer.daemon = True
        timer.start()

    def _forget(self) -> None:
        """Drop what was not asked for lately: a plan that is kept holds its snapshot."""
        with self._lock:
            since = time.monotonic() - RECENT_SECONDS
            self._plans = OrderedDict((key, one) for key, one in self._plans.items() if one[0] > since)
            if self._plans:
                self._forget_later()


def _asked(options: ReadOptions, columns: StructType, load: ReadOptions | Pinned) -> tuple[str, ...] | None:
    """Return the columns to read: those of the load, or of the schema that was given with it."""
    if not isinstance(load, Pinned) or columns.names == load.schema.names:
        return options.columns
    keys = load.plan.projection.schema.key_names
    return tuple(name for name in columns.names if name not in keys)
