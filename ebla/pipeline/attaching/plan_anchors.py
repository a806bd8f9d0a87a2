"""Whether Spark can still use a plan: objects in its JVM that every plan derived from it shares.

    LogicalRelation(relation) -- optimised, planned, cached, in a view -->  the same relation object
    MapInArrow(function)      --------------------------------------->  the same function object

Plans are copied whenever they are transformed; what they read from is not. So a plan is out of use when what it reads
from was collected, and that is told by weak references, which are asked now and then.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PlanAnchors"]


class PlanAnchors:
    """Weak references to what a plan reads from. They belong to the JVM of one session."""

    def __init__(self, jvm: Any, plan: Any) -> None:
        self._references = [jvm.java.lang.ref.WeakReference(one) for one in _anchors_of(plan)]

    @property
    def is_used(self) -> bool:
        """Whether something of the plan is still there; one without anything to hold on to is taken for used."""
        return not self._references or any(reference.get() is not None for reference in self._references)


def _anchors_of(plan: Any) -> list[Any]:
    """Return the objects of a plan that copies of it share."""
    found: list[Any] = []
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        kind = node.getClass().getSimpleName()
        if kind == "LogicalRelation":
            found.append(node.relation())
        elif kind == "MapInArrow":
            found.append(node.functionExpr().func())
        children = node.children()
        waiting += [children.apply(at) for at in range(children.size())]
    return found
