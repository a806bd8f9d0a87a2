"""How far compaction has gone, on record: for jobs in other processes that hold a txn by name.

    owner   says how far it goes  -->  looks who holds what  -->  merges no further than that
    job     holds a txn by name   -->  looks how far the owner has said to go

Each acts first and looks second, so that one of them at least sees the other. *A txn that was held while the record
stood at or below it is kept whole until it is let go.* Of an older one only METADATA tells what is still there, and a
compaction that is under way may yet pass it.
"""

from __future__ import annotations

import contextlib

from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import Corruption, OutcomeUnknown, Unavailable
from ebla.retry import RACES

__all__ = ["Horizon"]

NODE = "horizon"


class Horizon:
    """The record of how far compaction has gone. It only grows. Safe to use from several threads."""

    def __init__(self, coordination: CoordinationService) -> None:
        self._coordination = coordination
        self._known = 0  # it never was below this

    def read(self) -> int:
        """Return the txn up to which compaction may have left out what only older readers see."""
        return self._read()[0]

    def raise_to(self, txn: int) -> None:
        """Say that compaction goes up to `txn`, before it looks who holds what."""
        for _ in RACES:
            if txn <= self._known:
                return
            there, version = self._read()
            if there < txn:
                with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # the next look tells
                    self._coordination.put(NODE, str(txn).encode(), version)
                    there = txn
            self._known = max(self._known, there)
        raise Unavailable("how far compaction goes cannot be put on record: the coordination service does not answer")

    def _read(self) -> tuple[int, int | None]:
        node = self._coordination.read(NODE)
        if node is None:
            return 0, None
        try:
            return int(node.value), node.version
        except ValueError as error:
            raise Corruption(NODE, f"not a txn: {error}") from error
