"""Who makes a call, and until when: what a handler is told beside the request."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ebla.access.guard import Access
from ebla.errors import TimedOut

__all__ = ["Caller", "NotQuick"]


class NotQuick(Exception):
    """A quick method would have to wait: raised by its handler before it did anything; the pool carries it out then."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that made a call, as it calls itself; the moment, on the steady clock, when it no longer waits."""

    client: str
    deadline_seconds: float
    is_hurried: bool = False  # whether the reading thread itself carries it out: `NotQuick` may be raised
    access: Access | None = None  # what it may do; None where everybody may do everything

    @property
    def left_seconds(self) -> float:
        """How long it still waits."""
        return max(0.0, self.deadline_seconds - time.monotonic())

    def check_in_time(self, doing: str) -> None:
        """Raise `TimedOut` if it waits no longer."""
        if time.monotonic() >= self.deadline_seconds:
            raise TimedOut(f"{doing} was given up before it began: its time was over; retry, or allow it more time")
