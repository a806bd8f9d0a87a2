"""What happened to tablets, numbered, for clients that ask from time to time what is new."""

from __future__ import annotations

import threading
from collections import deque

from ebla.rpc.methods import encode_body
from ebla.rpc.wire.messages import TabletEvents
from ebla.service.listener import Event, FragmentsChanged, RangeChanged, TabletListener, Unloaded
from ebla.service.service import Service

__all__ = ["EventLog"]

EVENTS_MAX = 10_000


class EventLog(TabletListener):
    """The newest events of a service, kept from the first question on. Safe to use from several threads."""

    def __init__(self, service: Service) -> None:
        # Set once.
        self._service = service
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._is_listening = False
        self._next = 1
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)

    def since(self, number: int | None) -> TabletEvents:
        """Return the events from a number on; None asks for none, and from which number on there will be some."""
        with self._lock:
            if not self._is_listening:
                self._service.add_listener(self, None)
                self._is_listening = True
            if number is None:
                return TabletEvents(self._next, ())
            count = min(len(self._events), max(0, self._next - number))
            found = list(self._events)[len(self._events) - count :]
            return TabletEvents(self._next, tuple((type(event).__name__, encode_body(event)) for event in found))

    def on_fragments_changed(self, event: FragmentsChanged) -> None:
        """Take note that fragments were added or replaced."""
        self._note(event)

    def on_range_changed(self, event: RangeChanged) -> None:
        """Take note that a tablet was split or joined."""
        self._note(event)

    def on_unloaded(self, event: Unloaded) -> None:
        """Take note that a tablet was unloaded."""
        self._note(event)

    def _note(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            self._next += 1
