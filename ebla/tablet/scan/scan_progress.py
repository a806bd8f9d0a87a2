"""How far a scan has come: what it has given, what is read ahead, what is planned, and what is not even that.

    key range   |======================|-----------|-----------|.........................|
                  given                 read ahead   planned     not planned yet
                                        `----------------- rest -----------------------'

Only the *rest* is needed to go on. What is planned is windows of one tablet at a time, cut where its fragments have
their blocks; when fragments or ranges change, an event says so and the plan is made anew. When the scan is let go of,
as one among too many or unused for long, what is read ahead goes as well, and is read again if it is asked for.

Invariant: every row of the range is in exactly one of the four parts, whoever calls `release` and whenever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from ebla.model.ranges import KeyRange
from ebla.service.listener import FragmentsChanged, RangeChanged, TabletListener, Unloaded
from ebla.tablet.read.windows import Window, after
from ebla.tablet.scan.scanners import Scanners
from ebla.tablet.tables.events import Events

__all__ = ["ScanProgress", "Windows"]

T = TypeVar("T")


class Windows(Protocol[T]):
    """What a scan is cut into."""

    @property
    def inline_rows(self) -> int:
        """How many records a window has at most that is not worth another thread."""
        ...

    def plan(self, rest: KeyRange) -> tuple[list[Window], KeyRange | None]:
        """Return the windows of the first tablet of a range, and what is left of the range after it."""
        ...

    def read(self, window: KeyRange) -> T:
        """Read a window."""
        ...

    def read_ahead(self, window: KeyRange) -> Future[T]:
        """Have a window read by another thread."""
        ...


class ScanProgress(TabletListener, Generic[T]):
    """Gives the windows of a scan in order, once each. One thread reads; any may `release`.

    Short windows are read here, long ones ahead, by other threads.
    """

    def __init__(
        self,
        table: str,
        rows: KeyRange,
        *,
        reverse: bool,
        windows: Windows[T],
        ahead_max: int,
        scanners: Scanners,
        events: Events,
    ) -> None:
        # Set once.
        self._table = table
        self._rows = rows
        self._reverse = reverse
        self._source = windows
        self._ahead_max = ahead_max
        self._inline_rows = windows.inline_rows
        self._scanners = scanners
        self._events = events
        self._lock = threading.RLock()  # a scan may be cleared away by Python while it lets go
        # Used by the reading thread alone.
        self._is_known = False
        # Guarded by _lock.
        self._rest: KeyRange | None = None if rows.is_empty else rows
        self._unplanned = self._rest
        self._windows: deque[Window] = deque()
        self._ahead: deque[tuple[KeyRange, Future[T]]] = deque()
        self._is_stale = False
        self._releases = 0

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                window, future, releases = self._next()
                if window is None:
                    return
                found = self._source.read(window) if future is None else future.result()
                self._given(window, releases)
                if self._ahead:
                    self._enter()
                yield found
                if self._rest is not None:
                    self._enter()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of everything for good."""
        self.release()
        if self._is_known:
            self._is_known = False
            self._scanners.leave(self)
            self._events.remove(self)

    def release(self) -> None:
        """Let go of what is read ahead and planned; the next step begins with what was not given yet."""
        with self._lock:
            self._forget()
            self._releases += 1

    # --- events: they only raise a flag ---

    def on_fragments_changed(self, event: FragmentsChanged) -> None:
        """Note that the plan is cut where there are no blocks any more."""
        if event.table == self._table:
            self._is_stale = True

    def on_range_changed(self, event: RangeChanged) -> None:
        """Note that the plan is for tablets that are gone."""
        if event.table == self._table:
            self._is_stale = True

    def on_unloaded(self, event: Unloaded) -> None:
        """Let go of what is held of a table that is not served any more."""
        if event.table == self._table:
            self.release()

    # --- the reading thread ---

    def _enter(self) -> None:
        """Be one of the scans under way, used now. A scan that ends with its first window never is one."""
        if not self._is_known:
            self._is_known = True
            self._events.add(self)
            self._is_stale = True  # what happened before is not known
        self._scanners.touch(self)

    def _next(self) -> tuple[KeyRange | None, Future[T] | None, int]:
        """Return the next window to give, and its rows if they are read ahead; None at the end.

        The number is that of the releases so far: one that comes before the window is given takes it for not given.
        """
        is_planned = False
        while True:
            with self._lock:
                # A plan just made is good for a window, whatever has changed meanwhile: or it might be made for ever.
                if self._is_stale and not is_planned:
                    self._is_stale = False
                    self._windows.clear()
                    self._unplanned = self._rest if not self._ahead else self._after(self._ahead[-1][0])
                unplanned = self._unplanned
                if self._windows:
                    window, rows = self._windows[0]
                    if rows <= self._inline_rows and not self._ahead:
                        self._windows.popleft()
                        return window, None, self._releases
                    if len(self._ahead) <= self._ahead_max:
                        self._windows.popleft()
                        self._ahead.append((window, self._source.read_ahead(window)))
                        continue
                    return *self._ahead.popleft(), self._releases
                if unplanned is None or len(self._ahead) > self._ahead_max:
                    return *(self._ahead.popleft() if self._ahead else (None, None)), self._releases
                releases = self._releases
            windows, left = self._source.plan(unplanned)
            with self._lock:
                if releases == self._releases:
                    self._windows.extend(windows)
                    self._unplanned = left
                    is_planned = True

    def _given(self, window: KeyRange, releases: int) -> None:
        with self._lock:
            self._rest = self._after(window)
            if releases != self._releases:
                self._forget()  # it was let go of while the window was read: the window is not to be read again

    def _forget(self) -> None:
        """Be as if nothing had been read ahead or planned. The lock is held."""
        while self._ahead:
            self._ahead.popleft()[1].cancel()
        self._windows.clear()
        self._unplanned = self._rest

    def _after(self, window: KeyRange) -> KeyRange | None:
        return after(self._rows, window, reverse=self._reverse)
