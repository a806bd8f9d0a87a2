"""Turns: small puts to one table that come at the same time are admitted and committed as one.

    thread 1   put a ---- admit, commit a -----> log
    thread 2        put b . . . . . . . . admit, commit b + c + d ----> log
    thread 3          put c . . . . . . . . . . . . . . . . . . . ----> log
    thread 4            put d . . . . . . . . . . . . . . . . . . ----> log

To admit a put is some thirty calls, whether it has ten rows or thousands, and threads that make them at the same time
take the interpreter from each other at every one. So one thread at a time has the turn. Who comes meanwhile waits; the
first who waits gets the next turn, and does in it what all others wait for by then. Nobody waits for the log in his
turn: everybody waits for his commit after it, by himself.

If puts cannot be done together (one is wrong, or two have the same row), everybody does his own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ebla.errors import EblaError, OutcomeUnknown
from ebla.tablet.sleeper import Sleeper

__all__ = ["Turns"]

# So many puts are done in one turn at most.
TOGETHER_MAX = 16


class _Request(Sleeper):
    """Somebody who waits: for the turn, or for another to do it for him."""

    __slots__ = ("error", "has_turn", "item", "txn")

    def __init__(self, item: Any) -> None:
        super().__init__()
        self.item = item
        # Set by others, before they wake him. None of them: he does it himself, without a turn.
        self.has_turn = False
        self.txn: int | None = None
        self.error: EblaError | None = None


class Turns:
    """The turns of one table. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._is_taken = False
        self._waiting: list[_Request] = []

    @property
    def waiting(self) -> int:
        """How many wait for the turn."""
        return len(self._waiting)

    def take(self, item: Any, alone: Callable[[Any], int], together: Callable[[Sequence[Any]], int | None]) -> int:
        """Commit a put and return its txn, with others that wait if there are any.

        `alone` commits one. `together` commits several as one; or it returns None, and has done nothing, if that cannot
        be. What it raises, everybody gets. Neither waits for the log.
        """
        own: _Request | None = None
        with self._lock:
            if self._is_taken:
                own = _Request(item)
                self._waiting.append(own)
            self._is_taken = True
        if own is not None:
            try:
                own.wait()
            except BaseException:
                self._leave(own)
                raise
            if own.error is not None:
                raise own.error
            if own.txn is not None:
                return own.txn
            if not own.has_turn:
                return alone(item)
        return self._do(item, alone, together)

    def _do(self, item: Any, alone: Callable[[Any], int], together: Callable[[Sequence[Any]], int | None]) -> int:
        """Use the turn, and pass it on."""
        others: list[_Request] = []
        try:
            with self._lock:
                others, self._waiting = self._waiting[: TOGETHER_MAX - 1], self._waiting[TOGETHER_MAX - 1 :]
            if not others:
                return alone(item)
            txn = together([item, *(other.item for other in others)])
            for other in others:
                other.txn = txn
        except BaseException as error:
            # An interrupt hits one thread, and the others must not take their puts for done, or for not done.
            known = (
                error
                if isinstance(error, EblaError)
                else OutcomeUnknown("a put was interrupted: read before repeating it")
            )
            for other in others:
                other.error = known
            raise
        finally:
            self._pass_on()
            for other in others:
                other.wake()
        return alone(item) if txn is None else txn

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                following = self._waiting.pop(0)
                following.has_turn = True
                following.wake()
            else:
                self._is_taken = False

    def _leave(self, own: _Request) -> None:
        """Give up waiting."""
        with self._lock:
            if own in self._waiting:
                self._waiting.remove(own)
                return
        if own.has_turn:
            self._pass_on()
