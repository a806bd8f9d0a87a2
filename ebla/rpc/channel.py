"""A channel: calls to one server, over one link at a time.

    Channel(methods, "10.0.0.7:7071").call(Heartbeat(...), timeout_seconds=2) --> HeartbeatReply

Many threads share a channel; their calls are on the wire at the same time, and each is answered when it is done. One
call is one attempt: whether to try again, and where, is for whoever knows what the call is about. A link that broke
before the call was sent is replaced at once.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import TypeVar

from ebla.access.credentials import NOTHING, Credentials
from ebla.errors import Closed, EblaError, ProtocolError, TimedOut, TlsError, Unavailable
from ebla.rpc import frames
from ebla.rpc.frames import Hello
from ebla.rpc.limits import DEFAULT, Limits
from ebla.rpc.link import Link
from ebla.rpc.methods import Asks, Methods
from ebla.threads import forking

__all__ = ["Channel"]

Reply = TypeVar("Reply")


class Channel:
    """One server, as its clients see it. Connects when it is first used. Safe to use from several threads."""

    def __init__(
        self,
        methods: Methods,
        address: str,
        *,
        client: str = "",
        limits: Limits = DEFAULT,
        version: int = frames.PROTOCOL_VERSION,
        credentials: Credentials = NOTHING,
    ) -> None:
        # Set once.
        self._credentials = credentials
        self.address = address
        self._methods = methods
        self._limits = limits
        self._hello = Hello(version, version, client or uuid.uuid4().hex, _software())
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._link: Link | None = None
        # It goes up once.
        self._closed: Closed | None = None
        forking.watch(self)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, request: Asks[Reply], *, timeout_seconds: float) -> Reply:
        """Send a request once and return its reply, or raise what the server raised.

        `TimedOut` and `Unavailable`: it did not happen, or may be repeated. `OutcomeUnknown`: it may have happened.
        """
        codec = self._methods.of(request)
        link = self._link
        if link is None or not link.is_usable or self._closed is not None:
            began_seconds = time.monotonic()
            link = self._connected(timeout_seconds)
            timeout_seconds -= time.monotonic() - began_seconds
            if timeout_seconds <= 0:
                raise TimedOut(f"no time was left for {codec.method.name} when {self.address} was reached: retry")
        return link.call(codec, request, timeout_seconds)  # type: ignore[no-any-return]

    def connect(self, timeout_seconds: float) -> None:
        """Reach the server, if that was not done yet."""
        self._connected(timeout_seconds)

    def post(self, request: Asks[Reply], timeout_seconds: float, answered: Callable[[Reply | EblaError], None]) -> None:
        """Send a request and do not wait: `answered` is called with its reply, or with an error, by another thread.

        `Unavailable` if the server is not reached at the moment. Requests are sent in the order of the calls.
        """
        codec = self._methods.of(request)
        link = self._link
        if link is None or not link.is_usable:
            raise Unavailable(f"{self.address} is not connected")
        link.post(codec, request, timeout_seconds, answered)

    def close(self) -> None:
        """Leave when what is under way is answered. Closing twice is fine."""
        with self._lock:
            link, self._link = self._link, None
            if self._closed is None:
                self._closed = Closed(f"the channel to {self.address} was closed")
        if link is not None:
            link.close()

    def abandon(self) -> None:
        """Leave at once; what is under way is told that the server is silent."""
        link = self._link
        self.close()
        if link is not None:
            link.give_up(Unavailable(f"{self.address} was silent for too long"))

    def disown(self) -> None:
        """Serve nothing in a forked child: the connection belongs to its parent."""
        self._lock = threading.Lock()
        self._closed = Closed(
            "this connection belongs to the process that made it, and a fork of it cannot use it: connect again there"
        )

    def _connected(self, timeout_seconds: float) -> Link:
        try:
            return self._linked(timeout_seconds)
        except TlsError as error:
            if self._is_process:
                # Nobody sits before a process who could mend it now: it goes on trying, until somebody has.
                raise Unavailable(str(error)) from None
            raise

    def _linked(self, timeout_seconds: float) -> Link:
        began_seconds = time.monotonic()
        address = self.address
        if self._is_process:
            address = self._peer_address(timeout_seconds)
            timeout_seconds = max(0.001, timeout_seconds - (time.monotonic() - began_seconds))
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if self._link is None or not self._link.is_usable:
                self._link = link = Link(address, self._hello, self._limits, self._credentials)
                _pulse.watch(link, self._limits.ping_seconds)
            link = self._link
        link.wait_for_welcome(timeout_seconds)
        return link

    @property
    def _is_process(self) -> bool:
        return self._credentials.tls is not None and bool(self._credentials.tls.key)

    def _peer_address(self, timeout_seconds: float) -> str:
        """Return where this process, which has a certificate to show, is asked for it: whoever listens tells."""
        link = Link(self.address, self._hello, self._limits, Credentials(tls=self._credentials.tls))
        try:
            link.wait_for_welcome(timeout_seconds)
            if not link.peer_port:
                raise ProtocolError(f"{self.address} does not tell where processes of its cluster ask: is it of ours?")
            return f"{self.address.rpartition(':')[0]}:{link.peer_port}"
        finally:
            link.close()


class _Pulse:
    """One thread of this process that asks after the servers of all links, while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._pause_seconds = 1.0
        forking.watch(self)

    def watch(self, link: Link, ping_seconds: float) -> None:
        """Ask after the server of a link until it is over."""
        with self._lock:
            self._links.add(link)
            self._pause_seconds = min(self._pause_seconds, ping_seconds / 2)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ebla-rpc-pulse", daemon=True)
                self._thread.start()

    def disown(self) -> None:
        """Begin anew in a forked child."""
        self._lock, self._links, self._thread = threading.Lock(), weakref.WeakSet(), None

    def _run(self) -> None:
        while True:
            time.sleep(self._pause_seconds)
            with self._lock:
                links = [link for link in self._links if not link.is_over]
                if not links:
                    self._thread = None
                    return
                self._links = weakref.WeakSet(links)
            for link in links:
                link.check_alive()
            del links


_pulse = _Pulse()


def _software() -> str:
    from ebla import __version__

    return f"ebla {__version__}"
