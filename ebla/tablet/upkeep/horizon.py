"""How far compaction has gone, on record: for jobs in other processes that hold a txn by name.

    owner   says how far it goes  -->  looks who holds what  -->  merges no further than that
    job     holds a txn by name   -->  looks how far the owner has said to go

Each acts first and looks second, so that one of them at least sees the other. *A txn that was held while the record
stood at or below it is kept whole until it is let go.* Of an older one only METADATA tells what is still there, and a
compaction that is under way may yet pass it.
"""

from __future__ import annotations

from ebla.coordination.growing_number import GrowingNumber

__all__ = ["Horizon"]


class Horizon(GrowingNumber):
    """The txn up to which compaction may have left out what only older readers see."""

    NODE = "horizon"
    CALLED = "the txn up to which compaction goes"
