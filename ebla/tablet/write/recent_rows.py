"""Which rows changed lately: a bounded memory for conflict checks and for the row cache.

A row transaction asks whether a row changed after txn T. Remembering every row would grow without bound, so the answer
comes from a fixed number of slots, each with the newest txn of any row that falls into it:

    slot txn <= T    nobody changed the row since T: certain, and the usual case
    slot txn  > T    perhaps this row, perhaps another one in the slot: the row itself is looked up

What is forgotten (a restart, a slot shared with a busier row) costs a look-up and never a wrong answer. All rows of a
batch are handled at once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.order import Indices, key_hash_of, key_hashes

# The slots of many rows, or the slot of one.
Slots: TypeAlias = Indices | int

_NONE = np.zeros(0, dtype=np.int64)
_FIRST = np.zeros(1, dtype=np.int64)


class RecentRows:
    """Newest txns of rows, by slot. Guarded by the lock of its owner, except for reads of single slots."""

    def __init__(self, slots: int, floor_txn: int) -> None:
        """`floor_txn` is the newest txn at the start: whether a row changed before it is not known here."""
        assert slots & (slots - 1) == 0, "the number of slots is a power of two"
        self._mask = np.uint64(slots - 1)
        self._mask_number = slots - 1
        # No slot is older than the floor. Those that are still zero take no memory: opening touches none of them.
        self._floor = floor_txn
        self._txns: npt.NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self._watched: npt.NDArray[np.bool_] = np.zeros(slots, dtype=np.bool_)
        # The same, of which single ones are Python's numbers: numpy takes three times as long to give one.
        self._txn_of = memoryview(self._txns)  # type: ignore[arg-type]
        self._is_watched = memoryview(self._watched)  # type: ignore[arg-type]

    def slots_of(self, rows: pa.Array, salt: int) -> Indices:
        """Return the slot of every row; `salt` tells the rows of one table from those of another."""
        if len(rows) == 1:
            return np.array([self.slot_of(rows[0].as_py(), salt)])
        hashes = key_hashes(rows) ^ np.uint64(salt)
        slots: Indices = (hashes & self._mask).astype(np.int64)
        return slots

    def changed_after(self, slots: Indices, txn: int) -> npt.NDArray[np.bool_]:
        """Tell which rows may have changed after `txn`; those that are False certainly did not. For one: `newest`."""
        if self._floor > txn:
            return np.ones(len(slots), dtype=np.bool_)
        changed: npt.NDArray[np.bool_] = self._txns[slots] > txn
        return changed

    def change(self, slots: Slots, txn: int) -> npt.NDArray[np.int64]:
        """Note that these rows change at `txn`; return the places in `slots` of rows somebody watches."""
        if isinstance(slots, int):
            self._txn_of[slots] = txn
            return _FIRST if self._is_watched[slots] else _NONE
        self._txns[slots] = txn
        watched = self._watched[slots]
        return np.flatnonzero(watched) if watched.any() else _NONE

    def change_all(self, txn: int) -> None:
        """Note that any row may have changed at `txn`."""
        self._floor = max(self._floor, txn)

    def slot_of(self, row: bytes, salt: int) -> int:
        """Return the slot of one row."""
        return (key_hash_of(row) ^ salt) & self._mask_number

    def newest(self, slot: int) -> int:
        """Return the newest txn of any row in a slot."""
        txn = self._txn_of[slot]
        return txn if txn > self._floor else self._floor

    def watch(self, slot: int) -> None:
        """Ask for changes in a slot to be pointed out by `change`."""
        self._is_watched[slot] = True
