"""The txns of a server: a clock that never goes back, below a bound that others can read.

    given out or seen: last          bound in the coordination service
    ------------------|--------------|------>

No txn, no read and no safe txn above the bound is given out. The bound is raised only together with a check of the
lease's number. So whoever reads it after that lease was taken, and begins above it, begins above all of them.
"""

from __future__ import annotations

__all__ = ["Txns"]


class Txns:
    """Gives out txns: microseconds, or one more than the last where these stand still or go back."""

    __slots__ = ("bound", "last", "step", "wanted")

    def __init__(self, step: int) -> None:
        self.step = step
        self.last = 0
        self.bound = 0
        self.wanted = 0  # the bound should be raised to this

    def begin(self, bound: int) -> None:
        """A run of the server begins: it does not know what the one before gave out, up to its bound."""
        self.last = max(self.last, bound)
        self.bound = max(self.bound, bound)

    def raised(self, bound: int) -> None:
        """The bound was raised."""
        self.bound = max(self.bound, bound)

    def allocate(self, wall: int) -> int | None:
        """Return the next txn; None if the bound has to be raised first."""
        txn = max(self.last + 1, wall)
        if not self._reaches(txn):
            return None
        self.last = txn
        return txn

    def push(self, txn: int) -> bool:
        """Give out nothing up to `txn` from now on; False if the bound has to be raised first."""
        if txn <= self.last:
            return True
        if not self._reaches(txn):
            return False
        self.last = txn
        return True

    def keep_ahead(self, wall: int) -> None:
        """Have the bound raised before it is reached: a server that leads something is about to need it."""
        self._reaches(max(self.last + 1, wall))

    def _reaches(self, txn: int) -> bool:
        if txn + self.step // 2 > self.bound:
            self.wanted = max(self.wanted, txn + self.step)
        return txn <= self.bound
