"""The server's end of one client's stream: calls in, carried out at once or by the pool, answers out.

    reading thread:  Call --> quick: carry out, answer            (no change of threads)
                          \\-> other: the pool                     carried out there, answered from there

A quick one that took long after all sends those behind it to the pool for a while. A call is begun unless its time is
over, it was cancelled, or the server is leaving. Answers leave in the order in which they are ready. When requests
under way and answers not yet taken are too many bytes, acknowledgements are withheld until some are done: so a client
is slowed down, and no memory grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from ebla.access.guard import Access, Session, outcome_of
from ebla.errors import Denied, EblaError, ProtocolError, Unavailable
from ebla.rpc.call_counts import CallCounts
from ebla.rpc.caller import Caller, NotQuick
from ebla.rpc.deferred import Deferred
from ebla.rpc.faults import failed
from ebla.rpc.frames import Call, Cancel, Credential, Goodbye, Welcome, encode_answer, encode_frame
from ebla.rpc.limits import Limits
from ebla.rpc.methods import Codec, Methods
from ebla.rpc.request_ids import current_request, request_id
from ebla.rpc.stream import BROKEN, MessageWriter, Stream

__all__ = ["Handler", "ServerStream"]

Handler: TypeAlias = Callable[[Any, Caller], Any]

# A quick request that took longer than this was not; for so long then the pool carries out all of them.
QUICK_SECONDS = 0.02
UNHURRIED_SECONDS = 1.0

_log = logging.getLogger(__name__)


class ServerStream:
    """What one client asks."""

    def __init__(
        self,
        writer: MessageWriter,
        methods: Methods,
        handlers: Mapping[type, Handler],
        pool: ThreadPoolExecutor,
        limits: Limits,
        client: str,
        session: Session | None = None,
        counts: CallCounts | None = None,
    ) -> None:
        # Set once.
        self._stream = Stream(writer, limits)
        self._methods = methods
        self._handlers = handlers
        self._pool = pool
        self._limits = limits
        self.client = client
        self._session = session  # None: everybody may do everything
        self._counts = counts or CallCounts()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._begun: dict[int, int] = {}  # calls that are not answered yet: number -> bytes
        self._cancelled: set[int] = set()
        self._unfinished_bytes = 0
        # Used by the reading thread alone.
        self._unhurried_until_seconds = 0.0
        # They go up once.
        self.is_leaving = False
        self.is_dropped = False

    @property
    def silent_seconds(self) -> float:
        """How long nothing was heard of the client."""
        return time.monotonic() - self._stream.heard_at_seconds

    @property
    def is_idle(self) -> bool:
        """Whether every call is done, and every answer is out that somebody waits for."""
        return not self._begun and (self.is_dropped or not self._stream.queued_bytes)

    def welcome(self, version: int, server: str, peer_port: int = 0) -> None:
        """Say that calls may come."""
        self._stream.send_free(Welcome(version, server, peer_port))

    def say_goodbye(self) -> None:
        """Refuse calls from now on, and tell the client. Not an error if it is gone."""
        self.is_leaving = True
        self._safely(lambda: self._stream.send_free(Goodbye()))

    def take(self, message: pa.Buffer | None) -> None:
        """Take one message of the client; `ProtocolError` if it is none, and the stream must end."""
        frame = self._stream.receive(message)
        match frame:
            case None:
                return
            case Call():
                self._begin(frame, len(frame.body))
            case Cancel(number):
                with self._lock:
                    if number in self._begun:
                        self._cancelled.add(number)
            case Credential(token):
                if self._session is not None:
                    self._session.present(token)
            case _:
                raise ProtocolError(f"a client sent {type(frame).__name__}, which only a server says")

    def end(self) -> None:
        """Answer nothing more: the client is gone, or is to go."""
        self.is_dropped = True
        self._stream.end()

    def fail(self, error: Exception) -> None:
        """Tell the client why the stream ends."""
        self._safely(lambda: self._stream.send(failed(0, error, doing="the stream", is_repeatable=True)))

    def _begin(self, call: Call, size: int) -> None:
        codec = self._methods.named(call.name)
        if codec is None or codec.method.request not in self._handlers:
            error = ProtocolError(f"{call.name[:80]!r} is no request that is answered here")
            self._answer_failure(call.number, error, None)
            return
        with self._lock:
            if call.number in self._begun:
                raise ProtocolError(f"call {call.number} was sent twice")
            refusal = self._refusal()
            if refusal is None:
                self._begun[call.number] = size
                self._unfinished_bytes += size
                self._pace()
        if refusal is not None:
            self._answer_failure(call.number, refusal, codec)
            return
        began_seconds = time.monotonic()
        if codec.method.is_quick and began_seconds >= self._unhurried_until_seconds:
            try:
                self._carry_out(call, codec, self._caller(call, is_hurried=True))
                return
            except NotQuick:
                pass
            finally:
                if time.monotonic() - began_seconds > QUICK_SECONDS:
                    # It waited for a disk, or for a tablet that is loaded: others must not wait for the next one.
                    self._unhurried_until_seconds = time.monotonic() + UNHURRIED_SECONDS
        try:
            self._pool.submit(self._carry_out, call, codec, self._caller(call))
        except RuntimeError:  # the pool was shut down
            self._finish(call.number)
            self._answer_failure(call.number, Unavailable("the server is shutting down: ask another one"), codec)

    def _caller(self, call: Call, *, is_hurried: bool = False) -> Caller:
        return Caller(self.client, time.monotonic() + call.timeout_milliseconds / 1_000, is_hurried)

    def _refusal(self) -> EblaError | None:
        if self.is_leaving:
            return Unavailable("the server is shutting down: ask where the tablet is served now, and retry")
        if len(self._begun) >= self._limits.calls_max:
            return Unavailable(f"{self._limits.calls_max} calls of this client are under way: retry when some are done")
        return None

    def _carry_out(self, call: Call, codec: Codec, caller: Caller) -> None:
        number, method = call.number, codec.method
        is_failed = False
        before = current_request.set(request_id(self.client, number))
        try:
            if number in self._cancelled or self.is_dropped:
                self._finish(number)
                return
            caller.check_in_time(method.name)
            if self._session is None:
                reply = self._handlers[method.request](codec.request(call.body), caller)
            else:
                reply = self._guarded(call, codec, caller, self._session)
            if isinstance(reply, Deferred):
                reply.then(lambda given: self._answer(number, encode_answer(number, given)))
                return
            frame = encode_answer(number, reply)
            if len(frame) > self._limits.message_bytes_max:
                raise ProtocolError(f"the answer to {method.name} has {len(frame)} bytes: ask for less at once")
        except NotQuick:
            if caller.is_hurried:
                raise
            wrong = RuntimeError("a handler raised NotQuick where it may wait")
            frame = encode_frame(failed(number, wrong, doing=method.name, is_repeatable=True))
        except Exception as error:
            is_failed = True
            frame = encode_frame(failed(number, error, doing=method.name, is_repeatable=method.is_repeatable))
            _log.debug("%s failed: %s: %s", method.name, type(error).__name__, error)
        else:
            _log.debug("%s was answered", method.name)
        finally:
            current_request.reset(before)
        took_seconds = time.monotonic() - (caller.deadline_seconds - call.timeout_milliseconds / 1_000)
        self._counts.note(method.name, took_seconds, len(call.body), len(frame), is_failed=is_failed)
        self._answer(number, frame)

    def _answer(self, number: int, frame: bytes) -> None:
        self._finish(number)
        self._safely(lambda: self._stream.send_bytes(frame))
        self._pace()

    def _guarded(self, call: Call, codec: Codec, caller: Caller, session: Session) -> Any:
        """Carry a call out if whoever made it may do so."""
        method = codec.method
        access: Access = session.access(method.name)
        if method.needs is None:
            raise Denied(f"{method.name} does not say which right it needs: nobody may ask for it")
        request = codec.request(call.body)
        access.check(method.needs(request))
        try:
            reply = self._handlers[method.request](request, replace(caller, access=access))
        except NotQuick:
            raise
        except Exception as error:
            if not isinstance(error, Denied):
                access.finished(outcome_of(error))
            raise
        if getattr(reply, "is_done", True):  # what takes long is asked after until it is done
            access.finished("done")
        return reply

    def _answer_failure(self, number: int, error: EblaError, codec: Codec | None) -> None:
        doing = "the call" if codec is None else codec.method.name
        self._safely(lambda: self._stream.send(failed(number, error, doing=doing, is_repeatable=True)))

    def _finish(self, number: int) -> None:
        with self._lock:
            self._unfinished_bytes -= self._begun.pop(number)
            self._cancelled.discard(number)

    def _pace(self) -> None:
        too_much = self._unfinished_bytes + self._stream.queued_bytes > self._limits.unfinished_bytes_max
        self._safely(lambda: self._stream.hold(too_much))

    def _safely(self, send: Callable[[], None]) -> None:
        """Do something that needs the client; that it is gone is found out by the reading thread."""
        if self.is_dropped:
            return
        try:
            send()
        except BROKEN as error:
            _log.debug("the stream of client %s is broken: %s", self.client, error)
            self.is_dropped = True
