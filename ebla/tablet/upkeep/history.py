"""History: how far back a store can be read, and what compaction may therefore leave out.

    bound      nobody reads below it: neither the history that is kept, nor a snapshot, nor what is only in memory
    reached    how far any compaction has been told that it may go; it only grows
    agreed     the bound, after it was put on record for other processes (horizon.py)

Who compacts raises `reached` first and looks at the pins second; who takes a snapshot makes a pin first and looks at
`reached` second. So one of the two sees the other.
"""

from __future__ import annotations

import threading

from ebla.clock import COUNTER_BITS, Clock
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.horizon import Horizon
from ebla.tablet.write.sequencer import Sequencer

__all__ = ["History"]

# History ends in so many steps of its length: how far it has come is put on record once for each, not every time.
HISTORY_STEPS = 100


class History:
    """Finds the txns up to which versions may go. Safe to use from several threads."""

    def __init__(
        self,
        commit_lock: threading.Lock,
        sequencer: Sequencer,
        pins: Pins,
        record: Horizon,
        clock: Clock,
        history_seconds: float,
    ) -> None:
        # Set once.
        self._commit_lock = commit_lock
        self._sequencer = sequencer
        self._pins = pins
        self._record = record
        self._clock = clock
        self._microseconds = round(history_seconds * 1_000_000)
        # Written by whoever compacts, read by others. It only grows.
        self.reached = 0

    def ended(self) -> int:
        """Return the txn of the moment at which the history that is kept begins."""
        ended = self._clock.microseconds() - self._microseconds
        return (ended - ended % max(1, self._microseconds // HISTORY_STEPS)) << COUNTER_BITS

    def unflushed(self, table: TableState, group: int, tablet: str | None = None) -> int:
        """Return the oldest txn of a group, or of it in one tablet, that may be in no fragment.

        It is in memory only, or not committed yet.
        """
        with self._commit_lock:
            view = table.view
            oldest = view.oldest_in_memory(group) if tablet is None else view.memory_of(tablet, group).txn_min
            following = self._sequencer.committed + 1
        return following if oldest is None else min(following, oldest)

    def bound(self, table: TableState, group: int) -> int:
        """Return the txn below which nobody reads a group any more, and nothing of it is only in memory."""
        horizon = min(self.unflushed(table, group) - 1, self.ended())
        pinned = self._pins.oldest()
        return max(0, horizon if pinned is None else min(horizon, pinned))

    def horizon_of(self, table: TableState, group: int) -> int:
        """Return the horizon of a group; whoever begins to hold a snapshot from now on sees that it has come so far."""
        self.reached = max(self.reached, self.bound(table, group))
        # As far as those can know of it who begin to hold a snapshot: it may have moved on since.
        return min(self.bound(table, group), self.reached)

    def agreed(self, table: TableState, group: int, horizon: int | None = None) -> int:
        """Return a horizon of a group once it is on record: whoever holds a txn by name looks there afterwards."""
        if horizon is None:
            horizon = self.horizon_of(table, group)
        self.announce(horizon)
        return min(horizon, self.bound(table, group))

    def announce(self, horizon: int) -> None:
        """Put on record, for other processes, how far a compaction goes."""
        self._record.raise_to(horizon)
