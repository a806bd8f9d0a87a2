"""Trying again: what a client repeats by itself, for how long, and what it tells in the end.

    StaleRoute              nothing happened; ask where the tablet is, then again
    Unavailable, TimedOut   nothing happened, or nothing that matters; ask again, after a pause that grows
    OutcomeUnknown          the same, for what may be repeated: reads, and changes that have a request id
    anything else           told at once: it would fail again, or it is for the caller to decide

The last error is told when the time is over. A table that was taken offline is not waited for: it may stay so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ebla.errors import Closed, EblaError, OutcomeUnknown, SchemaChanged, StaleRoute, TimedOut, Unavailable
from ebla.retry import NETWORK

__all__ = ["persist"]

_Answer = TypeVar("_Answer")

_REPEATED = (Unavailable, StaleRoute, TimedOut, Closed)


def is_worth_repeating(error: EblaError, *, may_repeat: bool) -> bool:
    """Tell whether the same request may succeed later, and does no harm if it was carried out already."""
    if isinstance(error, OutcomeUnknown):
        return may_repeat
    return type(error) in _REPEATED and not isinstance(error, SchemaChanged)


def persist(
    attempt: Callable[[float], _Answer],
    look_again: Callable[[EblaError, float], None],
    timeout_seconds: float,
    *,
    may_repeat: bool = True,
) -> _Answer:
    """Return what `attempt`, which is given the time that is left, returns at last.

    `look_again` is called between attempts, with the time that is left: it may raise, if there is no use in another
    one. Once the outcome of an attempt was unknown, it is no use to know that a later one came to nothing: then that
    is told.
    """
    ends_at_seconds = time.monotonic() + timeout_seconds
    doubt: OutcomeUnknown | None = None
    is_stale_again = False  # the master may not know yet where a tablet is: then asking at once does not help
    for pause_seconds in NETWORK.pauses(random.random):
        try:
            return attempt(max(0.001, ends_at_seconds - time.monotonic()))
        except EblaError as error:
            if not is_worth_repeating(error, may_repeat=may_repeat):
                raise
            doubt = error if isinstance(error, OutcomeUnknown) else doubt
            if time.monotonic() + pause_seconds >= ends_at_seconds:
                raise (doubt or error) from None
            told = error
        try:
            look_again(told, ends_at_seconds - time.monotonic())
        except Unavailable as error:
            raise (doubt or error) from None
        if type(told) is not StaleRoute or is_stale_again:
            time.sleep(pause_seconds)
        is_stale_again = type(told) is StaleRoute
    raise AssertionError("pauses never end")
