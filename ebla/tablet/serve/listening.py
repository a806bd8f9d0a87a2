"""Listeners that a user has added: who may be removed, and what may be added."""

from __future__ import annotations

import threading
from collections import Counter

from ebla.errors import RequestError, shown
from ebla.service.listener import TabletListener
from ebla.tablet.tables.events import Events

__all__ = ["Listening"]


class Listening:
    """Adds and removes listeners of a store. Safe to use from several threads, and from their callbacks."""

    def __init__(self, events: Events) -> None:
        # Set once.
        self._events = events
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._added: Counter[tuple[int, str | None]] = Counter()

    def add(self, listener: TabletListener, tablet: str | None) -> None:
        """Tell a listener of one tablet, or of all."""
        _check(listener, tablet)
        with self._lock:
            self._added[id(listener), tablet] += 1
            self._events.add(listener, tablet)

    def remove(self, listener: TabletListener, tablet: str | None) -> None:
        """Undo one `add` with the same arguments."""
        _check(listener, tablet)
        with self._lock:
            key = (id(listener), tablet)
            if not self._added[key]:
                del self._added[key]
                raise RequestError("this listener was not added, or not for that tablet: give what was added")
            self._added[key] -= 1
            if not self._added[key]:
                del self._added[key]
            self._events.remove(listener, tablet)


def _check(listener: object, tablet: object) -> None:
    if not isinstance(listener, TabletListener):
        raise RequestError(f"a listener is an object of a class made from ebla.TabletListener, not {shown(listener)}")
    if not isinstance(tablet, (str, type(None))):
        raise RequestError(f"a tablet is named by its id, as tablets() shows it, not by {shown(tablet)}")
