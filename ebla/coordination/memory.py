"""The coordination service in memory: the twin that tests use, and that fails when it is told to.

    MemoryStore            what survives: nodes and their versions
      ^     ^     ^
      |     |     `-- MemoryCoordination      one client each; `crash` ends one, the store goes on
      |     `-- MemoryCoordination
      `-- requests under way                  delayed ones land when the test says so

A `faults` function sees every request before it is carried out, and answers what is to become of it: nothing special
(None), or one of `Fault`. It may also raise whatever it likes, which is a client that died on the way.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Sequence
from enum import Enum

from ebla.clock import Clock
from ebla.coordination.lease import NodeLease, take_lease
from ebla.coordination.service import (
    Check,
    CompareAndSet,
    CoordinationConflict,
    CoordinationService,
    Create,
    Delete,
    Node,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    Operation,
    VersionConflict,
    Watch,
    check_operations,
    check_path,
)
from ebla.coordination.watches import WatchList
from ebla.errors import Closed, OutcomeUnknown, ReadOnly, Unavailable

__all__ = ["Fault", "Faults", "MemoryCoordination", "MemoryStore"]


class Fault(Enum):
    """What may become of a request."""

    FAIL_BEFORE = "refused at once, and the client knows it"
    LOSE_REQUEST = "never arrives, and the client does not know it"
    LOSE_REPLY = "carried out, and the client does not know it"
    DELAY = "carried out when the test calls `MemoryStore.deliver`, and the client does not know it"


# (operation name, the paths it touches) -> what is to become of it.
Faults = Callable[[str, tuple[str, ...]], Fault | None]


class MemoryStore:
    """The nodes that several clients share, and the requests that are still on their way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}  # guarded by _lock; replaced as a whole, so that reading needs no lock
        self._delayed: list[tuple[Operation, ...]] = []  # guarded by _lock
        self.watches = WatchList()

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by path, at one moment."""
        return self._nodes

    def copy(self) -> MemoryStore:
        """Return another store with the same nodes and nothing under way."""
        other = MemoryStore()
        other._nodes = self._nodes
        return other

    def apply(self, operations: Sequence[Operation]) -> list[int | None]:
        """Carry out all of the operations or none, and tell the watches."""
        with self._lock:
            nodes = dict(self._nodes)
            results = [_apply(nodes, operation) for operation in operations]
            self._nodes = nodes
        self.watches.fire([operation.path for operation in operations if not isinstance(operation, Check)])
        return results

    def delay(self, operations: Sequence[Operation]) -> None:
        """Keep a request back until `deliver`."""
        with self._lock:
            self._delayed.append(tuple(operations))

    def deliver(self) -> int:
        """Let the delayed requests arrive, in order; return how many of them still fitted and were carried out."""
        with self._lock:
            delayed, self._delayed = self._delayed, []
        landed = 0
        for operations in delayed:
            try:
                self.apply(operations)
            except CoordinationConflict:
                continue  # nobody is listening any more
            landed += 1
        return landed


def _apply(nodes: dict[str, Node], operation: Operation) -> int | None:
    path = operation.path
    there = nodes.get(path)
    if isinstance(operation, Create):
        if there is not None:
            raise NodeExists(path, "there is a node already")
        nodes[path] = Node(operation.value, 1)
        return 1
    if there is None:
        raise NodeMissing(path, "there is no node")
    if there.version != operation.expected_version:
        raise VersionConflict(path, f"expected version {operation.expected_version}, found {there.version}")
    match operation:
        case CompareAndSet():
            nodes[path] = Node(operation.value, there.version + 1)
            return there.version + 1
        case Delete():
            if any(other.startswith(f"{path}/") for other in nodes):
                raise NodeNotEmpty(path, "there are nodes below it")
            del nodes[path]
        case Check():
            pass
    return None


class MemoryCoordination(CoordinationService):
    """One client of a `MemoryStore`."""

    def __init__(
        self, store: MemoryStore, clock: Clock, *, faults: Faults | None = None, read_only: bool = False
    ) -> None:
        self.faults = faults
        self._store = store
        self._clock = clock
        self._read_only = read_only
        self._closed = False
        self._watches: list[Watch] = []

    def read(self, path: str) -> Node | None:
        """Return the node at `path` as it is now, or None."""
        check_path(path)
        self._arrive("read", (path,))
        return self._store.nodes.get(path)

    def multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        """Do all of the operations or none."""
        check_operations(operations)
        if self._read_only:
            raise ReadOnly("the coordination service was opened for reading")
        name = "multi" if len(operations) > 1 else type(operations[0]).__name__
        fault = self._arrive(name, tuple(operation.path for operation in operations))
        if fault is Fault.DELAY:
            self._store.delay(operations)
        if fault in (Fault.DELAY, Fault.LOSE_REQUEST):
            raise OutcomeUnknown("the connection was lost before the reply came")
        results = self._store.apply(operations)
        if fault is Fault.LOSE_REPLY:
            raise OutcomeUnknown("the connection was lost before the reply came")
        return results

    def list(self, path: str) -> builtins.list[str]:
        """Return the paths of the nodes directly below `path`, sorted."""
        if path:
            check_path(path)
        self._arrive("list", (path,))
        return sorted(node for node in self._store.nodes if node.rpartition("/")[0] == path)

    def watch(self, path: str, callback: Callable[[str], None]) -> Watch:
        """Call back from the thread that makes the change, before its call returns."""
        if path:
            check_path(path)
        self._arrive("watch", (path,))
        watch = self._store.watches.add(path, callback)
        self._watches.append(watch)
        return watch

    def lease(self, path: str, owner: str, ttl_seconds: float) -> NodeLease:
        """Take the lease at `path`; `LeaseHeld` at once if another owner holds it."""
        return take_lease(self, self._clock, path, owner, ttl_seconds)

    def close(self) -> None:
        """End this client; its leases run out. `crash` is the same: nothing is tidied up in either case."""
        self._closed = True
        for watch in self._watches:
            watch.cancel()

    crash = close

    def _arrive(self, name: str, paths: tuple[str, ...]) -> Fault | None:
        if self._closed:
            raise Closed("this client of the coordination service was closed")
        fault = self.faults(name, paths) if self.faults is not None else None
        if self._closed:
            raise Closed("this client of the coordination service was closed")
        if fault is Fault.FAIL_BEFORE or (fault is not None and name in ("read", "list", "watch")):
            raise Unavailable(f"{name} {', '.join(paths)}: the coordination service cannot be reached: try again")
        return fault
