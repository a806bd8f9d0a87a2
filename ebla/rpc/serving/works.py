"""Requests that happen once, however often they are sent.

`Joined`: a change that is sent again while it is carried out waits for the first. What it was answered with, the engine
remembers itself, in the log.

`Works`: what is asked of a table or a store as a whole may take long. It is carried out in a thread of its own; who
asks waits for a while, is told how far it has come, and asks again by the same id. The last reply of every lane is
kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from ebla.errors import OutcomeUnknown, RequestError, TimedOut, Unavailable
from ebla.service.requests import RequestId
from ebla.service.service import Progress

__all__ = ["Joined", "Work", "Works"]

LANES_MAX = 10_000
RUNNING_MAX = 64


class Joined:
    """Changes that are being carried out, by id. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[RequestId, Future[Any]] = {}  # guarded by _lock

    def once(self, request_id: RequestId, carry_out: Callable[[], Any], left_seconds: float) -> Any:
        """Carry out a change, or wait for whoever does."""
        with self._lock:
            running = self._running.get(request_id)
            if running is None:
                self._running[request_id] = mine = Future[Any]()
        if running is not None:
            try:
                return running.result(left_seconds)
            except FutureTimeoutError:
                raise OutcomeUnknown(
                    "the same request is still being carried out: repeat it with the same id"
                ) from None
        try:
            result = carry_out()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(result)
            return result
        finally:
            with self._lock:
                del self._running[request_id]


class Work:
    """One request under way, or done."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcome: Future[Any] = Future()
        self.progress = (0, 0)

    @property
    def came_to_nothing(self) -> bool:
        """Whether nothing of it happened, and trying again may help: then a repetition is carried out anew."""
        return self.outcome.done() and isinstance(self.outcome.exception(), Unavailable)

    def told(self, done: int, total: int) -> None:
        """Take note of how far it has come."""
        self.progress = (done, total)


class Works:
    """What is being done with tables and stores as a whole, for all clients. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._works: dict[str, Work] = {}
        self._running = 0

    def begin(self, request_id: RequestId, is_repeat: bool, carry_out: Callable[[Progress], Any]) -> Work:
        """Begin a request, or find it if it was begun before."""
        lane, number = request_id
        with self._lock:
            known = self._works.get(lane)
            if known is not None and known.number == number and not known.came_to_nothing:
                return known
            if is_repeat and (known is None or known.number != number):
                raise OutcomeUnknown("nothing is known here of that request: look whether it happened, then decide")
            if known is not None and number < known.number:
                raise RequestError(f"request {number} of this client came after {known.number}: it is not carried out")
            if self._running >= RUNNING_MAX:
                raise Unavailable(f"{RUNNING_MAX} requests to tables and stores as a whole are under way: retry later")
            self._running += 1
            self._works.pop(lane, None)
            self._works[lane] = work = Work(number)
            self._forget_oldest()
        threading.Thread(target=self._run, args=(work, carry_out), name="ebla-rpc-work", daemon=True).start()
        return work

    def _forget_oldest(self) -> None:
        for lane, work in list(self._works.items()):
            if len(self._works) <= LANES_MAX:
                return
            if work.outcome.done():
                del self._works[lane]

    def _run(self, work: Work, carry_out: Callable[[Progress], Any]) -> None:
        try:
            work.outcome.set_result(carry_out(work.told))
        except BaseException as error:
            work.outcome.set_exception(error)
        finally:
            with self._lock:
                self._running -= 1


def wait_for(work: Work, seconds: float) -> bool:
    """Wait until a request is done, for so long at most; tell whether it is. What it raised is raised by its result."""
    try:
        work.outcome.exception(seconds)
    except (FutureTimeoutError, TimedOut):
        return work.outcome.done()
    return True
