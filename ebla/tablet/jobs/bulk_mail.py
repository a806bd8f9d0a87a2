"""Orders of jobs in other processes, bulk commits above all: requests and answers in the coordination service.

Only the process that has the store open for writing can give out txns, and knows what is in memory. A job that runs
elsewhere leaves its order (`ebla.service.job_orders`) in the node ``bulk/<job>``; the owner takes it, carries it out,
and leaves the answer in the same node.

    sender   create request ............................ read answer, delete
    owner                    take it -- do it --- answer
                                 `--- the owner is gone: whoever opens the store next finds the request

Every order can be repeated without harm (a bulk job is applied once), so nothing is lost or doubled when an owner dies
between commit and answer, or a sender asks again. A request that does not fit into a node lies in the file
``bulk/<job>-<id>.commit``; the node has its name and checksum.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import google_crc32c
import msgspec

from ebla import errors
from ebla.clock import Clock
from ebla.coordination.service import (
    VALUE_BYTES_MAX,
    CoordinationConflict,
    CoordinationService,
    Node,
    Watch,
)
from ebla.errors import Closed, Corruption, EblaError, OutcomeUnknown, StoreError, Unavailable
from ebla.retry import SAVES
from ebla.service.job_orders import Answer, BulkCommit, Order
from ebla.storage.files.files import Files

__all__ = ["DIRECTORY", "Done", "Mailbox", "Refused", "Request", "decode", "encoder", "subject_of"]

DIRECTORY = "bulk"
ANSWER_BYTES_MAX = VALUE_BYTES_MAX
# After an error of the coordination service, the owner looks again when so much time has passed.
RETRY_SECONDS = 0.5
# An answer that nobody came for is removed when the store is opened so much later.
ANSWER_KEPT_MICROSECONDS = 3_600_000_000

_log = logging.getLogger(__name__)


class Request(msgspec.Struct, frozen=True, tag="request"):
    """Please do this: the order itself, or the file that it is in. `is_taken` once the owner has begun."""

    id: str
    order: Order | None
    file: str | None = None
    file_crc: int = 0
    is_taken: bool = False


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The order with that id was carried out. `subject` says which, to others who send the same."""

    id: str
    result: Answer
    microseconds: int
    subject: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The order with that id was not carried out, or it is not known: the name of the error says it."""

    id: str
    error: str
    message: str
    microseconds: int


Letter: TypeAlias = Request | Done | Refused

encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Letter] = msgspec.msgpack.Decoder(Letter)
_order_decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)


def decode(path: str, node: Node) -> Letter:
    """Return the letter in a node; `Corruption` if it is none."""
    try:
        return _decoder.decode(node.value)
    except msgspec.MsgspecError as error:
        raise Corruption(path, f"the request in the coordination service cannot be read: {error}") from error


# --- the owner's side ----------------------------------------------------------------------------


class Mailbox:
    """Serves the requests that are left for the owner of a store, in a thread that starts with the first of them."""

    def __init__(
        self,
        coordination: CoordinationService,
        files: Files,
        clock: Clock,
        carry_out: Callable[[Any], Answer],
    ) -> None:
        """`carry_out` takes an order and returns the answer to it."""
        # Set once.
        self._coordination = coordination
        self._files = files
        self._clock = clock
        self._carry_out = carry_out
        self._wake = threading.Event()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def open(self) -> None:
        """Begin to serve, also what was left before."""
        self._watch = self._coordination.watch(DIRECTORY, self._on_change)
        left = self._coordination.list(DIRECTORY)
        if left:
            self._remove_old(left)
            self._on_change(DIRECTORY)

    def close(self) -> None:
        """Finish what is being done, and serve no more."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if self._watch is not None:
            self._watch.cancel()
        self._wake.set()
        if thread is not None:
            thread.join()

    def _on_change(self, path: str) -> None:
        del path
        with self._lock:
            if self._is_closed:
                return
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ebla-bulk-mail", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause_seconds: float | None = None
        while True:
            self._wake.wait(pause_seconds)
            self._wake.clear()
            if self._is_closed:
                return
            pause_seconds = None
            try:
                for path in self._coordination.list(DIRECTORY):
                    if not self._is_closed:
                        self._serve(path)
            except Closed:
                return
            except EblaError as error:
                _log.warning("an order from another process is not served yet: %s", error)
                pause_seconds = RETRY_SECONDS
            except Exception:
                _log.exception("an order from another process cannot be served")

    def _serve(self, path: str) -> None:
        node = self._coordination.read(path)
        request = None if node is None else decode(path, node)
        if node is None or not isinstance(request, Request):
            return
        try:
            taken = encoder.encode(msgspec.structs.replace(request, is_taken=True))
            version = self._coordination.compare_and_set(path, taken, node.version)
        except CoordinationConflict:
            return  # its sender took it back
        answer = self._answer(request)
        for _ in SAVES.attempts(self._clock):
            try:
                self._coordination.compare_and_set(path, encoder.encode(answer), version)
            except CoordinationConflict:
                return  # nobody waits for it any more, or it is there and its confirmation was lost
            except (OutcomeUnknown, Unavailable):
                continue
            return
        raise Unavailable(f"{path}: the answer cannot be left, the coordination service does not answer")

    def _answer(self, request: Request) -> Letter:
        try:
            order = self._read_order(request)
            result = self._carry_out(order)
        except Closed:
            raise  # the next owner does it
        except EblaError as error:
            return Refused(request.id, _public_name(error), str(error), self._clock.microseconds())
        except Exception as error:
            _log.exception("an order from another process failed")
            return Refused(request.id, "StoreError", f"it failed: {error!r}", self._clock.microseconds())
        done = Done(request.id, result, self._clock.microseconds(), subject_of(order))
        if len(encoder.encode(done)) > ANSWER_BYTES_MAX:
            told = "the answer is too large to be sent: ask in the process that has the store open"
            return Refused(request.id, "StoreError", told, self._clock.microseconds())
        return done

    def _read_order(self, request: Request) -> Order:
        if request.order is not None:
            return request.order
        assert request.file is not None
        try:
            content = self._files.read(request.file)
        except OSError as error:
            raise StoreError(f"{request.file}, a request of a job, cannot be read: {error}") from error
        if google_crc32c.value(content) != request.file_crc:
            raise Corruption(request.file, "its checksum is wrong: send the request again")
        return _order_decoder.decode(content)

    def _remove_old(self, paths: list[str]) -> None:
        for path in paths:
            with contextlib.suppress(EblaError):  # they do no harm
                node = self._coordination.read(path)
                letter = None if node is None else decode(path, node)
                if node is None or letter is None or isinstance(letter, Request):
                    continue
                if self._clock.microseconds() - letter.microseconds > ANSWER_KEPT_MICROSECONDS:
                    self._coordination.delete(path, node.version)


def subject_of(order: Order) -> str:
    """Return what a bulk commit is about, beside its job: one answer serves two senders only if both mean the same."""
    return f"{order.table_id} {order.app or ''}" if isinstance(order, BulkCommit) else ""


def _public_name(error: EblaError) -> str:
    """Return the name of the nearest kind of error that both sides know."""
    kinds = (kind.__name__ for kind in type(error).__mro__ if issubclass(kind, EblaError))
    return next(name for name in kinds if name in errors.__all__)


# --- the sender's side ---------------------------------------------------------------------------
