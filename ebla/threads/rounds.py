"""What is to be done now and then, a second or so apart, by whichever thread comes by."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Rounds"]


class Rounds:
    """Runs what was added, in that order. Used by one thread at a time; added to before, or by anybody meanwhile."""

    def __init__(self, *work: Callable[[], object]) -> None:
        self._work = [*work]

    def add(self, work: Callable[[], object]) -> None:
        """Have something done in every round from the next on."""
        self._work.append(work)

    def run(self) -> None:
        """Do all of it once."""
        for work in [*self._work]:
            work()
