"""Whether Spark can still use a plan: objects in its JVM that every plan derived from it shares.

    LogicalRelation(relation) -- optimised, planned, cached, in a view -->  the same relation object

Plans are copied whenever they are transformed; what they read from is not. So a plan is out of use when what it reads
from was collected, and that is told by weak references, which are asked now and then. A plan that reads from nothing,
because all of its rows are in it, needs nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

__all__ = ["Anchored", "KeptPlans"]


@dataclass(frozen=True, slots=True)
class Anchored:
    """What holds the snapshot and the files of a plan, and weak references that tell whether Spark can use it."""

    holder: Any
    references: tuple[Any, ...]

    @classmethod
    def of(cls, jvm: Any, frame: Any) -> Anchored:
        """Return what holds a frame's plan: its session (`direct.holding`); nothing that keeps it in use."""
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        read = [leaves.apply(at) for at in range(leaves.size())]
        return cls(
            frame.sparkSession,
            tuple(
                jvm.java.lang.ref.WeakReference(leaf.relation())
                for leaf in read
                if leaf.getClass().getSimpleName() == "LogicalRelation"
            ),
        )

    @property
    def is_used(self) -> bool:
        """Whether something of the plan is still there."""
        return any(reference.get() is not None for reference in self.references)


class KeptPlans:
    """Plans whose snapshots and files are held until Spark cannot use them any more. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Anchored] = []  # guarded by _lock

    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    def keep(self, plan: Anchored) -> None:
        """Hold what a plan needs, from now on."""
        with self._lock:
            self._kept.append(plan)

    def sweep(self) -> None:
        """Let go of plans that Spark cannot use any more."""
        with self._lock:
            kept = list(self._kept)
        gone = {id(plan) for plan in kept if not plan.is_used}
        if gone:
            with self._lock:
                self._kept = [plan for plan in self._kept if id(plan) not in gone]

    def release(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept = []
