"""A cluster, or one server, as a service: the other implementation of `ebla.service`, over RPC.

    RemoteService --> Masters: one of several addresses that answers    tables, locations, what is asked of the store
                  --> a channel for each server                         rows, by the route of their table

Routes are cached by table, and replaced when a server says that one is out of date. One connection is made to each
server, however many threads and tables use it.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ebla.access.credentials import NOTHING, Credentials
from ebla.access.tokens import is_signed
from ebla.client.remote.compacting import COMPACTING, Compacting
from ebla.client.remote.lanes import Lanes
from ebla.client.remote.listening import Listening
from ebla.client.remote.of_servers import OF_SERVERS, OfServers
from ebla.client.remote.pooled import Pooled
from ebla.client.remote.remote_table import RemoteTable
from ebla.client.remote.retrying import persist
from ebla.client.remote.routes import Route
from ebla.client.remote.working import carried_out
from ebla.errors import Closed, EblaError, RequestError, StaleRoute, TlsError, Unavailable
from ebla.model.keys import KeyCodec
from ebla.rpc.channel import Channel
from ebla.rpc.limits import DEFAULT, Limits
from ebla.rpc.methods import Asks
from ebla.rpc.trust import is_listened_at
from ebla.rpc.wire.messages import SERVICE_METHODS, DeriveToken, Inform, ListTables, Locate, ServiceInfo, TableLocation
from ebla.service.listener import TabletListener
from ebla.service.requests import LetGo, Reply, StoreRequest
from ebla.service.service import SYSTEM_TABLES, Progress
from ebla.settings import Settings

__all__ = ["RemoteService"]

_Answer = TypeVar("_Answer")

THREADS_MAX = 16
TIMEOUT_SECONDS = 30.0
# So long it is tried to reach a cluster of which nothing was heard yet, and nobody listens: masters that are being
# started again need some seconds.
FIRST_SECONDS = 10.0


class RemoteService:
    """Serves tables that other processes have. Safe to use from several threads."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        limits: Limits = DEFAULT,
        credentials: Credentials = NOTHING,
    ) -> None:
        # Set once; the addresses of other masters are added to those that were given.
        self.addresses = tuple(addresses)
        self.timeout_seconds = timeout_seconds
        self._limits = limits
        self.credentials = credentials
        self._client = uuid.uuid4().hex
        self.lanes = Lanes(self._client)
        self._lock = threading.Lock()
        self.pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="ebla-remote")
        # Guarded by _lock.
        self._channels: dict[str, Channel] = {}
        self._tables: weakref.WeakValueDictionary[str, RemoteTable] = weakref.WeakValueDictionary()
        self._task_tokens: dict[tuple[tuple[str, str], ...] | None, tuple[str, float]] = {}  # each until it is renewed
        self._master = 0  # which of the addresses answered last
        self._is_closed = False
        self.seen = 0  # the newest txn that a server told: what is written later comes after it, on any server
        try:
            self._info: ServiceInfo = self._first_answer()
            # Whoever was given one master finds the others, and the one that leads now or next.
            self.addresses = tuple(dict.fromkeys((*self.addresses, *self._info.masters)))
        except BaseException:
            self.close()
            raise
        self.listening = Listening(self)
        self._of_servers = OfServers(self, self._client)
        self._compacting = Compacting(self)

    @property
    def is_writable(self) -> bool:
        """Whether it takes writes."""
        return self._info.is_writable

    @property
    def settings(self) -> Settings:
        """The settings that requests are held to."""
        return self._info.settings

    @property
    def is_cluster(self) -> bool:
        """Whether masters answer, and others have the rows."""
        return bool(self._info.masters)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; empty if one server has everything."""
        return self._info.cluster

    @property
    def root(self) -> str | None:
        """The directory of the store, as whoever serves it calls it."""
        return self._info.root

    def closed(self) -> Closed:
        """Return the error for whoever comes when it is closed."""
        return Closed(f"the connection to {', '.join(self.addresses)} was closed")

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        if self._is_closed:
            raise self.closed()

    def saw(self, txn: int) -> None:
        """Have later changes come after a txn that a server told."""
        if txn > self.seen:
            with self._lock:
                self.seen = max(self.seen, txn)

    def close(self) -> None:
        """Let go of all connections. What was acknowledged stays. Closing twice is fine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            channels = list(self._channels.values())
        if hasattr(self, "listening"):
            self.listening.close()
            self._of_servers.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        for channel in channels:
            channel.close()

    # --- tables ---

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return self.ask_master(ListTables())

    def table(self, name: str, at: int | None = None) -> RemoteTable:
        """Return a table; its tablets are located now."""
        if not isinstance(name, str):
            raise RequestError(f"a table has a name, not {name!r}")
        return self._table_of(self.ask_master(Locate(name, at)), is_kept=name not in SYSTEM_TABLES)

    def table_by_id(self, table_id: str) -> RemoteTable:
        """Return a table by its id."""
        return self._table_of(self.ask_master(Locate(table=table_id)))

    def locate(self, table_id: str, timeout_seconds: float | None = None) -> Route:
        """Return where the rows of a table are now."""
        return self.route_of(self.ask_master(Locate(table=table_id), timeout_seconds=timeout_seconds))

    def route_of(self, location: TableLocation) -> Route:
        """Return a location with the channels of its servers."""
        asked = self.addresses[self._master]
        servers = tuple(self.channel(tablet.address or asked) for tablet in location.tablets)
        return Route(location, KeyCodec(location.schema.key, self.settings.key_bytes_max), servers)

    def servers(self) -> tuple[Channel, ...]:
        """Return everybody who serves tablets now, of whichever table."""
        routes = [self.route_of(self.ask_master(Locate(name))) for name in self.tables()]
        found = [pair for route in routes for pair in zip(route.location.tablets, route.servers, strict=True)]
        return tuple(dict.fromkeys(server for tablet, server in found if not tablet.is_offline))

    def master(self) -> Channel:
        """Return whoever answers for the store as a whole."""
        return self.channel(self.addresses[self._master])

    def _table_of(self, location: TableLocation, *, is_kept: bool = True) -> RemoteTable:
        route = self.route_of(location)
        if not is_kept:
            return RemoteTable(self, route)
        with self._lock:
            table = self._tables.get(location.table)
            if table is None:
                self._tables[location.table] = table = RemoteTable(self, route)
        table.route = route
        return table

    # --- the store as a whole ---

    def carry_out(self, request: StoreRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with the store as a whole."""
        if self._is_closed and type(request) is LetGo:
            return None  # type: ignore[return-value]
        if isinstance(request, OF_SERVERS):
            return self._of_servers.carry_out(request)  # type: ignore[no-any-return]
        if self.is_cluster and isinstance(request, COMPACTING):
            return self._compacting.carry_out(request)  # type: ignore[no-any-return]
        try:
            reply: Reply = carried_out(self.lanes, self.ask_master, None, request, progress)
        finally:
            # Tables may have other names, schemas or places now.
            for table in list(self._tables.values()):
                table.is_outdated = True
        self.listening.deliver()
        return reply

    def add_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Tell a listener of one tablet, or of all."""
        self.check_open()
        self.listening.add(listener, tablet)

    def remove_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Undo one `add_listener` with the same arguments."""
        self.check_open()
        self.listening.remove(listener, tablet)

    def task_token(self, seconds: float, grants: dict[str, str] | None = None) -> str | None:
        """Return a token for tasks elsewhere, in place of one's own: for all its rights, or for no more than `grants`.

        It holds for up to `seconds`, and for half of them at least unless one's own ends before. None where nobody
        needs one. One's own is given on if it is short-lived itself.
        """
        if self.credentials.token is None:
            return None
        own = self.credentials.token()
        if is_signed(own):
            return own
        key = None if grants is None else tuple(sorted(grants.items()))
        now = time.monotonic()
        with self._lock:
            kept = self._task_tokens.get(key)
        if kept is not None and now < kept[1]:
            return kept[0]
        token = self.ask_master(DeriveToken(seconds, grants))
        with self._lock:
            self._task_tokens[key] = (token, now + seconds / 2)
        return token

    # --- asking ---

    def channel(self, address: str) -> Channel:
        """Return the one channel to a server."""
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                self.check_open()
                channel = Channel(
                    SERVICE_METHODS,
                    address,
                    client=self._client,
                    limits=self._limits,
                    credentials=self.credentials,
                )
                self._channels[address] = channel
            return channel

    def ask_master(
        self, request: Asks[_Answer], *, may_repeat: bool = True, timeout_seconds: float | None = None
    ) -> _Answer:
        """Ask one of the addresses, the next one if it does not answer."""
        self.check_open()
        tried: set[int] = set()  # those who are not to be trusted
        reason: EblaError | None = None

        def attempt(left_seconds: float) -> _Answer:
            nonlocal reason
            self.check_open()
            share = left_seconds if len(self.addresses) == 1 else left_seconds / 3
            try:
                return self.channel(self.addresses[self._master]).call(request, timeout_seconds=share)
            except StaleRoute as error:
                # It does not lead. What the one that does has said, or that it is not to be reached, tells more.
                raise (reason or error) from None
            except TlsError:
                # One certificate that has expired, say, is no reason not to ask the others; all of them are.
                tried.add(self._master)
                self._master = (self._master + 1) % len(self.addresses)
                if self._master in tried:
                    raise
                return attempt(left_seconds)
            except EblaError as error:
                reason = error
                raise

        return persist(attempt, self._ask_next, timeout_seconds or self.timeout_seconds, may_repeat=may_repeat)

    def _first_answer(self) -> ServiceInfo:
        """Ask for the first time. Where nobody listens, it has to be started first, or the address is wrong."""
        began_seconds = time.monotonic()
        try:
            return self.ask_master(Inform(), timeout_seconds=min(self.timeout_seconds, FIRST_SECONDS))
        except Unavailable:
            if not any(map(is_listened_at, self.addresses)):
                raise Unavailable(
                    f"{', '.join(self.addresses)} cannot be reached: nobody listens there; is the cluster up "
                    "(`ebla up`, and `ebla status --data DIR` tells), and is this its address?"
                ) from None
            left_seconds = self.timeout_seconds - (time.monotonic() - began_seconds)
            if left_seconds <= 0:
                raise
            return self.ask_master(Inform(), timeout_seconds=left_seconds)

    def _ask_next(self, error: EblaError, left_seconds: float) -> None:
        self.check_open()
        self._master = (self._master + 1) % len(self.addresses)

    def ask_server(
        self,
        channel_of: Callable[[], Channel],
        request: Asks[_Answer],
        look_again: Callable[[EblaError, float], None],
        *,
        timeout_seconds: float | None = None,
        may_repeat: bool = True,
    ) -> _Answer:
        """Ask the server that `channel_of` names, anew before every attempt."""

        def attempt(left_seconds: float) -> _Answer:
            self.check_open()
            return channel_of().call(request, timeout_seconds=left_seconds)

        def looked(error: EblaError, left_seconds: float) -> None:
            self.check_open()
            look_again(error, left_seconds)

        return persist(attempt, looked, timeout_seconds or self.timeout_seconds, may_repeat=may_repeat)

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Make calls at the same time, and return what they return; the first error is raised when all are done.

        A call may make others together. As many are made at the same time as there are threads for; those that no
        thread has begun, this one makes.
        """
        if len(calls) == 1:
            return [calls[0]()]
        self.check_open()
        others = [Pooled(self.pool, call) for call in calls[1:]]
        results: list[Any] = []
        failure: BaseException | None = None
        for take in (calls[0], *(other.answer for other in others)):
            try:
                results.append(take())
            except EblaError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return results
