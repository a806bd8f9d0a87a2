"""Time, and the transaction numbers made of it.

A txn is a hybrid logical clock: the microsecond of the commit, and a counter for what shares a microsecond.

    63                                10 9        0
    |  microseconds since 1970, UTC     | counter |      txn = microseconds << 10 | counter

`TxnClock` hands them out. It follows physical time, and goes on counting where physical time stands still or goes
back. Every commit has a microsecond to itself, for that is what the versions of its cells are named by; the counter
tells apart the layers of one bulk commit. Before the clock gives out a number it makes sure that a bound at or above
that number is on disk, a few seconds' worth at once; a restart begins above the bound, whatever the machine's clock
says then.

    restart      last                  bound on disk
    ----|--------|---------------------|-------------->     numbers up to `bound` may be given without touching the disk

Invariants: numbers only grow, also over restarts and under a clock that is set back; no number given out or observed is
above the bound on disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ebla.errors import ClockSkew

__all__ = [
    "COUNTER_BITS",
    "TXNS_PER_MICROSECOND",
    "Clock",
    "ManualClock",
    "SystemClock",
    "TxnClock",
    "microseconds_of",
    "txn_at",
]

# The one that goes on while a machine is suspended: a lease runs out then, too.
_steady_seconds: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)

COUNTER_BITS = 10
TXNS_PER_MICROSECOND = 1 << COUNTER_BITS
_COUNTER_MASK = TXNS_PER_MICROSECOND - 1


class Clock(Protocol):
    """Where time comes from. Everything that asks for the time or waits is given one of these."""

    def microseconds(self) -> int:
        """Return the wall clock in microseconds since 1970, UTC. It may be set back at any moment."""
        ...

    def monotonic_seconds(self) -> float:
        """Return seconds since some fixed moment, for measuring; never goes back, and counts what a machine slept."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock have passed."""
        ...


class SystemClock:
    """The machine's clock."""

    def microseconds(self) -> int:
        """Return the wall clock in microseconds since 1970, UTC."""
        return time.time_ns() // 1_000

    def monotonic_seconds(self) -> float:
        """Return the machine's monotonic clock."""
        return _steady_seconds()

    def sleep(self, seconds: float) -> None:
        """Block this thread for `seconds`."""
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is told otherwise; sleeping moves it."""

    def __init__(self, microseconds: int = 1_700_000_000_000_000) -> None:
        self._lock = threading.Lock()
        self._microseconds = microseconds  # guarded by _lock, as the next
        self._monotonic_seconds = 0.0

    def microseconds(self) -> int:
        """Return the wall clock as it was set."""
        with self._lock:
            return self._microseconds

    def monotonic_seconds(self) -> float:
        """Return all seconds by which the clock was advanced."""
        with self._lock:
            return self._monotonic_seconds

    def sleep(self, seconds: float) -> None:
        """Advance the clock and return at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        if seconds < 0:
            raise ValueError("time passes forwards only: use set_microseconds to set the wall clock back")
        with self._lock:
            self._microseconds += round(seconds * 1_000_000)
            self._monotonic_seconds += seconds

    def set_microseconds(self, microseconds: int) -> None:
        """Set the wall clock, also back; the monotonic clock is untouched."""
        with self._lock:
            self._microseconds = microseconds


def txn_at(microseconds: int) -> int:
    """Return the largest txn of that microsecond: a snapshot at it sees all that was committed until then."""
    return (microseconds << COUNTER_BITS) | _COUNTER_MASK


def microseconds_of(txn: int) -> int:
    """Return the microsecond in which `txn` was given out."""
    return txn >> COUNTER_BITS


class TxnClock:
    """Gives out transaction numbers that only grow. Safe to use from many threads.

    `bound` is what `reserve` persisted last, 0 for a new store. `reserve(new_bound)` must return only after the bound
    is durable; if it raises, no number is given out and the next call tries again. It is called with the clock's lock
    held, about once per `reserve_seconds`, and must not call back into this clock.
    """

    def __init__(
        self,
        clock: Clock,
        bound: int = 0,
        reserve: Callable[[int], None] = lambda bound: None,
        reserve_seconds: float = 10.0,
        skew_seconds_max: float = 60.0,
    ) -> None:
        # Set once.
        self._microseconds = clock.microseconds
        self._reserve = reserve
        self._reserve_txns = max(0, round(reserve_seconds * 1_000_000)) << COUNTER_BITS
        self._skew_microseconds_max = round(skew_seconds_max * 1_000_000)
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._last = bound
        self._bound = bound

    @property
    def last(self) -> int:
        """The largest txn given out or observed; before the first, the bound the clock began at."""
        return self._last

    def next(self) -> int:
        """Return a txn of a later microsecond than every one given out or observed before, also before a restart."""
        with self._lock:
            txn = max(self._microseconds(), (self._last >> COUNTER_BITS) + 1) << COUNTER_BITS
            if txn > self._bound:
                self._extend(txn)
            self._last = txn
            return txn

    def next_block(self, count: int) -> int:
        """Return the first of `count` consecutive txns, all of one microsecond, as `next` would."""
        assert 1 <= count <= TXNS_PER_MICROSECOND, "the txns of a block share a microsecond"
        with self._lock:
            first = max(self._microseconds(), microseconds_of(self._last) + 1) << COUNTER_BITS
            last = first + count - 1
            if last > self._bound:
                self._extend(last)
            self._last = last
            return first

    def observe(self, txn: int) -> None:
        """Make every later txn greater than `txn`, a number that came in a message or that somebody reads at.

        Raises `ClockSkew` if it lies further ahead than clocks may differ: one bad clock must not drag all others
        into the future.
        """
        if txn <= self._last:
            return
        with self._lock:
            if txn <= self._last:
                return
            ahead_microseconds = microseconds_of(txn) - self._microseconds()
            if ahead_microseconds > self._skew_microseconds_max:
                raise ClockSkew(
                    f"txn {txn} is {ahead_microseconds / 1e6:.3f} s in the future and clocks may differ by "
                    f"{self._skew_microseconds_max / 1e6:g} s: check the clock of the machine that it came from"
                )
        # An answer given at `txn` must stay true after a restart, so the bound has to cover it too.
        self.pass_by(txn)

    def pass_by(self, txn: int) -> None:
        """Make every later txn greater than `txn`, however far ahead it is: it bounds what a tablet has already."""
        with self._lock:
            if txn > self._bound:
                self._extend(txn)
            self._last = max(self._last, txn)

    def release(self) -> None:
        """Give back what was reserved and not used, so that the start after a clean close is on time."""
        with self._lock:
            if self._bound > self._last:
                # First in memory: whether or not a failing `reserve` lowered it on disk, we hold to the lower one.
                self._bound = self._last
                self._reserve(self._last)

    def _extend(self, txn: int) -> None:
        bound = txn + self._reserve_txns
        self._reserve(bound)
        self._bound = bound
