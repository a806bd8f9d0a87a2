"""Group commit: what several threads ask for while one transaction is under way goes into the next one together.

    thread 1   ask ----- leads: [1] ------------ done
    thread 2      ask - waits ................... leads: [2, 3, 4] ------- done
    thread 3        ask - waits ........................................... done
    thread 4          ask - waits ......................................... done

Whoever finds nobody leading takes all that has gathered, its own request included, and carries it out for everybody.
Every thread leads at most one group, so nobody works for others for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ebla.errors import OutcomeUnknown

__all__ = ["CommitQueue", "Request"]

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Request(Generic[Asked, Answer]):
    """What one thread asked for, and what became of it."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.is_done = False
        self._answer: Answer | None = None
        self._error: Exception | None = None

    def answer(self, answer: Answer) -> None:
        """Say that it was done."""
        self._answer, self.is_done = answer, True

    def fail(self, error: Exception) -> None:
        """Say that it was not done, or that this is unknown."""
        self._error, self.is_done = error, True

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
        self._changed = threading.Condition()
        self._waiting: list[Request[Asked, Answer]] = []  # guarded by _changed
        self._is_led = False  # guarded by _changed

    def submit(self, asked: Asked) -> Answer:
        """Have `asked` carried out, and return the answer or raise the error that it got."""
        request: Request[Asked, Answer] = Request(asked)
        with self._changed:
            self._waiting.append(request)
            while self._is_led and not request.is_done:
                self._changed.wait()
            if request.is_done:
                return request.result()
            self._is_led = True
            group, self._waiting = self._waiting, []
        try:
            self._carry_out(group)
        except Exception as error:
            _fail_rest(group, error)
        finally:
            # Some are still open only if this thread was interrupted: the others did not ask for that.
            _fail_rest(group, OutcomeUnknown("the thread that was committing for several was interrupted: read again"))
            with self._changed:
                self._is_led = False
                self._changed.notify_all()
        return request.result()


def _fail_rest(group: list[Request[Asked, Answer]], error: Exception) -> None:
    for member in group:
        if not member.is_done:
            member.fail(error)
