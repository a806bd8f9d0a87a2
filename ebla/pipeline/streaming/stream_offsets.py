"""How far a stream of changes has come: a txn for every row, whatever tablets the rows are in. Pure: values alone.

    at       ""  ......... "m" ......... None            rows before "m" are given out up to txn 90, others up to 70
                  90               70
    from     ""  ......................... None          the batch that led here began with all of them at 70
                          70

    {"version": 1, "table": "7f3a...", "pin": "stream-users-1c9e", "from": [["", 70]], "at": [["", 90], ["6d", 70]]}

Ranges have the bounds that batches had, in hexadecimal, and never those of tablets: a split or a join changes nothing.
Rows that are equally far are one range, so an offset has a few entries, however many tablets there are. Txn 0 is before
everything.

An offset names the one that its batch began with. Spark asks a source anew where the first batch begins when that batch
has to be repeated, and would get another answer than the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ebla.errors import RequestError
from ebla.model.ranges import KeyRange

__all__ = ["Advance", "Offset", "Position"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Advance:
    """Rows of a range, from one txn to another."""

    range: KeyRange
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Position:
    """A txn for every row: ranges without a gap, each from `firsts` on, with the txn up to which it was given out."""

    firsts: tuple[bytes, ...] = (b"",)
    txns: tuple[int, ...] = (0,)

    @property
    def is_even(self) -> bool:
        """Whether all rows are equally far."""
        return len(self.txns) == 1

    @property
    def newest(self) -> int:
        """The txn of the rows that are farthest."""
        return max(self.txns)

    @property
    def needed(self) -> int:
        """The oldest txn that a reader from here on has to look at; 0 if it needs nothing old."""
        return min((txn for txn in self.txns if txn), default=0)

    def ranges(self) -> Iterator[tuple[KeyRange, int]]:
        """Yield the ranges with their txns."""
        lasts: list[bytes | None] = [*self.firsts[1:], None]
        for first, last, txn in zip(self.firsts, lasts, self.txns, strict=True):
            yield KeyRange(first, last), txn

    def moved(self, rows: KeyRange, txn: int) -> Position:
        """Return the position with the rows of a range moved to a txn."""
        parts: list[tuple[bytes, int]] = []
        for own, there in self.ranges():
            both = own.intersect(rows)
            if both is None:
                parts.append((own.first, there))
                continue
            if own.first < both.first:
                parts.append((own.first, there))
            parts.append((both.first, txn))
            if both.last is not None and (own.last is None or both.last < own.last):
                parts.append((both.last, there))
        return _joined(parts)

    def to(self, other: Position) -> Iterator[Advance]:
        """Yield what lies between this position and a later one, in the order of the rows."""
        for own, since in self.ranges():
            for theirs, until in other.ranges():
                both = own.intersect(theirs)
                if both is not None and until > since:
                    yield Advance(both, since, until)


def _joined(parts: Iterable[tuple[bytes, int]]) -> Position:
    firsts: list[bytes] = []
    txns: list[int] = []
    for first, txn in parts:
        if not txns or txns[-1] != txn:
            firsts.append(first)
            txns.append(txn)
    return Position(tuple(firsts), tuple(txns))


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a stream of a table is, which pin holds its history, and where its latest batch began (None: no batch)."""

    table_id: str
    pin: str
    at: Position
    began: Position | None = None

    def next(self, at: Position) -> Offset:
        """Return the offset after a batch that leads to a position."""
        return replace(self, at=at, began=self.at)

    def batch_since(self, start: Offset) -> Iterator[Advance]:
        """Yield what the batch between an offset and this one gives out."""
        if start.table_id != self.table_id:
            raise RequestError("the two offsets of a batch are of two tables: the checkpoint is mixed up, take another")
        # What a source says again about its beginning is not where this batch began.
        began = self.began if start.began is None and self.began is not None else start.at
        return began.to(self.at)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it."""
        found: dict[str, Any] = {"version": VERSION, "table": self.table_id, "pin": self.pin}
        if self.began is not None:
            found["from"] = _listed(self.began)
        return {**found, "at": _listed(self.at)}

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> Offset:
        """Read an offset that Spark kept; `RequestError` if it is none of ours."""
        try:
            if given["version"] != VERSION:
                raise RequestError(
                    f"the checkpoint has offsets of version {given['version']}: go on with the Ebla that wrote it"
                )
            began = given.get("from")
            return cls(
                str(given["table"]),
                str(given["pin"]),
                _position(given["at"]),
                None if began is None else _position(began),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                f"the checkpoint has an offset that is none of a table: {given!r}: take another checkpoint"
            ) from None


def _listed(position: Position) -> list[list[Any]]:
    return [[first.hex(), txn] for first, txn in zip(position.firsts, position.txns, strict=True)]


def _position(listed: Sequence[Sequence[Any]]) -> Position:
    parts = [(bytes.fromhex(first), int(txn)) for first, txn in listed]
    firsts = [first for first, _ in parts]
    if not parts or firsts[0] != b"" or any(a >= b for a, b in pairwise(firsts)):
        raise ValueError("its ranges do not cover every row once")
    return _joined(parts)
