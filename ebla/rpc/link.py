"""The client's end of one stream: calls that wait for their answers, by number, and the thread that reads those.

    caller:  call -> number, Sleeper  --Call-->                     ...waits, until its deadline
    reader:                           <--Answered, Failed--         wakes the caller of that number

A link is used until it breaks, falls silent, or the server says goodbye; then another is made. Whoever waits when it
breaks is told at once: `Unavailable` if the call may be repeated or was never sent, else `OutcomeUnknown`.

The reading thread may hang in Flight for ever if the server is stopped. It is a daemon, nobody waits for it, and
everything of Flight is closed by it alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pyarrow.flight as flight

from ebla.access.credentials import NOTHING, Credentials
from ebla.access.tls import Tls
from ebla.errors import EblaError, OutcomeUnknown, ProtocolError, TimedOut, Unavailable
from ebla.rpc.faults import error_of
from ebla.rpc.frames import (
    Answered,
    Cancel,
    Credential,
    Failed,
    Goodbye,
    Hello,
    Ping,
    Welcome,
    encode_call,
    encode_frame,
)
from ebla.rpc.limits import Limits
from ebla.rpc.methods import Codec
from ebla.rpc.request_ids import current_request, numbers, request_id
from ebla.rpc.stream import BROKEN, Stream
from ebla.rpc.trust import tls_problem

__all__ = ["Link"]

_log = logging.getLogger(__name__)


class _Waiting:
    """A call under way: a lock that is held until it is answered."""

    __slots__ = ("answer", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.answer: Answered | Failed | EblaError | None = None

    def end(self, answer: Answered | Failed | EblaError) -> None:
        self.answer = answer
        self.lock.release()


class _Posted:
    """A call whose answer is not waited for: it is given to a function, by the thread that reads."""

    __slots__ = ("_answered", "_codec")

    def __init__(self, codec: Codec, answered: Callable[[Any], None]) -> None:
        self._codec = codec
        self._answered = answered

    def end(self, answer: Answered | Failed | EblaError) -> None:
        if isinstance(answer, Answered):
            self._answered(self._codec.reply(answer.body))
        else:
            self._answered(error_of(answer) if isinstance(answer, Failed) else answer)


class Link:
    """One stream to a server. Safe to use from several threads."""

    def __init__(self, address: str, hello: Hello, limits: Limits, credentials: Credentials = NOTHING) -> None:
        # Set once.
        self._address = address
        self._own = hello.client
        self._limits = limits
        self._credentials = credentials
        token = None if credentials.token is None else credentials.token()
        self._client = _connected(address, credentials.tls)
        self._welcomed = threading.Event()
        descriptor = flight.FlightDescriptor.for_command(encode_frame(hello))
        try:
            self._writer, self._reader = self._client.do_exchange(descriptor)
        except BROKEN as error:
            raise self._unreachable(error) from None
        self._stream = Stream(self._writer, limits)
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._waiting: dict[int, _Waiting | _Posted] = {}
        self._end: EblaError | None = None  # why it takes no more calls
        self.server = ""
        self.peer_port = 0  # where processes of the cluster ask, if not here
        self._process = os.getpid()
        self._shown_at_seconds = time.monotonic()  # when the token was
        self._thread = threading.Thread(target=self._read, name=f"ebla-rpc {address}", daemon=True)
        self._thread.start()
        _open.add(self)
        try:
            self._show_token(token)
        except BROKEN as error:
            self._break(error)

    @property
    def is_usable(self) -> bool:
        """Whether it takes calls."""
        return self._end is None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self._end is not None and not self._waiting

    def wait_for_welcome(self, timeout_seconds: float) -> None:
        """Return when the server has said that it speaks the same protocol."""
        if not self._welcomed.wait(timeout_seconds):
            self.give_up(TimedOut(f"{self._address} did not answer within {timeout_seconds:g} s: retry"))
        if self._end is not None:
            raise self._end

    def call(self, codec: Codec, request: object, timeout_seconds: float) -> Any:
        """Send a request and return its reply; raises what the server raised."""
        waiting = _Waiting()
        number = self._send(codec, request, timeout_seconds, waiting)
        if not waiting.lock.acquire(timeout=timeout_seconds):
            self._abandon(number)
            lost = self._lost(codec, f"did not answer within {timeout_seconds:.2g} s", TimedOut)
            self._tell(codec, number, lost, logging.INFO)
            raise lost
        answer = waiting.answer
        if _log.isEnabledFor(logging.DEBUG):
            self._tell(codec, number, answer)
        if isinstance(answer, Answered):
            return codec.reply(answer.body)
        if isinstance(answer, Failed):
            raise error_of(answer)
        if isinstance(answer, EblaError) and codec.method.is_repeatable:
            raise answer
        raise self._lost(codec, str(answer), Unavailable)

    def post(self, codec: Codec, request: object, timeout_seconds: float, answered: Callable[[Any], None]) -> None:
        """Send a request and do not wait: `answered` is called with its reply, or with an error, by another thread.

        If this raises, it was not sent. Requests are sent in the order of the calls.
        """
        self._send(codec, request, timeout_seconds, _Posted(codec, answered))

    def _send(self, codec: Codec, request: object, timeout_seconds: float, waiting: _Waiting | _Posted) -> int:
        number = next(numbers)
        frame = encode_call(number, codec.method.name, max(1, int(timeout_seconds * 1_000)), request)
        if len(frame) > self._limits.message_bytes_max:
            raise ProtocolError(
                f"{codec.method.name} of {len(frame)} bytes: send at most {self._limits.message_bytes_max} at once"
            )
        with self._lock:
            if self._end is not None:
                raise self._end
            if len(self._waiting) >= self._limits.calls_max:
                raise Unavailable(
                    f"{self._limits.calls_max} calls to {self._address} are under way: retry when some are done"
                )
            self._waiting[number] = waiting
        try:
            self._stream.send_bytes(frame)
        except BROKEN as error:
            self._break(error)
        return number

    def _tell(self, codec: Codec, number: int, answer: object, level: int = logging.DEBUG) -> None:
        """Write to the log what came of a call, under its id."""
        before = current_request.set(request_id(self._own, number))
        try:
            what = "was answered" if isinstance(answer, Answered) else f"came to nothing: {_told(answer)}"
            _log.log(level, "%s of %s %s", codec.method.name, self._address, what)
        finally:
            current_request.reset(before)

    def check_alive(self) -> None:
        """Ping if nothing was heard for a while; give up if nothing was for long."""
        self._show_newer_token()
        silent_seconds = time.monotonic() - self._stream.heard_at_seconds
        if self._end is not None or silent_seconds < self._limits.ping_seconds:
            return
        if silent_seconds > self._limits.silence_seconds:
            self.give_up(Unavailable(f"{self._address} was silent for {silent_seconds:.0f} s"))
            return
        try:
            self._stream.send_free(Ping())
        except BROKEN as error:
            self._break(error)

    def _show_token(self, token: str | None) -> None:
        """Say who asks; before the first call, and when the token is old."""
        if token is not None:
            self._stream.send_free(Credential(token))

    def _show_newer_token(self) -> None:
        renew_seconds = self._credentials.renew_seconds
        if renew_seconds is None or time.monotonic() - self._shown_at_seconds < renew_seconds or self._end is not None:
            return
        self._shown_at_seconds = time.monotonic()
        try:
            self._show_token(self._credentials.token() if self._credentials.token is not None else None)
        except BROKEN as error:
            self._break(error)
        except Exception as error:  # the user's own function: the old token may hold for a while
            _log.warning("no newer token could be had: %s", error)

    def give_up(self, why: EblaError) -> None:
        """Take no more calls, and fail those that wait. Returns at once."""
        self._finish(why)
        self._reader.cancel()

    def close(self) -> None:
        """Take no more calls, and leave when those that wait are answered."""
        with self._lock:
            if self._end is None:
                self._end = Unavailable(f"the connection to {self._address} was closed")
            is_idle = not self._waiting
        if is_idle:
            self._leave()

    def wait_until_left(self, timeout_seconds: float) -> None:
        """Return when nothing is read any more, or the time is over."""
        self._thread.join(timeout_seconds)

    @property
    def is_own(self) -> bool:
        """Whether this process made it, and not the one that it was forked from."""
        return self._process == os.getpid()

    def _leave(self) -> None:
        try:
            self._stream.leave()
        except BROKEN as error:
            _log.debug("%s was gone already: %s", self._address, error)

    def _lost(self, codec: Codec, what: str, kind: type[EblaError]) -> EblaError:
        if codec.method.is_repeatable:
            return kind(f"{codec.method.name} came to nothing: {self._address}: {what}; retry")
        return OutcomeUnknown(
            f"{codec.method.name} may or may not have happened: {self._address}: {what}; read before repeating it"
        )

    def _abandon(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)
        try:
            self._stream.send_free(Cancel(number))
        except BROKEN as error:
            self._break(error)

    def _read(self) -> None:
        try:
            while True:
                self._take(self._reader.read_chunk().app_metadata)
        except StopIteration:
            self._finish(Unavailable("the server ended the connection"))
        except EblaError as error:
            self._finish(error)
        except BROKEN as error:
            self._break(error)
        except Exception as error:
            _log.exception("reading from %s failed", self._address)
            self._finish(Unavailable(f"the connection failed: {type(error).__name__}"))
        finally:
            self._close_flight()

    def _take(self, message: Any) -> None:
        frame = self._stream.receive(message)
        match frame:
            case None:
                pass
            case Answered(number) | Failed(number) if number:
                with self._lock:
                    waiting = self._waiting.pop(number, None)
                    is_last = self._end is not None and not self._waiting
                if waiting is not None:  # else it was given up at its deadline
                    waiting.end(frame)
                if is_last:
                    self._leave()
            case Failed():
                raise error_of(frame)
            case Welcome(_, server, peer_port):
                self.server, self.peer_port = server, peer_port
                self._welcomed.set()
            case Goodbye():
                self.close()
            case _:
                raise ProtocolError(f"a server sent {type(frame).__name__}, which only a client says")

    def _break(self, error: Exception) -> None:
        if self._end is None:
            self._finish(self._unreachable(error))

    def _unreachable(self, error: Exception) -> EblaError:
        # What was never heard of may be there, and not be believed: Flight does not tell the one from the other.
        if isinstance(error, flight.FlightUnavailableError) and not self._welcomed.is_set():
            problem = tls_problem(self._address, self._credentials.tls)
            if problem is not None:
                return problem
            return Unavailable(
                f"{self._address} cannot be reached: nobody answers there; is it up, and its address right?"
            )
        return Unavailable(f"{self._address} cannot be reached: {_said(error)}; retry when the server is back")

    def _finish(self, why: EblaError) -> None:
        with self._lock:
            if self._end is None:
                self._end = why
            waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.end(why)
        self._welcomed.set()

    def _close_flight(self) -> None:
        self._stream.end()
        for close in (self._writer.close, self._client.close):
            try:
                close()
            except BROKEN as error:
                _log.debug("closing the connection to %s: %s", self._address, error)


_open: weakref.WeakSet[Link] = weakref.WeakSet()

# So long the end of a process waits for servers that do not answer a goodbye.
_EXIT_SECONDS = 10.0


def leave_all() -> None:
    """Leave every server before the process ends.

    A thread that comes back from Flight while Python is taken down is ended in the middle of C++, which aborts the
    process.
    """
    links = [link for link in _open if link.is_own]
    for link in links:
        link.close()
    deadline = time.monotonic() + _EXIT_SECONDS
    for link in links:
        link.wait_until_left(max(0.0, deadline - time.monotonic()))


atexit.register(leave_all)

_CHANNEL_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
]


def _told(answer: object) -> str:
    return f"{answer.code}: {answer.sentence}" if isinstance(answer, Failed) else str(answer)


def _connected(address: str, tls: Tls | None) -> flight.FlightClient:
    if tls is None:
        return flight.connect(f"grpc://{address}", generic_options=_CHANNEL_OPTIONS)
    shown = {"cert_chain": tls.certificate, "private_key": tls.key} if tls.key else {}
    return flight.connect(f"grpc+tls://{address}", tls_root_certs=tls.ca, generic_options=_CHANNEL_OPTIONS, **shown)


def _said(error: Exception) -> str:
    """Return the first line of what Flight says, without where in its source it says it."""
    return str(error).partition("\n")[0].partition(". gRPC client debug context")[0][:200]
