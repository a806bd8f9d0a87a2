"""The plans of a store's tables for queries: the newest there is, one snapshot for all tables of a query.

    query 1    orders, lineitem, orders    planned at T1: the first of them says at which txn
    query 2    orders                      nobody has written since: the plan of query 1 again
    query 3    orders                      put meanwhile: planned anew, at T3

A plan that was replaced is kept, with its snapshot and files, until Spark cannot use it any more (`plan_anchors`): a
DataFrame of query 1, or a temporary view of it, goes on as it began.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from ebla.client.database import Database
from ebla.client.moments import AsOf
from ebla.direct.freshness import Seen, newest_txn, seen_at
from ebla.pipeline.spark.plan_anchors import Anchored, KeptPlans

__all__ = ["FreshPlans"]

QUERIES_MAX = 64


@dataclass(frozen=True, slots=True)
class _Plan:
    analyzed: Any
    held: Anchored
    seen: Seen | None


class FreshPlans:
    """Plans of the tables of one store, for one session. Threads may share it.

    `scan` makes a DataFrame of a table, as of a txn, a time or a name.
    """

    def __init__(self, store: Database | str, jvm: Any, scan: Callable[[str, AsOf], Any]) -> None:
        # Set once.
        self._store = store
        self._jvm = jvm
        self._scan = scan
        self._replaced = KeptPlans()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._newest: dict[str, _Plan] = {}
        self._queries: OrderedDict[Hashable, int] = OrderedDict()

    @property
    def held(self) -> int:
        """How many plans are held, those included that were replaced and are still in use."""
        with self._lock:
            return len(self._newest) + len(self._replaced)

    def plan_of(self, table: str, as_of: AsOf | None, query: Hashable) -> Any:
        """Return Spark's plan of a table for a query, at the snapshot of that query, or as of what it says."""
        self.sweep()
        if as_of is not None:
            return self._kept(self._made(table, as_of, None))
        txn = self._txn_of(query)
        seen = seen_at(self._store, table, txn)
        with self._lock:
            known = self._newest.get(table)
        if known is not None and seen is not None and known.seen == seen:
            return known.analyzed
        made = self._made(table, txn, seen)
        if seen is None:
            return self._kept(made)
        with self._lock:
            former = self._newest.get(table)
            self._newest[table] = made
        if former is not None:
            self._replaced.keep(former.held)
        return made.analyzed

    def sweep(self) -> None:
        """Let go of plans that were replaced and that Spark cannot use any more."""
        self._replaced.sweep()

    def release(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._newest = {}
        self._replaced.release()

    def _kept(self, plan: _Plan) -> Any:
        self._replaced.keep(plan.held)
        return plan.analyzed

    def _made(self, table: str, as_of: AsOf, seen: Seen | None) -> _Plan:
        frame = self._scan(table, as_of)
        analyzed = frame._jdf.queryExecution().analyzed()
        return _Plan(analyzed, Anchored.of(self._jvm, frame), seen)

    def _txn_of(self, query: Hashable) -> int:
        """Return the txn at which a query reads, the same for all its tables: the newest when it was asked first."""
        with self._lock:
            txn = self._queries.get(query)
        if txn is None:
            txn = newest_txn(self._store)
            with self._lock:
                txn = self._queries.setdefault(query, txn)
                while len(self._queries) > QUERIES_MAX:
                    self._queries.popitem(last=False)
        return txn
