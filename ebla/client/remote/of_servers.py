"""What every server of a cluster has a part of: what is durable, and what is held for a snapshot.

    Sync          all of them make durable what they have
    HoldNewest    each holds its newest commit; the snapshot is at the newest of all, which each can show then
    LetGo         each lets go of what it held

One server that has everything is asked as it is.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from ebla.client.remote.working import carried_out
from ebla.errors import EblaError
from ebla.rpc.channel import Channel
from ebla.rpc.methods import Asks
from ebla.rpc.wire.messages import Outcome
from ebla.service.requests import HoldNewest, LetGo, StoreRequest, Sync

if TYPE_CHECKING:
    from ebla.client.remote.remote_service import RemoteService

__all__ = ["OfServers"]


class OfServers:
    """Asks all servers of a cluster at once. Safe to use from several threads."""

    def __init__(self, service: RemoteService) -> None:
        # Set once.
        self._service = service
        self._lock = threading.Lock()
        # Guarded by _lock: what the servers hold, by the txn of the snapshot; one for each time it is held.
        self._held: dict[int, list[list[tuple[Channel, int]]]] = {}

    def carry_out(self, request: Sync | HoldNewest | LetGo) -> Any:
        """Have all servers do their part."""
        match request:
            case Sync():
                return self._synced(request)
            case HoldNewest():
                return self._hold()
            case LetGo(txn):
                return self._let_go(txn)

    def _synced(self, request: Sync) -> int:
        servers = self._several()
        if servers is None:
            return int(self._ask(self._service.master(), request))
        if not servers:
            return request.txn or 0
        # A txn is one server's: the others may not have come so far.
        return max(int(txn) for txn in self._ask_all(servers, Sync()))

    def _hold(self) -> int:
        servers = self._several()
        if servers is None or not servers:
            return int(self._ask(self._service.master(), HoldNewest()))
        txns = [int(txn) for txn in self._ask_all(servers, HoldNewest())]
        newest = max(txns)
        with self._lock:
            self._held.setdefault(newest, []).append(list(zip(servers, txns, strict=True)))
        return newest

    def _let_go(self, txn: int) -> None:
        with self._lock:
            held = self._held.get(txn)
            parts = held.pop() if held else None
            if not held:
                self._held.pop(txn, None)
        if parts is None:
            self._ask(self._service.master(), LetGo(txn))
            return
        for server, own in parts:
            try:
                self._ask(server, LetGo(own))
            except EblaError:
                continue  # whoever is gone holds nothing

    def _several(self) -> tuple[Channel, ...] | None:
        """Return all servers; None if whoever was asked has everything."""
        servers = self._service.servers()
        return None if set(servers) <= {self._service.master()} else servers

    def _ask_all(self, servers: tuple[Channel, ...], request: StoreRequest[int]) -> list[Any]:
        return self._service.together([partial(self._ask, server, request) for server in servers])

    def _ask(self, server: Channel, request: StoreRequest[Any]) -> Any:
        def ask(request: Asks[Outcome], *, may_repeat: bool) -> Outcome:
            return self._service.ask_server(lambda: server, request, lambda *_: None, may_repeat=may_repeat)

        return carried_out(self._service.lanes, ask, None, request, None)
