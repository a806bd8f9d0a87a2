"""Lines to other masters: what is to be told each of them is queued, and goes out in the background.

    post(to, table, message) --> queue of that master --> thread --Tell--> master

Nothing waits for a master that does not answer: its queue is bounded, the oldest letters are dropped, and what mattered
is sent again with the next tick. Where a master is, is looked up in the coordination service.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from ebla.access.credentials import NOTHING, Credentials
from ebla.errors import EblaError, Unavailable
from ebla.metadata_rpc.calls import METADATA_METHODS, KeepTransaction, Letter, Tell
from ebla.rpc.channel import Channel

__all__ = ["Lines"]

LETTERS_MAX = 10_000
LETTERS_PER_CALL = 256
CALL_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Lines:
    """The lines of one master. Safe to use from several threads."""

    def __init__(self, own: str, address_of: Callable[[str], str | None], credentials: Credentials = NOTHING) -> None:
        # Set once.
        self._credentials = credentials
        self._own = own
        self._address_of = address_of
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._lines: dict[str, _Line] = {}
        self._is_closed = False

    def post(self, to: str, table_id: str, message: bytes) -> None:
        """Send a letter in the background."""
        line = self._line(to)
        if line is not None:
            line.post(Letter(table_id, message))

    def keep(self, to: str, request: KeepTransaction) -> None:
        """Have another master keep a file; raises what hindered it."""
        line = self._line(to)
        if line is None:
            raise Unavailable("this master is closing")
        line.channel().call(request, timeout_seconds=CALL_SECONDS)

    def close(self) -> None:
        """Send nothing any more."""
        with self._lock:
            self._is_closed = True
            lines = [*self._lines.values()]
        for line in lines:
            line.close()

    def _line(self, to: str) -> _Line | None:
        with self._lock:
            if self._is_closed:
                return None
            line = self._lines.get(to)
            if line is None:
                line = self._lines[to] = _Line(self._own, to, self._address_of, self._credentials)
            return line


class _Line:
    """The line to one master."""

    def __init__(self, own: str, to: str, address_of: Callable[[str], str | None], credentials: Credentials) -> None:
        # Set once.
        self._credentials = credentials
        self._own = own
        self._to = to
        self._address_of = address_of
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._letters: deque[Letter] = deque(maxlen=LETTERS_MAX)
        self._channel: Channel | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ebla-metadata-line", daemon=True)
        self._thread.start()

    def post(self, letter: Letter) -> None:
        with self._changed:
            self._letters.append(letter)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            channel, self._channel = self._channel, None
            self._changed.notify()
        if channel is not None:
            channel.close()

    def channel(self) -> Channel:
        """Return the channel to where the master is now; `Unavailable` if nobody knows."""
        address = self._address_of(self._to)
        if address is None:
            raise Unavailable(f"nobody knows where the master {self._to} is: start it")
        with self._changed:
            if self._is_closed:
                raise Unavailable("this master is closing")
            if self._channel is None or self._channel.address != address:
                former, self._channel = (
                    self._channel,
                    Channel(METADATA_METHODS, address, client=self._own, credentials=self._credentials),
                )
                if former is not None:
                    threading.Thread(target=former.close, daemon=True).start()
            return self._channel

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._letters and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                taken = [self._letters.popleft() for _ in range(min(len(self._letters), LETTERS_PER_CALL))]
            try:
                self.channel().call(Tell(self._own, tuple(taken)), timeout_seconds=CALL_SECONDS)
            except EblaError as error:  # they are lost, and sent again as far as they matter
                _log.debug("the master %s was not told: %s", self._to, error)
