"""The other servers: messages to each go through one queue, in order, many in one call, and come back as answers.

    send --> [ queue of a peer, bounded ] --flush--> Deliver, several under way --> the peer
                                          <-- messages, when what was delivered is on its disk

Nobody who sends waits. What cannot be delivered is dropped, as is what does not fit the queue: the machine notices, and
sends again what is needed. While as many calls are under way as may be, what comes gathers, and goes with the next one.
A thread for each peer connects, and gives up a connection on which nothing is answered any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ebla.access.credentials import NOTHING, Credentials
from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import EblaError, Unavailable
from ebla.replication.messages import BetweenServers, Push
from ebla.rpc.channel import Channel
from ebla.tablet_server.replicas.calls import REPLICA_METHODS, Deliver
from ebla.timing import Warner

__all__ = ["Peers", "announce", "read_address"]

CONNECT_SECONDS = 2.0
# After an attempt to connect that failed the peer is left alone for so long.
PAUSE_SECONDS = 0.1
# A connection on which nothing was answered for so long is given up.
SILENT_SECONDS = 4.0
CALLS_MAX = 16
# In one call, and waiting for one.
CALL_BYTES = 8 << 20
QUEUE_BYTES_MAX = 64 << 20
MESSAGE_BYTES = 128  # about so many, without the entries

_log = logging.getLogger(__name__)


def _path(server: str) -> str:
    return f"addresses/{server}"


def announce(coordination: CoordinationService, server: str, address: str) -> None:
    """Let other servers know where this one is."""
    value = address.encode()
    while True:
        node = coordination.read(_path(server))
        try:
            if node is None:
                coordination.create(_path(server), value)
            elif node.value != value:
                coordination.compare_and_set(_path(server), value, node.version)
            return
        except CoordinationConflict:
            continue  # a former process of this server, which is ending


def read_address(coordination: CoordinationService, server: str) -> str:
    """Return where a server is; `Unavailable` if it never said so."""
    node = coordination.read(_path(server))
    if node is None:
        raise Unavailable(f"it is not known where server {server} is: start it")
    return node.value.decode()


class Peers:
    """The servers that something is sent to. Safe to use from several threads."""

    def __init__(
        self,
        server: str,
        address_of: Callable[[str], str],
        receive: Callable[[str, Sequence[BetweenServers]], None],
        credentials: Credentials = NOTHING,
    ) -> None:
        """`receive` takes the messages that come as answers, with the server that they come from."""
        # Set once.
        self._server = server
        self._address_of = address_of
        self._receive = receive
        self._credentials = credentials
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._peers: dict[str, _Peer] = {}
        self._is_closed = False

    def send(self, to: str, messages: Sequence[BetweenServers]) -> None:
        """Have messages delivered with the next `flush`, or lost."""
        peer = self._peers.get(to)
        if peer is None:
            with self._lock:
                if self._is_closed:
                    return
                peer = self._peers.get(to)
                if peer is None:
                    peer = _Peer(self._server, to, self._address_of, self._receive, self._credentials)
                    self._peers[to] = peer
        peer.send(messages)

    def flush(self) -> None:
        """Deliver what was sent, as far as that can be now. Does not wait."""
        for peer in [*self._peers.values()]:
            if peer.has_messages:
                peer.flush()

    def close(self) -> None:
        """Deliver nothing more."""
        with self._lock:
            self._is_closed = True
            peers = [*self._peers.values()]
        for peer in peers:
            peer.close()


class _Peer:
    """One of them. Messages leave in the order in which they were sent."""

    def __init__(
        self,
        own: str,
        server: str,
        address_of: Callable[[str], str],
        receive: Callable[[str, Sequence[BetweenServers]], None],
        credentials: Credentials,
    ) -> None:
        # Set once.
        self._own = own
        self._server = server
        self._address_of = address_of
        self._receive = receive
        self._credentials = credentials
        self._failing = Warner(_log)
        self._queue_lock = threading.Lock()
        self._posting = threading.Lock()  # held while something is sent; taken before the other
        self._wanted = threading.Event()  # a connection is, or the sending of what waits
        # Guarded by _queue_lock.
        self._queue: deque[tuple[BetweenServers, int]] = deque()
        self._queued_bytes = 0
        self._under_way = 0
        self._answered_at = time.monotonic()
        # Replaced under _posting.
        self._channel: Channel | None = None
        self._is_closed = False
        threading.Thread(target=self._run, name=f"ebla-replica-peer {server[:8]}", daemon=True).start()

    @property
    def has_messages(self) -> bool:
        return bool(self._queue)

    def send(self, messages: Sequence[BetweenServers]) -> None:
        with self._queue_lock:
            for message in messages:
                size = _size(message)
                if self._queued_bytes + size > QUEUE_BYTES_MAX and self._queue:
                    break
                self._queue.append((message, size))
                self._queued_bytes += size

    def flush(self) -> None:
        with self._posting:
            channel = self._channel
            if channel is None:
                self._wanted.set()
                return
            try:
                while messages := self._next():
                    channel.post(Deliver(self._own, messages), CONNECT_SECONDS, partial(self._answered, channel))
                return
            except EblaError as error:
                self._lose(channel, error)
        channel.abandon()

    def close(self) -> None:
        self._is_closed = True
        self._wanted.set()

    def _next(self) -> tuple[BetweenServers, ...]:
        """Return what goes with one call, and count that call."""
        taken: list[BetweenServers] = []
        taken_bytes = 0
        with self._queue_lock:
            if self._under_way >= CALLS_MAX:
                return ()
            while self._queue and (not taken or taken_bytes + self._queue[0][1] <= CALL_BYTES):
                message, size = self._queue.popleft()
                taken.append(message)
                taken_bytes += size
            self._queued_bytes -= taken_bytes
            if taken:
                if not self._under_way:
                    self._answered_at = time.monotonic()
                self._under_way += 1
        return tuple(taken)

    def _answered(self, channel: Channel, answer: tuple[BetweenServers, ...] | EblaError) -> None:
        """Take the answer to a call, from the thread that reads the connection; or hear that it will not come.

        Of that, whoever finds the connection broken tells, which may be who is sending and holds `_posting`.
        """
        if channel is not self._channel:
            return
        with self._queue_lock:
            self._under_way -= 1
            self._answered_at = time.monotonic()
        if isinstance(answer, EblaError):
            self._failing.warn("server %s takes no messages: %s", self._server, answer)
            self._wanted.set()
            return
        if answer:
            self._receive(self._server, answer)
        if self._queue:
            self.flush()

    def _lose(self, channel: Channel, error: EblaError) -> None:
        """Give up a connection, which is then to be abandoned. `_posting` is held."""
        self._failing.warn("server %s cannot be reached: %s", self._server, error)
        if self._channel is channel:
            self._channel = None
            self._wanted.set()

    # --- the thread that connects, and sends what an error has held up ---------------------------

    def _run(self) -> None:
        while not self._is_closed:
            self._wanted.wait(SILENT_SECONDS / 4)
            self._wanted.clear()
            channel = self._channel
            if channel is None and not self._is_closed and self._queue:
                if not self._connect():
                    time.sleep(PAUSE_SECONDS)
            elif channel is not None and self._is_silent():
                with self._posting:
                    self._lose(channel, Unavailable(f"nothing was answered for {SILENT_SECONDS} s"))
                channel.abandon()
            elif channel is not None:
                self.flush()
        channel = self._channel
        if channel is not None:
            channel.close()

    def _is_silent(self) -> bool:
        with self._queue_lock:
            return self._under_way > 0 and time.monotonic() - self._answered_at > SILENT_SECONDS

    def _connect(self) -> bool:
        channel: Channel | None = None
        try:
            address = self._address_of(self._server)
            channel = Channel(REPLICA_METHODS, address, client=self._own, credentials=self._credentials)
            channel.connect(CONNECT_SECONDS)
        except EblaError as error:
            self._failing.warn("server %s cannot be reached: %s", self._server, error)
            if channel is not None:
                channel.close()
            with self._queue_lock:  # the machine sends again what is needed, and it is another thing by then
                self._queue.clear()
                self._queued_bytes = 0
            return False
        with self._posting, self._queue_lock:
            self._channel, self._under_way = channel, 0
        self.flush()
        return True


def _size(message: BetweenServers) -> int:
    if isinstance(message, Push):
        return MESSAGE_BYTES + sum([MESSAGE_BYTES + len(entry.part) for entry in message.entries])
    return MESSAGE_BYTES
