"""The sender of orders: a job of another process puts its order into the mail of the owner, and waits for the answer.

a request node  -->  done or refused, in the same node  -->  removed by whoever sent it
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from typing import Any, cast

import google_crc32c

from ebla import errors
from ebla.clock import Clock
from ebla.coordination.service import (
    VALUE_BYTES_MAX,
    CoordinationConflict,
    CoordinationService,
    Node,
    NodeMissing,
)
from ebla.errors import Corruption, EblaError, OutcomeUnknown, StoreError, TimedOut, Unavailable
from ebla.service.job_files import check_job
from ebla.service.job_orders import Answer, BulkResult, JobOrder, Order
from ebla.service.requests import Reply
from ebla.storage.files.files import Files
from ebla.tablet.jobs.bulk_mail import DIRECTORY, Done, Refused, Request, decode, encoder, subject_of

__all__ = ["order_by_mail"]

# A sender that hears nothing for so long looks whether there still is an owner.
PATIENCE_SECONDS = 0.5


def _raised(refused: Refused) -> EblaError:
    kind = getattr(errors, refused.error, StoreError) if refused.error in errors.__all__ else StoreError
    if kind is Corruption:  # which is made of file and reason
        kind = StoreError
    error: EblaError = kind(refused.message)
    return error


def order_by_mail(
    coordination: CoordinationService,
    files: Files,
    clock: Clock,
    order: JobOrder[Reply],
    *,
    timeout_seconds: float,
    on_silence: Callable[[], None] = lambda: None,
) -> Reply:
    """Have the owner of the store carry out an order, and return or raise what it answers.

    `on_silence` is called now and then while no answer comes: should there be no owner any more, it may become one.
    `TimedOut` means that nothing was done, `OutcomeUnknown` that it was begun: repeat it under the same job id.
    """
    sender = _Sender(coordination, files, cast(Order, order))
    heard = threading.Event()
    watch = coordination.watch(sender.path, lambda path: heard.set())
    deadline = clock.monotonic_seconds() + timeout_seconds
    try:
        while True:
            heard.clear()
            try:
                result: Any = sender.step()
                if result is not None:
                    return result  # type: ignore[no-any-return]
                if clock.monotonic_seconds() > deadline:
                    sender.give_up(timeout_seconds)
            except CoordinationConflict:
                continue  # it changed under our hands: look again
            except _Answered as answered:
                raise answered.error from None
            except (TimedOut, OutcomeUnknown):
                raise
            except EblaError as error:
                if not sender.is_sent:
                    raise
                # The request is on its way, whatever keeps us from looking: nobody may take it for one that was not.
                if clock.monotonic_seconds() > deadline:
                    raise OutcomeUnknown(
                        f"no answer about job {order.job} could be read ({error}): repeat it under the same job id"
                    ) from error
            if not heard.wait(PATIENCE_SECONDS):
                try:
                    on_silence()
                except EblaError as error:
                    # Nor if the store cannot be opened: whoever opens it next may find what a dead owner has begun.
                    raise OutcomeUnknown(
                        f"nobody answers about job {order.job}, and the store cannot be opened ({error}): mend that, "
                        "then repeat it under the same job id"
                    ) from error
    finally:
        watch.cancel()
        sender.close()


class _Answered(Exception):
    """The owner has answered with an error: unlike one on the way to it, that is certain."""

    def __init__(self, error: EblaError) -> None:
        super().__init__(str(error))
        self.error = error


class _Sender:
    """One request and what has become of it."""

    def __init__(self, coordination: CoordinationService, files: Files, order: Order) -> None:
        self._coordination = coordination
        self._files = files
        self._order = order
        self.path = f"{DIRECTORY}/{check_job(order.job)}"
        self._request: Request | None = None

    @property
    def is_sent(self) -> bool:
        """Whether the owner may have the request."""
        return self._request is not None

    def step(self) -> Answer | None:
        """Look at the node and do what is next; return the result once it is there."""
        node = self._coordination.read(self.path)
        if node is None:
            with contextlib.suppress(OutcomeUnknown):  # the next look tells
                self._coordination.create(self.path, encoder.encode(self._letter()))
            return None
        letter = decode(self.path, node)
        if isinstance(letter, Request):
            return None  # ours, or that of somebody else who runs the same job: one answer serves both
        is_ours = self._request is not None and letter.id == self._request.id
        if isinstance(letter, Done) and is_ours:
            self._remove(node)
            return letter.result
        is_same = isinstance(letter, Done) and letter.subject == subject_of(self._order)
        if isinstance(letter, Done) and is_same and isinstance(letter.result, BulkResult):
            return BulkResult(letter.result.txn, repeated=True)
        if isinstance(letter, Done) or not is_ours:
            with contextlib.suppress(OutcomeUnknown):
                self._coordination.compare_and_set(self.path, encoder.encode(self._letter()), node.version)
            return None
        self._remove(node)
        raise _Answered(_raised(letter))

    def give_up(self, timeout_seconds: float) -> None:
        """Take the request back and raise; `CoordinationConflict` if it was answered, or begun, at this moment."""
        node = self._coordination.read(self.path)
        letter = None if node is None else decode(self.path, node)
        is_ours = isinstance(letter, Request) and self._request is not None and letter.id == self._request.id
        if node is not None and isinstance(letter, Request) and is_ours and not letter.is_taken:
            self._coordination.delete(self.path, node.version)
            raise TimedOut(
                f"the owner of the store did not take job {self._order.job} in {timeout_seconds:g} s: "
                "nothing was changed, see what it does and repeat"
            )
        if node is not None and not isinstance(letter, Request):
            raise NodeMissing(self.path, "answered meanwhile")
        raise OutcomeUnknown(
            f"no answer about job {self._order.job} in {timeout_seconds:g} s: repeat the commit under the same job id"
        )

    def close(self) -> None:
        """Remove the file of a large request. Whoever still wants to read it could do nothing but repeat the job."""
        if self._request is not None and self._request.file is not None:
            with contextlib.suppress(OSError):
                self._files.delete(self._request.file)

    def _letter(self) -> Request:
        if self._request is None:
            name = str(uuid.uuid4())
            self._request = Request(name, self._order)
            if len(encoder.encode(self._request)) > VALUE_BYTES_MAX // 2:
                self._request = self._by_file(name)
        return self._request

    def _by_file(self, name: str) -> Request:
        content = encoder.encode(self._order)
        path = f"{DIRECTORY}/{self._order.job}-{name}.commit"
        try:
            with self._files.create(path) as file:
                file.write(content)
                file.sync()
            self._files.sync_directory(DIRECTORY)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}: free space, then repeat the commit") from error
        return Request(name, None, path, google_crc32c.value(content))

    def _remove(self, node: Node) -> None:
        with contextlib.suppress(CoordinationConflict, OutcomeUnknown, Unavailable):  # it does no harm
            self._coordination.delete(self.path, node.version)
