"""How a multi becomes a ZooKeeper transaction. Pure: what the tree looks like goes in, ZooKeeper's operations come out.

ZooKeeper wants a parent for every node; our nodes need none. So there are two kinds of znodes, told apart by their
data version, which counts how often the data was set:

    version 0     a directory: made because something below it was, no node of ours
    version 1..   a node; making one is `create` and `set` in one transaction, so that it begins at 1

    Create a/b/c      ->  create /a   create /a/b   create /a/b/c   set /a/b/c if version 0
    Create a          ->  set /a if version 0
    Delete a          ->  delete /a/b if version 0   delete /a if version v          (nothing of ours being below a)

Without knowing the tree, a plan is a guess that fits in most cases; if ZooKeeper refuses it, the nodes that it touches
are looked at, and the next plan is made from that, or the error that the caller is to get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ebla.coordination.service import (
    Check,
    CompareAndSet,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    Operation,
    VersionConflict,
)

__all__ = ["NEVER", "Plan", "Step", "Tree", "ancestors", "guess", "plan"]

# A version that no znode has; -1 would mean "any" to ZooKeeper.
NEVER = -2

# The znodes that were looked at: their data version, or None if there is none.
Tree: TypeAlias = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a ZooKeeper transaction."""

    kind: Literal["create", "set", "delete", "check"]
    path: str
    version: int = NEVER
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a transaction, and the versions that the caller gets if it succeeds."""

    steps: tuple[Step, ...]
    results: tuple[int | None, ...]


def ancestors(path: str) -> list[str]:
    """Return the paths above `path`, the topmost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def guess(operations: Sequence[Operation]) -> Plan:
    """Return the plan for a tree in which all directories are there and every expectation holds."""
    steps: list[Step] = []
    for operation in operations:
        match operation:
            case Create(path, value):
                steps += [Step("create", path), Step("set", path, 0, value)]
            case CompareAndSet(path, value, expected):
                steps.append(Step("set", path, _version(expected), value))
            case Delete(path, expected):
                steps.append(Step("delete", path, _version(expected)))
            case Check(path, expected):
                steps.append(Step("check", path, _version(expected)))
    return Plan(tuple(steps), tuple(map(_result, operations)))


def plan(operations: Sequence[Operation], tree: Tree) -> Plan:
    """Return the plan for `tree`, or raise the error of the first operation that does not fit.

    `tree` has every path of the operations, everything above those that are created and below those that are deleted.
    """
    now = dict(tree)
    steps: list[Step] = []
    for operation in operations:
        path = operation.path
        version = now.get(path)
        if isinstance(operation, Create):
            if version:
                raise NodeExists(path, "there is a node already")
            for above in ancestors(path):
                if now.get(above) is None:
                    steps.append(Step("create", above))
                    now[above] = 0
            if version is None:
                steps.append(Step("create", path))
            steps.append(Step("set", path, 0, operation.value))
            now[path] = 1
            continue
        if not version:
            raise NodeMissing(path, "there is no node")
        if version != operation.expected_version:
            raise VersionConflict(path, f"expected version {operation.expected_version}, found {version}")
        match operation:
            case CompareAndSet():
                steps.append(Step("set", path, version, operation.value))
                now[path] = version + 1
            case Delete():
                below = _below(path, now)
                if any(now[other] for other in below):
                    raise NodeNotEmpty(path, "there are nodes below it")
                steps += [Step("delete", directory, 0) for directory in below]
                steps.append(Step("delete", path, version))
                now.update(dict.fromkeys([path, *below]))
            case Check():
                steps.append(Step("check", path, version))
    return Plan(tuple(steps), tuple(map(_result, operations)))


def _below(path: str, tree: Tree) -> list[str]:
    """Return the znodes below `path` that are there, the deepest first."""
    found: Iterable[str] = (other for other, version in tree.items() if version is not None)
    return sorted((other for other in found if other.startswith(f"{path}/")), key=lambda other: -other.count("/"))


def _version(expected: int) -> int:
    return expected if expected >= 1 else NEVER


def _result(operation: Operation) -> int | None:
    match operation:
        case Create():
            return 1
        case CompareAndSet():
            return operation.expected_version + 1
    return None
