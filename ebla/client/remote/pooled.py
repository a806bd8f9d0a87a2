"""A call in a pool of threads that nobody has to wait for in vain: whoever wants the answer can make it himself.

    begun by a thread of the pool      its answer is waited for
    not begun yet                      it is taken back, and made by whoever wants the answer

So a thread of the pool may ask for further calls in the same pool. If all threads did, and waited for what is queued
behind themselves, nothing would ever go on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Pooled"]

_Answer = TypeVar("_Answer")


class Pooled(Generic[_Answer]):
    """One call, whose answer is taken once, or which is dropped."""

    __slots__ = ("_call", "_future")

    def __init__(self, pool: ThreadPoolExecutor, call: Callable[[], _Answer]) -> None:
        # Set once.
        self._call = call
        self._future: Future[_Answer]
        try:
            self._future = pool.submit(call)
        except RuntimeError:  # the pool was shut down
            self._future = Future()

    def answer(self) -> _Answer:
        """Return what the call returns, or raise what it raises."""
        # If the pool was shut down, the call itself tells that the connection is closed.
        return self._call() if self._future.cancel() else self._future.result()

    def drop(self) -> None:
        """Do without the answer; what has begun goes on."""
        self._future.cancel()
