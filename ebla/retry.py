"""Trying again: how often, and what lies between two attempts.

    RACES     at once, a few times     others may change the same node or files meanwhile, and seldom do
    CROWDS    at once, many times      others come and go all the time
    CHANGES   at once, and on          the same rows are changed by many threads
    SAVES     with pauses              METADATA may not answer for a moment
    PATIENCE  with pauses, and on      the coordination service may be away for some seconds
    NETWORK   with growing pauses      a server may be away, or elsewhere, for some seconds

After an unknown outcome, who tries again looks first at what is there, or repeats what may be done twice. When all
attempts are used up, the caller says what is known by then, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ebla.clock import Clock

__all__ = ["CHANGES", "CROWDS", "NETWORK", "PATIENCE", "RACES", "SAVES", "Backoff", "Retries"]

RACES: Final = range(8)
CROWDS: Final = range(100)
CHANGES: Final = range(1_000)


class Retries(NamedTuple):
    """So many attempts at most, with a pause before each but the first."""

    attempts_max: int
    pause_seconds: float

    def attempts(self, clock: Clock) -> Iterator[int]:
        """Return the numbers of the attempts, from 0 on, each when it is time for it."""
        for attempt in range(self.attempts_max):
            if attempt:
                clock.sleep(self.pause_seconds)
            yield attempt


SAVES: Final = Retries(10, 0.05)
PATIENCE: Final = Retries(64, 0.05)


class Backoff(NamedTuple):
    """Pauses that grow, each a little by chance, so that many who failed together do not come back together."""

    first_seconds: float
    growth: float
    longest_seconds: float

    def pauses(self, dice: Callable[[], float]) -> Iterator[float]:
        """Return the pauses, without end; `dice` gives numbers from 0 up to 1."""
        pause_seconds = self.first_seconds
        while True:
            yield pause_seconds * (0.5 + 0.5 * dice())
            pause_seconds = min(pause_seconds * self.growth, self.longest_seconds)


NETWORK: Final = Backoff(0.02, 1.6, 1.0)
