"""The window of replies: which requests were carried out, so that one that is repeated is not carried out again.

A client has one request under way at a time, so its last one is remembered, with the rows that it was carried out for:
those of the tablet at that time. Of a request that spans tablets, other rows may be yet to be written.

The window is bounded. What is forgotten raises `forgotten_txn`. A request says which txn its client had seen before it
first sent it, and was carried out, if at all, at a higher one: so if that is at or above `forgotten_txn` the request is
remembered or is new; below it nobody can tell, and it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from ebla.model.ranges import KeyRange
from ebla.replication.messages import Entry, Remembered, RequestId, Rows

__all__ = ["Found", "Replies"]

Found: TypeAlias = Literal["new", "known", "unknown"]


class Replies:
    """The last request of each client, as the log of a tablet has it. The oldest is forgotten first."""

    __slots__ = ("_by_client", "_max", "forgotten_txn")

    def __init__(self, replies_max: int) -> None:
        self._max = replies_max
        self._by_client: dict[str, Remembered] = {}
        self.forgotten_txn = 0

    @classmethod
    def of_log(cls, entries: Iterable[Entry], range: KeyRange, replies_max: int) -> Replies:
        """Return the window as it is behind the last of these entries."""
        replies = cls(replies_max)
        for entry in entries:
            if entry.kind == "window":
                for one in entry.window:  # an index of before, or of the tablet that was split: it is committed
                    replies._remember(Remembered(one.request, one.txn, 0, one.ranges))
                replies.forgotten_txn = max(replies.forgotten_txn, entry.forgotten_txn)
            elif entry.request is not None:
                replies.add(entry, range)
        return replies

    def __bool__(self) -> bool:
        return bool(self._by_client) or self.forgotten_txn > 0

    def all(self) -> tuple[Remembered, ...]:
        """Return what is remembered, the oldest first."""
        return tuple(self._by_client.values())

    def find(self, request: RequestId) -> tuple[Found, Remembered | None]:
        """Tell whether a request is new, was carried out (see for which rows), or is too old to tell."""
        known = self._by_client.get(request.client)
        if known is not None and known.request.sequence == request.sequence:
            return "known", known
        if known is not None and known.request.sequence > request.sequence:
            return "unknown", None
        return ("new" if self._can_tell(request) else "unknown"), None

    def _can_tell(self, request: RequestId) -> bool:
        return request.seen >= self.forgotten_txn

    def add(self, entry: Entry, range: KeyRange) -> None:
        """Remember an entry that carries a request out, for the rows of a tablet with this range."""
        assert entry.request is not None
        known = self._by_client.get(entry.request.client)
        ranges: tuple[KeyRange, ...] = (range,)
        if known is not None and known.request.sequence == entry.request.sequence:
            ranges = (*known.ranges, range)
        self._remember(Remembered(entry.request, entry.txn, entry.index, ranges))

    def _remember(self, one: Remembered) -> None:
        self._by_client.pop(one.request.client, None)
        self._by_client[one.request.client] = one
        while len(self._by_client) > self._max:
            oldest = next(iter(self._by_client))
            self.forgotten_txn = max(self.forgotten_txn, self._by_client.pop(oldest).txn)


def rows_left(known: Remembered, rows: Rows) -> Rows:
    """Return the rows of a request that it was not carried out for."""
    return tuple(one for one in rows if not any(covered.contains(one[0]) for covered in known.ranges))
