"""Events of tablets: their fragments changed, their rows changed, they were unloaded.

    a change, under locks  --note-->  queue  --deliver, no lock held-->  listeners, one event after the other

Whoever changes a table puts a note into the queue, which costs next to nothing, and delivers when the locks are free.
What happened is worked out then, from what there was before and after. A listener hears of one tablet, or of all; it
must not block, and must not raise: it sets a flag, say, which its owner sees at the next step.

Invariants: events are delivered in the order of the changes, one at a time; a listener that is added or removed, by a
callback or by another thread, while an event is being delivered, begins or ceases to hear after that event; no lock of
the store is held during a callback, and a callback may change tables.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.service.listener import Event, FragmentsChanged, RangeChanged, TabletListener, Unloaded, tell

__all__ = ["Events", "events_between"]


def events_between(before: TableMetadata, after: TableMetadata) -> Iterator[Event]:
    """Yield what happened to the tablets of a table between two states of its METADATA."""
    if before.tablets is after.tablets:
        return
    table = after.table_id
    is_alike = len(before.tablets) == len(after.tablets)
    for at, tablet in enumerate(before.tablets):
        if is_alike and after.tablets[at] is tablet:
            continue  # most of them, of what may be many
        now = after.by_id(tablet.id)
        if now is tablet:
            continue
        if now is None:
            successors = tuple(one.id for one in after.overlapping(tablet.range))
            yield RangeChanged(table, tablet.id, tablet.range, successors)
        else:
            yield from _fragment_events(table, tablet, now)


def _fragment_events(table: str, before: TabletMetadata, after: TabletMetadata) -> Iterator[Event]:
    for group in sorted({state.group for tablet in (before, after) for state in tablet.groups}):
        old, new = before.group(group).fragments, after.group(group).fragments
        if old is new or old == new:
            continue
        known, there = set(old), set(new)
        removed = tuple(ref for ref in old if ref not in there)
        yield FragmentsChanged(table, before.id, group, removed, tuple(ref for ref in new if ref not in known))


class _Thread(threading.local):
    held = 0
    delivering = 0


class Events:
    """The queue and the listeners. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._queue: deque[tuple[TableMetadata, TableMetadata] | Event] = deque()
        self._listeners: dict[str | None, list[TabletListener]] = {}
        self._is_delivering = False
        # Who is to be added or removed. Anybody adds to it, without the lock.
        self._later: deque[tuple[bool, TabletListener, str | None]] = deque()
        # Of each thread: how many blocks hold events back, and how many of its callers deliver some.
        self._own = _Thread()

    # --- listeners ---

    def add(self, listener: TabletListener, tablet: str | None = None) -> None:
        """Tell a listener of one tablet, or of all. Every call needs a `remove` of its own."""
        self._later.append((True, listener, tablet))
        with self._lock:
            self._settle()

    def remove(self, listener: TabletListener, tablet: str | None = None) -> None:
        """Undo one `add` with the same arguments.

        It waits for no lock: a scan that nobody wants any more ends where Python clears it away, which may be anywhere.
        """
        self._later.append((False, listener, tablet))
        if self._lock.acquire(blocking=False):  # else the next event sees to it before it is delivered
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        """Carry out what was asked for, unless an event is being delivered. The lock is held."""
        if self._is_delivering:
            return
        while self._later:
            is_added, listener, tablet = self._later.popleft()
            listeners = self._listeners.setdefault(tablet, [])
            if is_added:
                listeners.append(listener)
            else:
                at = next((n for n, known in enumerate(listeners) if known is listener), None)
                assert at is not None, "a listener is removed once for each time it was added"
                del listeners[at]
            if not listeners:
                del self._listeners[tablet]

    # --- events ---

    def note(self, before: TableMetadata, after: TableMetadata) -> None:
        """Put a change of METADATA into the queue. Any lock may be held."""
        with self._lock:
            if self._listeners or self._later:
                self._queue.append((before, after))

    def note_unloaded(self, table: TableMetadata) -> None:
        """Put into the queue that all tablets of a table are not served any more. Any lock may be held."""
        with self._lock:
            if self._listeners or self._later:
                self._queue.extend(Unloaded(table.table_id, tablet.id) for tablet in table.tablets)

    def deliver(self) -> None:
        """Deliver what is in the queue. No lock of the store may be held.

        If another thread, or a callback further up on this one, is delivering already, that one goes on with it.
        """
        if not self._queue or self._own.held:
            return
        while True:
            with self._lock:
                if self._is_delivering or not self._queue:
                    return
                noted = self._queue.popleft()
                self._is_delivering = True
            try:
                events = [noted] if isinstance(noted, Event) else events_between(*noted)
                for event in events:
                    self._dispatch(event)
            finally:
                with self._lock:
                    self._is_delivering = False
                    self._settle()

    @property
    def is_callback(self) -> bool:
        """Whether this thread delivers an event further up: it may be the one that others wait for."""
        return self._own.delivering > 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Deliver nothing on this thread within the block, for it holds locks; do it at the end."""
        self._own.held += 1
        try:
            yield
        finally:
            self._own.held -= 1
            self.deliver()

    def _dispatch(self, event: Event) -> None:
        with self._lock:
            self._is_delivering = False
            self._settle()  # what a callback of the event before has asked for
            self._is_delivering = True
            heard = [*self._listeners.get(event.tablet, ()), *self._listeners.get(None, ())]
        self._own.delivering += 1
        try:
            for listener in {id(one): one for one in heard}.values():
                tell(listener, event)
        finally:
            self._own.delivering -= 1
