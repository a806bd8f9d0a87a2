"""An answer that comes later: a handler returns it, and whoever has the reply then gives it, from any thread.

No thread waits meanwhile. It is for handlers that are asked in an order which counts, and answer when a disk is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Deferred"]


class Deferred:
    """A reply that is to come. It is given once; what is given again is passed over."""

    __slots__ = ("_give", "_lock", "_reply")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._give: Callable[[object], None] | None = None
        self._reply: tuple[object] | None = None

    def resolve(self, reply: object) -> None:
        """Give the reply."""
        with self._lock:
            if self._reply is not None:
                return
            self._reply = (reply,)
            give = self._give
        if give is not None:
            give(reply)

    def then(self, give: Callable[[object], None]) -> None:
        """Have a function called with the reply, at once if it is there already."""
        with self._lock:
            self._give = give
            reply = self._reply
        if reply is not None:
            give(reply[0])
