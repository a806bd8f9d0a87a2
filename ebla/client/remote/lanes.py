"""Request ids: names and numbers by which a repeated change happens once.

Whoever serves remembers the last number of every name, and takes a lower one for answered. So a name, a *lane*, is used
by one change at a time, and its numbers grow. Changes that are under way together have lanes of their own; there are as
many as there ever were at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from ebla.service.requests import RequestId

__all__ = ["Lanes"]


class Lanes:
    """The request ids of one client. Safe to use from several threads."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._names = itertools.count(1)
        # Appending to and popping from a list is one step.
        self._free: list[tuple[str, Iterator[int]]] = []

    @contextmanager
    def request_id(self) -> Iterator[RequestId]:
        """Give an id that nobody else has, for one change."""
        try:
            lane = self._free.pop()
        except IndexError:
            lane = (f"{self._client}-{next(self._names)}", itertools.count(1))
        try:
            yield lane[0], next(lane[1])
        finally:
            # Also after an unknown outcome: should the change arrive late, its number is lower than the next one's.
            self._free.append(lane)
