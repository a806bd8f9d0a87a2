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
from ebla.threads.sleeper import Sleeper

__all__ = ["Turns"]

# So many puts are done in one turn at most.
TOGETHER_MAX = 16


class _Request(Sleeper):
    """Somebody who waits: for the turn, or for another to do it for him."""

    __slots__ = ("error", "item", "txn")

    def __init__(self, item: Any) -> None:
        super().__init__()
        self.item = item
        # Set by others, before they wake him. None of them, nor the turn: he does it himself, without one.
        self.txn: int | None = None
        self.error: EblaError | None = None


class Turns:
    """The turns of one table. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._owner: _Request | None = None  # who has the turn
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
        own = _Request(item)
        try:
            with self._lock:
                is_free = self._owner is None
                if is_free:
                    self._owner = own
                else:
                    self._waiting.append(own)
            if not is_free:
                own.wait()
                if own.error is not None:
                    raise own.error
                if own.txn is not None:
                    return own.txn
                if self._owner is not own:
                    return alone(item)
            return self._do(own, alone, together)
        except BaseException:
            self._leave(own)  # if it was interrupted before the turn, or between
            raise

    def _do(self, own: _Request, alone: Callable[[Any], int], together: Callable[[Sequence[Any]], int | None]) -> int:
        """Use the turn, and pass it on."""
        others: list[_Request] = []
        try:
            with self._lock:
                others, self._waiting = self._waiting[: TOGETHER_MAX - 1], self._waiting[TOGETHER_MAX - 1 :]
            if not others:
                return alone(own.item)
            txn = together([own.item, *(other.item for other in others)])
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
            self._pass_on(own)
            for other in others:
                other.wake()
        return alone(own.item) if txn is None else txn

    def _pass_on(self, own: _Request) -> None:
        """Let the next one have the turn, if it is this one's."""
        with self._lock:
            if self._owner is own:
                self._owner = self._waiting.pop(0) if self._waiting else None
                if self._owner is not None:
                    self._owner.wake()

    def _leave(self, own: _Request) -> None:
        """Give up waiting, or the turn."""
        with self._lock:
            if own in self._waiting:
                self._waiting.remove(own)
        self._pass_on(own)
