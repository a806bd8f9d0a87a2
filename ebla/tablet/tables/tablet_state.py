"""What a server keeps of one tablet beside its memory, which is in the table's view.

A tablet counts its commits: the *index* of a commit is its place among those of the tablet, as the txn is its place
among all. The parts of a tablet in the log are told apart by it, and METADATA says by it how far the tablet is flushed.
"""

from __future__ import annotations

__all__ = ["TabletState"]


class TabletState:
    """The state of one tablet on this server. Guarded by the commit lock."""

    __slots__ = ("index", "is_log_taken")

    def __init__(self) -> None:
        self.index = 0
        """The newest index that was given to a commit."""
        self.is_log_taken = False
        """Whether METADATA says, or is about to say, that its writes are in the log of this server."""

    def saw_index(self, index: int) -> None:
        """Note an index that was found in the log or in METADATA: later ones are greater."""
        self.index = max(self.index, index)
