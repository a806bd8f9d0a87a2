"""The gates of all servers of a table, closed for one attempt to change it as a whole, and opened by its outcome.

leaders     who leads which tablets, in which epochs; `StaleRoute` while one is changing hands
close       every leader closes its gate and reserves txns; with `is_flushed`, all it has is in files then
outcome     METADATA has the attempt: at a txn, or as aborted                       tablet_server/gates.py
tell        the leaders look; they find out by themselves, should this master die
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ebla.access.credentials import NOTHING, Credentials
from ebla.errors import EblaError, StaleRoute, TableUnloaded
from ebla.master.calls import REQUEST_METHODS, CloseGate, OpenGate
from ebla.master_server.term import Term
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import RecordJob, TabletAt
from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.rpc.channel import Channel
from ebla.rpc.methods import Asks

__all__ = ["ClusterGates", "Leaders"]

GATE_SECONDS = 8.0  # less than servers wait for an outcome
# Longer than a lease: a leader that has not shown the outcome by then answers nobody.
TELL_SECONDS = 5.0
THREADS_MAX = 16

_Answer = TypeVar("_Answer")
# By the address of a server, what it leads.
Leaders = Mapping[str, Sequence[TabletAt]]


class ClusterGates:
    """Asks the leaders of tablets. Safe to use from several threads."""

    def __init__(self, metadata: MetadataAccess, own: str, credentials: Credentials = NOTHING) -> None:
        # Set once.
        self._metadata = metadata
        self._own = own
        self._credentials = credentials
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="ebla-cluster-gates")
        self.alone = threading.Lock()
        """Held by who closes gates: they are closed for one attempt at a time."""
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}  # guarded by _lock

    def stop(self) -> None:
        """Ask nobody any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            channels, self._channels = [*self._channels.values()], {}
        for channel in channels:
            channel.close()

    def leaders(self, term: Term, name: str, tablets: Iterable[TabletMetadata]) -> Leaders:
        """Return who leads some tablets of a table; `StaleRoute` if nobody leads one, `TableUnloaded` if it is off."""
        found: dict[str, list[TabletAt]] = defaultdict(list)
        for tablet in tablets:
            if tablet.state == UNLOADED:
                raise TableUnloaded(f"tablet {tablet.id} of {name!r} is not loaded: load it with load_table")
            server = None if tablet.leader is None else term.master.servers.get(tablet.leader)
            if server is None or not tablet.is_served:
                raise StaleRoute(f"tablet {tablet.id} is changing hands: wait until it is served")
            found[server.registration.address].append(TabletAt(tablet.id, tablet.epoch))
        return found

    def close(self, leaders: Leaders, gate: CloseGate) -> int:
        """Have all leaders close their gates; return the first txn that none of them has given out."""
        asked = {
            address: CloseGate(
                gate.attempt,
                gate.table,
                tuple(tablets),
                gate.layers,
                gate.unchanged_since,
                gate.fragments,
                gate.is_flushed,
            )
            for address, tablets in leaders.items()
        }
        return max(self.ask(asked, GATE_SECONDS))

    def ask(self, requests: Mapping[str, Asks[_Answer]], timeout_seconds: float) -> list[_Answer]:
        """Ask servers at the same time, each by its address; the first error is raised when all have answered."""
        asked = [
            self._pool.submit(self._channel(address).call, request, timeout_seconds=timeout_seconds)
            for address, request in requests.items()
        ]
        failures = [error for future in asked if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        return [future.result() for future in asked]

    def abort(self, table_id: str, attempt: str) -> None:
        """Put on record that an attempt came to nothing, as far as that is possible: else the leaders do it."""
        with contextlib.suppress(EblaError):
            self._metadata.commit(table_id, [RecordJob(attempt, 0)])

    def tell(self, leaders: Leaders, attempt: str) -> list[Future[None]]:
        """Have the leaders look for the outcome; return what is done when each of them shows it."""
        return [self._pool.submit(self._told, address, attempt) for address in leaders]

    def _told(self, address: str, attempt: str) -> None:
        with contextlib.suppress(EblaError):  # it is gone, or looks by itself a moment later
            self._channel(address).call(OpenGate(attempt), timeout_seconds=TELL_SECONDS)

    def _channel(self, address: str) -> Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = Channel(
                    REQUEST_METHODS, address, client=self._own, credentials=self._credentials
                )
            return channel
