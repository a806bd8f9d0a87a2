"""Snapshots of a cluster: one txn that every server can show, held where all of them look before they compact.

    1  every server    tells its newest commit; T is the newest of all
    2  the master      holds T: by the name that was given, or by one of this client's that expires unless it is renewed
    3  the master      looks how far compaction may have gone: beyond T, and it begins again
    4  every server    commits nothing at or below T any more, and has committed what it gave out before

So what was acknowledged before the snapshot is in it, what begins after it is not, and nothing is held by a server: it
may go, and its tablets with it. A client that dies renews nothing, and what it held is let go in `EXPIRES_SECONDS`; a
name that it gave stays. Whoever finds it has the last step done again, for it may not have been.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ebla.errors import Conflict, EblaError, Unavailable
from ebla.service.requests import HoldByName, ListHeld, PassTxn, ReleaseName, StoreRequest, Sync

__all__ = ["HeldSnapshots"]

EXPIRES_SECONDS = 60.0
RENEW_SECONDS = 15.0
ATTEMPTS = 5

_log = logging.getLogger(__name__)


class HeldSnapshots:
    """The snapshots that one client holds. Safe to use from several threads."""

    def __init__(
        self,
        client: str,
        ask_master: Callable[[StoreRequest[Any]], Any],
        ask_servers: Callable[[StoreRequest[Any]], Sequence[Any]],
    ) -> None:
        """`ask_servers` has every server carry out a request, and returns their replies."""
        # Set once.
        self._client = client
        self._ask_master = ask_master
        self._ask_servers = ask_servers
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        # Guarded by _lock.
        self._count = 0
        self._names: dict[str, int] = {}  # txns of snapshots without a name, by what they are called in the cluster
        self._thread: threading.Thread | None = None

    def hold_named(self, name: str) -> int:
        """Hold the newest commit under a name, or find what is held under it; return its txn."""
        held: int | None = self._ask_master(ListHeld()).get(name)
        if held is None:
            return self._held(HoldByName(name))
        # Whoever held it may have died before the servers had passed it, or be about to tell them.
        try:
            self._ask_servers(PassTxn(held))
        except EblaError as error:
            # A server passes a txn as well when it is read there; and to let go of a snapshot, no server is needed.
            _log.warning("not all servers could be told of snapshot %s at txn %d: %s", name, held, error)
        return held

    def hold(self) -> int:
        """Hold the newest commit until `let_go`, or until this client is gone; return its txn."""
        with self._lock:
            self._count += 1
            name = f"held.{self._client}.{self._count}"
        txn = self._held(HoldByName(name, expires_seconds=EXPIRES_SECONDS))
        with self._lock:
            self._names[name] = txn
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ebla-remote-held", daemon=True)
                self._thread.start()
        return txn

    def let_go(self, txn: int) -> None:
        """End one `hold` that returned this txn."""
        with self._lock:
            name = next((name for name, held in self._names.items() if held == txn), None)
            if name is None:
                return
            del self._names[name]
        self._ask_master(ReleaseName(name))

    def close(self) -> None:
        """Renew nothing any more. What is held expires."""
        self._stopping.set()

    def _held(self, wanted: HoldByName) -> int:
        for _ in range(ATTEMPTS):
            newest = max((int(txn) for txn in self._ask_servers(Sync())), default=None)
            try:
                txn = int(self._ask_master(HoldByName(wanted.name, newest, wanted.expires_seconds)))
            except Conflict as error:
                _log.debug("a snapshot is tried again: %s", error)
                continue
            try:
                self._ask_servers(PassTxn(txn))
            except EblaError:
                self._ask_master(ReleaseName(wanted.name))
                raise
            return txn
        raise Unavailable("compaction was faster each time than a snapshot could be held: try again")

    def _run(self) -> None:
        while not self._stopping.wait(RENEW_SECONDS):
            with self._lock:
                names = dict(self._names)
            for name, txn in names.items():
                try:
                    self._ask_master(HoldByName(name, txn, EXPIRES_SECONDS))
                except EblaError as error:
                    _log.warning("a snapshot at txn %d could not be held on to: %s", txn, error)
