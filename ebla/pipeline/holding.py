"""What a DataFrame keeps for itself: its snapshot from compaction, its files from garbage collection.

    db.spark("users") --> frame --> its session --> Holding: a pin at the txn, and the files that Spark reads by name
                            |
                            `--> frame.where(...), .select(...), .groupBy(...)     hold on to the same session

Every DataFrame that is derived from another takes over its session object. So the frame gets one of its own, which is
Spark's in all but identity, and when the last of these DataFrames is gone, so is what was held. What other processes
scan by the root of a store is kept for as long as history and the age of garbage say, and no longer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from pyspark.sql import SparkSession

from ebla.tablet.store import TabletStore

__all__ = ["Holding"]


class Holding:
    """Holds a txn and files of a store until it is released, or whoever it was given to is gone."""

    def __init__(self) -> None:
        self._let_go: list[Callable[[], None]] = []

    def hold(self, store: TabletStore, txn: int) -> None:
        """Hold a txn. It is held before anybody asks whether history still reaches back to it."""
        store.pins.hold(txn)
        self._let_go.append(lambda: store.pins.let_go(txn))

    def hold_files(self, store: TabletStore, files: Iterable[str]) -> None:
        """Hold fragments."""
        self._let_go.append(store.hold_files(files))

    def release(self) -> None:
        """Let go of everything. Doing it twice is fine."""
        while self._let_go:
            self._let_go.pop()()

    def given_to(self, spark: SparkSession) -> SparkSession:
        """Return a session like this one for DataFrames: with the last of them, what is held is let go."""
        own: SparkSession = object.__new__(type(spark))
        own.__dict__.update(spark.__dict__)
        weakref.finalize(own, self.release).atexit = False
        return own
