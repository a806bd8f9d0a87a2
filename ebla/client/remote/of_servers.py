"""What every server of a cluster has a part of: what is durable, and what a snapshot shows.

    Sync                             all of them make durable what they have
    HoldNewest, LetGo, HoldByName    a txn that each of them can show (held_snapshots.py)
    HoldForJob                       any of them puts it on record for all

One server that has everything is asked as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ebla.client.remote.held_snapshots import HeldSnapshots
from ebla.client.remote.working import carried_out
from ebla.errors import Unavailable
from ebla.rpc.channel import Channel
from ebla.rpc.methods import Asks
from ebla.rpc.wire.messages import Outcome
from ebla.service.job_reads import HoldForJob
from ebla.service.requests import HoldByName, HoldNewest, LetGo, StoreRequest, Sync

if TYPE_CHECKING:
    from ebla.client.remote.remote_service import RemoteService

__all__ = ["OF_SERVERS", "OfServers"]

PAUSE_SECONDS = 0.1

OfServersRequest: TypeAlias = Sync | HoldNewest | LetGo | HoldByName | HoldForJob
OF_SERVERS = (Sync, HoldNewest, LetGo, HoldByName, HoldForJob)


class OfServers:
    """Asks all servers of a cluster at once. Safe to use from several threads."""

    def __init__(self, service: RemoteService, client: str) -> None:
        # Set once.
        self._service = service
        self._held = HeldSnapshots(client, self._ask_master, self._ask_servers)

    def carry_out(self, request: OfServersRequest) -> Any:
        """Have all servers do their part."""
        if isinstance(request, Sync):
            return self._synced(request)
        if not self._service.is_cluster:
            return self._ask(self._service.master(), request)
        match request:
            case HoldNewest():
                return self._held.hold()
            case HoldByName(name):
                return self._held.hold_named(name)
            case LetGo(txn):
                return self._held.let_go(txn)
            case HoldForJob():
                return self._on_record(request)

    def close(self) -> None:
        """Ask for nothing any more."""
        self._held.close()

    def _synced(self, request: Sync) -> int:
        servers = self._servers()
        if set(servers) <= {self._service.master()}:
            return request.txn or 0 if self._service.is_cluster else int(self._ask(self._service.master(), request))
        # A txn is one server's: the others may not have come so far.
        return max([int(txn) for txn in self._ask_servers(Sync())], default=request.txn or 0)

    def _on_record(self, request: HoldForJob) -> Any:
        *others, last = self._servers() or (self._service.master(),)
        for server in others:
            try:
                return self._ask(server, request)
            except Unavailable:
                continue  # the next one writes to the same record
        return self._ask(last, request)

    def _servers(self) -> tuple[Channel, ...]:
        """Return everybody who serves tablets, of whichever table."""
        if not self._service.is_cluster:
            return self._service.servers()
        # A tablet that is changing hands is with the master, for who asks where it is: its next server has a part, too.
        ends_at_seconds = time.monotonic() + self._service.timeout_seconds
        while self._service.master() in (servers := self._service.servers()):
            if time.monotonic() > ends_at_seconds:
                raise Unavailable("some tablets are served by nobody at the moment: see `ebla status`, and try again")
            time.sleep(PAUSE_SECONDS)
        return servers

    def _ask_master(self, request: StoreRequest[Any]) -> Any:
        return carried_out(self._service.lanes, self._service.ask_master, None, request, None)

    def _ask_servers(self, request: StoreRequest[Any]) -> Sequence[Any]:
        servers = self._servers()
        return self._service.together([partial(self._ask, server, request) for server in servers]) if servers else []

    def _ask(self, server: Channel, request: StoreRequest[Any]) -> Any:
        def ask(request: Asks[Outcome], *, may_repeat: bool) -> Outcome:
            return self._service.ask_server(lambda: server, request, lambda *_: None, may_repeat=may_repeat)

        return carried_out(self._service.lanes, ask, None, request, None)
