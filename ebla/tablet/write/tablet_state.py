"""What a server keeps of one tablet beside its memory, which is in the table's view.

A tablet counts its commits: the *index* of a commit is its place among those of the tablet, as the txn is its place
among all. The parts of a tablet in the log are told apart by it, and METADATA says by it how far the tablet is flushed.

    index              given to a commit; its records are in memory, and queued for the log
    committed_index    the log holds it, synced, and every one before it
    safe txn           the largest txn below every commit that is not committed: what a reader sees of the tablet up to
                       it never changes, and it may be flushed

When a tablet comes back that others led meanwhile, its floor is raised: what was known of its rows does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ebla.storage.log.log_entry import Reply
from ebla.tablet.write.replies import Replies

__all__ = ["TabletState"]


class TabletState:
    """The state of one tablet on this server. Guarded by the commit lock."""

    __slots__ = ("_uncommitted", "committed_index", "floor_txn", "index", "is_log_taken", "is_replicated", "replies")

    def __init__(self, floor_txn: int = 0) -> None:
        self.index = 0
        """The newest index that was given to a commit."""
        self.committed_index = 0
        """The newest index that the log holds, and everything before it."""
        self.floor_txn = floor_txn
        """Whether a row changed at this txn or before is not known here, and has to be looked up."""
        self.is_log_taken = False
        """Whether METADATA says, or is about to say, that its writes are in the log of this server."""
        self.is_replicated = False
        """Whether other servers keep it, too: what is logged of it takes an index, whatever it is."""
        self.replies: Replies | None = None
        """What clients were told that it has carried out, once there is something."""
        self._uncommitted: deque[tuple[int, int]] | None = None  # indices with their txns, in order

    def allocate(self, txn: int) -> int:
        """Give the next index to the commit at `txn`, and return it."""
        index = self.index = self.index + 1
        if self._uncommitted is None:
            self._uncommitted = deque()
        self._uncommitted.append((index, txn))
        return index

    def commit(self, index: int) -> None:
        """Note that the log holds everything up to `index`."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= index:
            uncommitted.popleft()
        self.committed_index = max(self.committed_index, index)

    def saw_index(self, index: int) -> None:
        """Note an index that was found in the log or in METADATA, and so is committed: later ones are greater."""
        self.index = max(self.index, index)
        self.committed_index = max(self.committed_index, index)

    def begin_epoch(self, entries: Iterable[tuple[int, int]], last: int) -> None:
        """Begin with a log whose last index is `last`; its entries, indices and txns, are not known to be committed.

        They are when the first commit of the epoch is, which comes behind them. Whatever was given out here in former
        epochs, and is not in the log, never happened.
        """
        self.is_replicated = True
        self._uncommitted = deque(entries)
        self.index = last
        self.committed_index = self._uncommitted[0][0] - 1 if self._uncommitted else last

    def follow(self) -> None:
        """Be led elsewhere: what clients are told is told there."""
        self.is_replicated = False
        self.replies = None
        self._uncommitted = None

    def remember(self, replies: Iterable[Reply]) -> None:
        """Take over what clients were told."""
        if self.replies is None:
            self.replies = Replies()
        self.replies.restore(replies)

    def answered(self, request: tuple[str, int]) -> int | None:
        """Return the txn with which a request was answered; None if it was not carried out here."""
        return None if self.replies is None else self.replies.find(request)

    def safe_txn(self, newest: int) -> int:
        """Return the largest txn below every commit that is not committed, and `newest` where there is none."""
        return self._uncommitted[0][1] - 1 if self._uncommitted else newest
