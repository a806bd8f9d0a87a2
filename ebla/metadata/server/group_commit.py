"""Group commit: what several threads ask for while one transaction is under way goes into the next one together.

    thread 1   ask ----- leads: [1] ------------ done
    thread 2      ask - waits ................... leads: [2, 3, 4] ------- done
    thread 3        ask - waits ........................................... done
    thread 4          ask - waits ......................................... done

Whoever finds nobody leading takes all that has gathered, its own requests included, and carries it out for everybody;
then it wakes those whose requests are done, and one of those that have gathered since, who leads next. Every thread
leads at most one group, so nobody works for others for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ebla.errors import OutcomeUnknown

__all__ = ["CommitQueue", "Request"]

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Request(Generic[Asked, Answer]):
    """What one thread asked for, and what became of it."""

    __slots__ = ("_answer", "_error", "asked", "is_done", "woken")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.is_done = False
        self._answer: Answer | None = None
        self._error: Exception | None = None
        # For the first request of a thread that waits: released when it is done, or is to lead.
        self.woken: threading.Lock | None = None

    def answer(self, answer: Answer) -> None:
        """Say that it was done."""
        self._answer, self.is_done = answer, True

    def fail(self, error: Exception) -> None:
        """Say that it was not done, or that this is unknown."""
        self._error, self.is_done = error, True

    @property
    def error(self) -> Exception | None:
        """Why it was not done, if it was not."""
        return self._error

    def result(self) -> Answer:
        """Return the answer or raise the error."""
        assert self.is_done
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


class CommitQueue(Generic[Asked, Answer]):
    """The requests of one table. `carry_out` gets them in the order of asking, one group at a time."""

    def __init__(self, carry_out: Callable[[list[Request[Asked, Answer]]], None]) -> None:
        self._carry_out = carry_out
        self._lock = threading.Lock()
        self._waiting: list[Request[Asked, Answer]] = []  # guarded by _lock
        self._leader: Request[Asked, Answer] | None = None  # the first request of who leads; guarded by _lock

    def submit(self, asked: Asked) -> Answer:
        """Have `asked` carried out, and return the answer or raise the error that it got."""
        return self.submit_all([asked])[0].result()

    def submit_all(self, asked: Sequence[Asked]) -> list[Request[Asked, Answer]]:
        """Have several things carried out in one group, and return what became of each."""
        requests: list[Request[Asked, Answer]] = [Request(one) for one in asked]
        if not requests:
            return []
        first = requests[0]
        try:
            with self._lock:
                self._waiting += requests
                if self._leader is None:
                    self._leader = first
                else:
                    first.woken = threading.Lock()
                    first.woken.acquire()
            if first.woken is not None:
                self._wait(first)
            if not first.is_done:
                self._lead(first)
        except BaseException:
            with self._lock:
                self._give_up(requests)
            raise
        return requests

    def _wait(self, first: Request[Asked, Answer]) -> None:
        assert first.woken is not None
        first.woken.acquire()

    def _lead(self, first: Request[Asked, Answer]) -> None:
        """Carry out all that has gathered. The thread whose first request is `first` is the leader, until the end."""
        group: list[Request[Asked, Answer]] = []
        try:
            with self._lock:
                group, self._waiting = self._waiting, []
            self._carry_out(group)
        except Exception as error:
            _fail_rest(group, error)
        finally:
            # Some are still open only if this thread was interrupted: the others did not ask for that.
            _fail_rest(group, OutcomeUnknown("the thread that was committing for several was interrupted: read again"))
            with self._lock:
                for request in group:
                    if request.woken is not None and request is not first:
                        request.woken.release()
                self._pass_on(first)

    def _give_up(self, requests: Sequence[Request[Asked, Answer]]) -> None:
        """Leave, interrupted. What nobody has begun with is never done; what others lead, they end. The lock is held.

        It must not be done later: nobody would know of it then, and files that it names may have been removed.
        """
        own = set(map(id, requests))
        requests[0].woken = None
        self._waiting = [request for request in self._waiting if id(request) not in own]
        self._pass_on(requests[0])

    def _pass_on(self, leader: Request[Asked, Answer]) -> None:
        """Let one who waits lead, if there is one, unless somebody else does already. The lock is held."""
        if self._leader is not leader:
            return
        self._leader = next((request for request in self._waiting if request.woken is not None), None)
        if self._leader is not None and self._leader.woken is not None:
            self._leader.woken.release()


def _fail_rest(group: list[Request[Asked, Answer]], error: Exception) -> None:
    for member in group:
        if not member.is_done:
            member.fail(error)
