"""A number on record that only grows: whoever raises it raises it for all, and nothing lowers it."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import Corruption, OutcomeUnknown, Unavailable
from ebla.retry import RACES

__all__ = ["GrowingNumber"]


class GrowingNumber:
    """The number in one node, 0 before there was one. Safe to use from several threads."""

    NODE: ClassVar[str]
    CALLED: ClassVar[str]  # what the number is, with its unit

    def __init__(self, coordination: CoordinationService) -> None:
        self._coordination = coordination
        self._known = 0  # it never was below this

    def read(self) -> int:
        """Return the number as it is on record."""
        return self._read()[0]

    def raise_to(self, number: int) -> None:
        """Put a number on record, unless there is one as high."""
        for _ in RACES:
            if number <= self._known:
                return
            there, version = self._read()
            if there < number:
                with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # the next look tells
                    self._coordination.put(self.NODE, str(number).encode(), version)
                    there = number
            self._known = max(self._known, there)
        if number > self._known:
            raise Unavailable(f"{self.CALLED} cannot be put on record: nothing was done, try again")

    def _read(self) -> tuple[int, int | None]:
        node = self._coordination.read(self.NODE)
        if node is None:
            return 0, None
        try:
            return int(node.value), node.version
        except ValueError as error:
            raise Corruption(self.NODE, f"not {self.CALLED}: {error}") from error
