"""The coordination service: the one place where processes agree on which of two changes came first.

It is a tree of small values, each with a version that grows with every change of it:

    tables/7f3a     {"name": "users", "metadata_txnid": "c01d", ...}      version 17
    names/users     7f3a                                                  version 1
    master          lease of the leading master                           version 230

    CoordinationService
    |-- SqliteCoordination     a file in the root directory: one host, several processes
    |-- ZooKeeperCoordination  a cluster
    `-- MemoryCoordination     the twin for tests, which loses replies and crashes when told to

What every implementation keeps, and one contract suite checks on all:
- `multi` happens as a whole or not at all; single operations are multis of one.
- A write either raises a definite error (nothing happened), returns (it happened and is durable), or raises
  `OutcomeUnknown`. After an unknown outcome the change may even land *later*, but never once the version that it
  expects is gone: repeating the very same compare-and-set is always safe, and settles the matter.
- A watch never misses a change; it may be late, may fire once for several changes, and may fire for none.
- A node need not have a parent node; a node that has others below it cannot be deleted.
- A node that is deleted and made again may count its versions from the start again: paths whose versions are
  compared across such a gap need an id in them that is never reused.
"""

from __future__ import annotations

import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from ebla.errors import Conflict, RequestError, StoreError, Unavailable

__all__ = [
    "VALUE_BYTES_MAX",
    "Check",
    "CompareAndSet",
    "CoordinationConflict",
    "CoordinationFailed",
    "CoordinationService",
    "Create",
    "Delete",
    "InvalidNode",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "Node",
    "NodeExists",
    "NodeMissing",
    "NodeNotEmpty",
    "Operation",
    "VersionConflict",
    "Watch",
    "check_path",
    "check_value",
]

# What fits into a ZooKeeper node with room to spare: what works with one implementation works with all.
VALUE_BYTES_MAX = 512 * 1024

_SPECIAL = re.compile("[\ufff0-\uffff]")  # ZooKeeper has no such names


# --- errors --------------------------------------------------------------------------------------


class InvalidNode(RequestError):
    """A path or value that no node can have."""


class CoordinationConflict(Conflict):
    """The node at `path` is not as the operation expects. Nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")

    def __reduce__(self) -> tuple[type[CoordinationConflict], tuple[str, str]]:
        return type(self), (self.path, self.reason)


class NodeExists(CoordinationConflict):
    """There is a node at that path already."""


class NodeMissing(CoordinationConflict):
    """There is no node at that path."""


class VersionConflict(CoordinationConflict):
    """The node has changed since it was read."""


class NodeNotEmpty(CoordinationConflict):
    """The node has others below it and cannot be deleted."""


class LeaseLost(CoordinationConflict):
    """The lease expired or somebody else holds it: stop whatever it was held for."""


class LeaseHeld(Unavailable):
    """Somebody else holds the lease; it can be had when they release it or it expires."""

    def __init__(self, path: str, owner: str) -> None:
        self.path = path
        self.owner = owner
        super().__init__(f"{path}: the lease is held by {owner}: wait until it is released or expires")

    def __reduce__(self) -> tuple[type[LeaseHeld], tuple[str, str]]:
        return type(self), (self.path, self.owner)


class CoordinationFailed(StoreError):
    """The coordination service cannot be used: no space, an I/O error. The message says which and what to do."""


# --- values --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the version to name when changing it."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; `NodeExists` if it is there."""

    path: str
    value: bytes


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Give a node a new value; `NodeMissing` or `VersionConflict` unless it has the expected version."""

    path: str
    value: bytes
    expected_version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node; `NodeMissing`, `VersionConflict`, or `NodeNotEmpty` while others are below it."""

    path: str
    expected_version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but let the whole multi fail unless the node has the expected version."""

    path: str
    expected_version: int


Operation: TypeAlias = Create | CompareAndSet | Delete | Check


def check_path(path: str) -> str:
    """Return `path` if it can name a node, such as ``tables/7f3a``; raise `InvalidNode` if not."""
    if (
        not isinstance(path, str)
        or any(segment in ("", ".", "..") for segment in path.split("/"))
        or not path.isprintable()
        or (not path.isascii() and _SPECIAL.search(path))
    ):
        raise InvalidNode(f"{path!r} cannot name a node: use names joined by '/', none of them empty, '.' or '..'")
    return path


def check_value(path: str, value: bytes) -> bytes:
    """Return `value` if a node can hold it; raise `InvalidNode` if not."""
    if not isinstance(value, bytes):
        raise InvalidNode(f"{path}: a node holds bytes, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidNode(f"{path}: {len(value)} bytes are too many for a node, {VALUE_BYTES_MAX} are allowed")
    return value


def check_operations(operations: Sequence[Operation]) -> int:
    """Return how many bytes of values operations have; raise `InvalidNode` if no service can carry them out."""
    if not operations:
        raise InvalidNode("a multi needs at least one operation")
    value_bytes = 0
    for operation in operations:
        check_path(operation.path)
        if isinstance(operation, (Create, CompareAndSet)):
            value_bytes += len(check_value(operation.path, operation.value))
    return value_bytes


# --- the interface -------------------------------------------------------------------------------


class Watch(Protocol):
    """A registered watch."""

    def cancel(self) -> None:
        """Stop: no call of the callback begins after this returns. One already under way may still finish."""


class Lease(Protocol):
    """A lease while it is, or was, held. The same object may be used from several threads."""

    @property
    def path(self) -> str:
        """Where the lease is."""

    @property
    def epoch(self) -> int:
        """A number greater than that of every earlier holder; whoever is written to refuses smaller ones."""

    @property
    def is_held(self) -> bool:
        """Whether the lease has not run out, by this process's own steady clock. Once False, False for ever."""

    @property
    def left_seconds(self) -> float:
        """How long it is still held, by the steady clock; 0 once it is lost."""

    def renew(self) -> None:
        """Hold it for another ttl from now. `LeaseLost` if it ran out or was taken over."""

    def release(self) -> None:
        """Give it up, so that the next one need not wait. Never raises if it was lost already."""


class CoordinationService(ABC):
    """One client's connection to the service. Safe to use from several threads."""

    @abstractmethod
    def read(self, path: str) -> Node | None:
        """Return the node at `path` as it is now, or None."""

    @abstractmethod
    def multi(self, operations: Sequence[Operation]) -> list[int | None]:
        """Do all of the operations, each on what the ones before it left, or none of them.

        Returns the new version for every `Create` and `CompareAndSet`, None for the others. Raises the error of the
        first operation that does not fit.
        """

    @abstractmethod
    def list(self, path: str) -> builtins.list[str]:
        """Return the paths of the nodes directly below `path` (``""`` for the top), sorted."""

    @abstractmethod
    def watch(self, path: str, callback: Callable[[str], None]) -> Watch:
        """Call ``callback(path)`` after any later change of the node at `path` or below it (``""``: of any node).

        Called without any lock held, possibly from another thread. It must return soon and read what it wants to know:
        it is told that something changed, not what. The running out of a lease need not be a change.
        """

    @abstractmethod
    def lease(self, path: str, owner: str, ttl_seconds: float) -> Lease:
        """Take the lease at `path` for `ttl_seconds`; `LeaseHeld` at once if another owner holds it.

        `owner` names one run of one process. An owner may take its own lease again, as after an unknown outcome; it
        then gets a new epoch and its former `Lease` is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything but the leases, which are released or run out. Closing twice is allowed."""

    def create(self, path: str, value: bytes) -> int:
        """Make a node and return its version; `NodeExists` if it is there already."""
        return _version(self.multi([Create(path, value)]))

    def compare_and_set(self, path: str, value: bytes, expected_version: int) -> int:
        """Give the node at `path` a new value if it still has the expected version; return the new version."""
        return _version(self.multi([CompareAndSet(path, value, expected_version)]))

    def put(self, path: str, value: bytes, known_version: int | None) -> int:
        """Make a node that was not there, or set one that had that version; return the new version."""
        return self.create(path, value) if known_version is None else self.compare_and_set(path, value, known_version)

    def delete(self, path: str, expected_version: int) -> None:
        """Remove the node at `path` if it still has the expected version."""
        self.multi([Delete(path, expected_version)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _version(results: list[int | None]) -> int:
    version = results[0]
    assert version is not None
    return version
