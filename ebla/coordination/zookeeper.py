"""The coordination service on ZooKeeper, for a cluster; `pip install 'ebla[zookeeper]'` brings kazoo, its client.

    zk://one:2181,two:2181,three:2181/ebla      servers, and the znode below which everything is

`zookeeper_plan` says how nodes become znodes, `tree_watch` how one-time watches become lasting ones.

- **Reads** ask the server that we are connected to, after a `sync` sent ahead of them: it has then heard of everything
  that was committed before. They are repeated over a lost connection, until `request_seconds` have passed.
- **Writes** are sent once. If the connection is lost before the reply comes the outcome is unknown; the request may
  even be carried out later. If there is no connection in the first place, nothing is sent.
- **Sessions** carry nothing but watches. When one is lost, or the connection is, everything is armed again and every
  watch is called.
- **Leases** are nodes. What is long enough is judged by the clock of the ZooKeeper leader, which stamps every write:
  one clock for all takers, however wrong theirs are.

This is the one module that imports kazoo.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.exceptions import NodeExistsError as ZnodeExists
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from ebla.clock import Clock
from ebla.coordination.lease import NodeLease, take_lease
from ebla.coordination.service import (
    CoordinationFailed,
    CoordinationService,
    Create,
    Delete,
    InvalidNode,
    Node,
    Operation,
    Watch,
    check_operations,
    check_path,
)
from ebla.coordination.tree_watch import TreeWatcher
from ebla.coordination.zookeeper_plan import Plan, Step, ancestors, guess, plan
from ebla.errors import Closed, OutcomeUnknown, ReadOnly, Unavailable
from ebla.retry import CROWDS

__all__ = ["ZooKeeperCoordination"]

# A request of a mebibyte is refused by the server, which then closes the connection (jute.maxbuffer).
_MULTI_BYTES_MAX = 1_000_000
_STEP_BYTES = 200
_WATCHES_AT_ONCE = 1_000

# The reply was lost, or there will be none. Whether the request was carried out is another matter.
_LOST = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    KazooTimeoutError,
)
# The tree was not as the plan took it to be.
_REFUSED = (BadVersionError, NoNodeError, NotEmptyError, ZnodeExists)


class ZooKeeperCoordination(CoordinationService):
    """One client's session with a ZooKeeper ensemble. Safe to use from several threads."""

    def __init__(
        self,
        hosts: str,
        clock: Clock,
        *,
        root: str = "/ebla",
        read_only: bool = False,
        connect_seconds: float = 15.0,
        request_seconds: float = 15.0,
        session_seconds: float = 10.0,
        shared_microseconds: Callable[[], int] | None = None,
    ) -> None:
        """Connect to one of `hosts` (``host:port,host:port``); `Unavailable` if none answers in time.

        `root` is the znode below which everything is, made if it is missing. `shared_microseconds` replaces the clock
        by which leases are judged.
        """
        self._root = check_root(root)
        self._hosts = hosts
        self._clock = clock
        self._read_only = read_only
        self._request_seconds = request_seconds
        self._shared_microseconds = shared_microseconds or self._leader_microseconds
        self._closed = False
        self._connected = threading.Event()
        self._watcher = TreeWatcher(self._look, retry_seconds=0.2)
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=2.0)
        self._client = KazooClient(hosts, timeout=session_seconds, connection_retry=retry)
        self._client.add_listener(self._on_state)
        try:
            self._client.start(timeout=connect_seconds)
        except KazooTimeoutError:
            self._client.close()
            reason = f"no ZooKeeper server answers at {hosts}: check the address and that they run"
            raise Unavailable(reason) from None
        if not read_only:
            self._make_root()

    def _make_root(self) -> None:
        for path in [*ancestors(self._root), self._root]:
            if path:
                try:
                    self._ask(lambda: [self._client.create_async(path)])  # noqa: B023 - called at once
                except ZnodeExists:
                    continue

    # --- requests --------------------------------------------------------------------------------

    def read(self, path: str) -> Node | None:
        """Return the node at `path` as it is now, or None."""
        check_path(path)
        znode = self._znode(path)
        try:
            _, (value, status) = self._ask(lambda: [self._client.sync_async(znode), self._client.get_async(znode)])
        except NoNodeError:
            return None
        return Node(value, status.version) if status.version else None

    def list(self, path: str) -> builtins.list[str]:
        """Return the paths of the nodes directly below `path`, sorted."""
        if path:
            check_path(path)
        znode = self._znode(path)
        try:
            _, names = self._ask(lambda: [self._client.sync_async(znode), self._client.get_children_async(znode)])
        except NoNodeError:
            return []
        paths = [f"{path}/{name}" if path else name for name in sorted(names)]
        versions = self._versions(paths)
        return [child for child in paths if versions[child]]

    def multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        """Do all of the operations in one ZooKeeper transaction."""
        bytes_ = check_operations(operations)
        bytes_ += sum(_STEP_BYTES + 2 * len(operation.path) for operation in operations)
        if bytes_ > _MULTI_BYTES_MAX:
            raise InvalidNode(f"{bytes_} bytes are too many for one multi, {_MULTI_BYTES_MAX} are allowed: divide it")
        if self._read_only:
            raise ReadOnly("the coordination service was opened for reading")
        planned = guess(operations)
        for _ in CROWDS:
            if self._commit(planned):
                return [*planned.results]
            planned = plan(operations, self._tree(operations))
        raise Unavailable("others changed the same nodes faster each time: nothing was changed, try again")

    def _commit(self, planned: Plan) -> bool:
        """Carry out a plan. False: it did not fit, and nothing was changed."""
        transaction = self._client.transaction()
        for step in planned.steps:
            self._add(transaction, step)
        self._wait_for_connection(time.monotonic() + self._request_seconds)
        try:
            results = transaction.commit_async().get(timeout=self._request_seconds)
        except _LOST as error:
            raise OutcomeUnknown(f"the connection to ZooKeeper at {self._hosts} was lost before the reply") from error
        except KazooException as error:
            raise self._failed(error) from error
        failures = [result for result in results if isinstance(result, Exception)]
        causes = [error for error in failures if not isinstance(error, (RolledBackError, RuntimeInconsistency))]
        if causes and not isinstance(causes[0], _REFUSED):
            raise self._failed(causes[0])
        return not failures

    def _add(self, transaction: TransactionRequest, step: Step) -> None:
        znode = self._znode(step.path)
        match step.kind:
            case "create":
                transaction.create(znode)
            case "set":
                transaction.set_data(znode, step.value, step.version)
            case "delete":
                transaction.delete(znode, step.version)
            case "check":
                transaction.check(znode, step.version)

    def _tree(self, operations: Sequence[Operation]) -> dict[str, int | None]:
        """Look at everything that a plan for the operations depends on."""
        self._ask(lambda: [self._client.sync_async(self._root)])
        paths = {operation.path for operation in operations}
        for operation in operations:
            if isinstance(operation, Create):
                paths.update(ancestors(operation.path))
        level = [operation.path for operation in operations if isinstance(operation, Delete)]
        while level:
            found = self._children(level, watched=False)
            level = [child for children in found for child in children or ()]
            paths.update(level)
        return self._versions(sorted(paths))

    def _versions(self, paths: Sequence[str]) -> dict[str, int | None]:
        """Return the data version of every znode, None for those that are not there."""
        found = self._ask(lambda: [self._client.exists_async(self._znode(path)) for path in paths])
        versions = (None if status is None else status.version for status in found)
        return dict(zip(paths, versions, strict=True))

    def _ask(self, requests: Callable[[], Sequence[Any]]) -> builtins.list[Any]:
        """Send requests that may be repeated, all at once, and return their answers."""
        deadline = time.monotonic() + self._request_seconds
        while True:
            self._wait_for_connection(deadline)
            try:
                return [reply.get(timeout=max(0.001, deadline - time.monotonic())) for reply in requests()]
            except KazooTimeoutError as error:
                reason = f"ZooKeeper at {self._hosts} did not answer within {self._request_seconds:g} s: try again"
                raise Unavailable(reason) from error
            except _LOST:
                continue
            except _REFUSED:
                raise
            except KazooException as error:
                raise self._failed(error) from error

    def _wait_for_connection(self, deadline_seconds: float) -> None:
        self._check_open()
        while not self._connected.wait(max(0.0, min(0.1, deadline_seconds - time.monotonic()))):
            self._check_open()
            if time.monotonic() >= deadline_seconds:
                raise Unavailable(f"there is no connection to ZooKeeper at {self._hosts}: nothing was sent, try again")

    def _failed(self, error: Exception) -> CoordinationFailed:
        return CoordinationFailed(f"ZooKeeper at {self._hosts} refuses: {type(error).__name__} {error}".rstrip())

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client of ZooKeeper was closed")

    # --- watches and leases ----------------------------------------------------------------------

    def watch(self, path: str, callback: Callable[[str], None]) -> Watch:
        """Call back from the watching thread, which the first watch starts."""
        if path:
            check_path(path)
        self._check_open()
        return self._watcher.watch(path, callback)

    def _look(self, paths: Sequence[str]) -> builtins.list[builtins.list[str] | None]:
        found = []
        for begin in range(0, len(paths), _WATCHES_AT_ONCE):
            found += self._children(paths[begin : begin + _WATCHES_AT_ONCE], watched=True)
        return found

    def _children(self, paths: Sequence[str], *, watched: bool) -> builtins.list[builtins.list[str] | None]:
        """Return the paths of the znodes below each of some znodes, None for those that are not there."""
        znodes = [self._znode(path) for path in paths]
        watch = self._on_event if watched else None
        for _ in CROWDS:
            statuses = self._ask(lambda: [self._client.exists_async(znode, watch) for znode in znodes])
            there = [znode for znode, status in zip(znodes, statuses, strict=True) if status is not None]
            try:
                found = self._ask(lambda: [self._client.get_children_async(znode, watch) for znode in there])  # noqa: B023
            except NoNodeError:
                continue  # one went away in between
            names = dict(zip(there, found, strict=True))
            return [
                [f"{path}/{name}" if path else name for name in names[znode]] if znode in names else None
                for path, znode in zip(paths, znodes, strict=True)
            ]
        raise Unavailable("the nodes came and went faster than they could be looked at: try again")

    def _on_event(self, event: Any) -> None:
        # An event without a path says that the connection was lost: the new one is told of by `_on_state`.
        if event.path is not None:
            self._watcher.fired(event.path[len(self._root) + 1 :])

    def _on_state(self, state: str) -> None:
        # Called by kazoo's own thread, which must not be kept.
        if state == KazooState.CONNECTED:
            self._connected.set()
            self._watcher.connected()
        else:
            self._connected.clear()

    def lease(self, path: str, owner: str, ttl_seconds: float) -> NodeLease:
        """Take the lease at `path`; `LeaseHeld` at once if another owner holds it."""
        if self._read_only:
            raise ReadOnly("the coordination service was opened for reading")
        return take_lease(self, self._clock, path, owner, ttl_seconds, self._shared_microseconds)

    def _leader_microseconds(self) -> int:
        """Return the time of day at the ZooKeeper leader, from a write that changes nothing."""
        (status,) = self._ask(lambda: [self._client.set_async(self._root, b"")])
        return int(status.last_modified * 1_000_000)

    def close(self) -> None:
        """End the session. Leases run out."""
        if self._closed:
            return
        self._closed = True
        self._watcher.stop()
        self._client.stop()
        self._client.close()

    def _znode(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def check_root(root: str) -> str:
    """Return `root` if it can be the znode below which a store is; raise `InvalidNode` if not."""
    if not root.startswith("/") or root.startswith("/zookeeper"):
        raise InvalidNode(f"{root!r} cannot hold a store: name a znode of its own, such as /ebla")
    check_path(root[1:])
    return root
