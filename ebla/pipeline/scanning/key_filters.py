"""Filters on a key as ranges of rows: which rows a query can want, from the conditions that Spark tells. Pure.

    of a key (shop, day)
    shop = 3 AND day >= '2026-01-01' AND amount > 5    [(3, 2026-01-01), (4))       amount says nothing
    shop IN (3, 7)                                     [(3), (4))  [(7), (8))
    day >= '2026-01-01'                                every row: the key begins with shop

A condition says something if it is about the first column of the key; one on the next column does where all before it
are equal to something. Whoever asks filters again: ranges may hold rows that are not wanted, and never lack one that
is. Where in doubt, it is every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal

import pyarrow as pa

from ebla.errors import EblaError, InvalidKey
from ebla.model.keys import KeyCodec
from ebla.model.ranges import ALL, KeyRange

__all__ = ["AllOf", "AnyOf", "Compared", "Condition", "key_ranges"]

# Conditions that name more keys than this say nothing about further columns.
POINTS_MAX = 256


@dataclass(frozen=True, slots=True)
class Compared:
    """A column held against values; `in` has any number of them, the others one."""

    how: Literal["=", "<", "<=", ">", ">=", "in", "begins"]
    column: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conditions that are all true."""

    parts: tuple[Condition | None, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Conditions of which one is true; None is one that is not known."""

    parts: tuple[Condition | None, ...]


Condition = Compared | AllOf | AnyOf
Ranges = tuple[KeyRange, ...]


def key_ranges(conditions: Iterable[Condition | None], codec: KeyCodec) -> Ranges | None:
    """Return the rows for which all conditions can be true, in order; None if that may be every row."""
    try:
        found = _of_column(AllOf(tuple(conditions)), codec, ())
    except EblaError:
        return None  # a value that no key of this table has: let Spark compare it
    return None if found is None else tuple(sorted(found, key=lambda one: one.first))


def _of_column(conditions: AllOf, codec: KeyCodec, before: tuple[object, ...]) -> Ranges | None:
    """Return the rows that begin with some values and meet the conditions on the columns after these."""
    at = len(before)
    if at == len(codec.names) or not _is_ordered_alike(codec.types[at]):
        return None
    column = _Column(codec, before)
    found = _ranges(conditions, column)
    points = _points(conditions, column)
    if points is None or at + 1 == len(codec.names) or len(points) > POINTS_MAX:
        return found
    further: list[KeyRange] = []
    for value in points:
        inner = _of_column(conditions, codec, (*before, value))
        further += (column.equal(value),) if inner is None else inner
    return tuple(further) if found is None else _both(found, tuple(further))


def _is_ordered_alike(kind: pa.DataType) -> bool:
    """Tell whether Spark compares values of a type as rows are, and has all of each value."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit == "us")
    )


class _Column:
    """The column of a key that comes after some values."""

    def __init__(self, codec: KeyCodec, before: tuple[object, ...]) -> None:
        self.name = codec.names[len(before)]
        self.kind = codec.types[len(before)]
        self.all = codec.prefix_range(before) if before else ALL
        self._codec = codec
        self._before = before

    def equal(self, value: object) -> KeyRange:
        key = (*self._before, value)
        if self._codec.is_simple:
            row = self._codec.bound(key)
            return KeyRange(row, row + b"\0")  # all that begin with it are another question
        return self._codec.prefix_range(key)

    def begins(self, value: object) -> Ranges | None:
        return (self._codec.string_prefix_range(value),) if self._codec.is_simple else None

    def below(self, row: bytes | None) -> Ranges:
        return _both((self.all,), (KeyRange(b"", row),))

    def from_(self, row: bytes | None) -> Ranges:
        return () if row is None else _both((self.all,), (KeyRange(row),))


def _ranges(condition: Condition | None, column: _Column) -> Ranges | None:
    """Return the rows in which a condition can be true, as far as it is about a column."""
    if condition is None:
        return None
    if isinstance(condition, Compared):
        return _compared(condition, column) if condition.column == column.name else None
    each = [_ranges(part, column) for part in condition.parts]
    if isinstance(condition, AnyOf):
        if any(one is None for one in each):
            return None
        return tuple(part for one in each if one is not None for part in one)
    found: Ranges | None = None
    for one in each:
        if one is not None:
            found = one if found is None else _both(found, one)
    return found


def _compared(condition: Compared, column: _Column) -> Ranges | None:
    values = [_fitting(value, column.kind) for value in condition.values]
    if condition.how == "in":
        return tuple(column.equal(value) for value in values)
    (value,) = values
    if condition.how == "begins":
        return column.begins(value)
    equal = column.equal(value)
    if condition.how == "=":
        return (equal,)
    if condition.how in ("<", "<="):
        return column.below(equal.first if condition.how == "<" else equal.last)
    return column.from_(equal.first if condition.how == ">=" else equal.last)


def _points(condition: Condition | None, column: _Column) -> list[object] | None:
    """Return the values to one of which a column is equal; None if it may be others."""
    if isinstance(condition, Compared):
        if condition.column != column.name or condition.how not in ("=", "in"):
            return None
        return [_fitting(value, column.kind) for value in dict.fromkeys(condition.values)]
    if isinstance(condition, AllOf):
        known = [found for part in condition.parts if (found := _points(part, column)) is not None]
        return min(known, key=len) if known else None
    return None


def _fitting(value: object, kind: pa.DataType) -> object:
    """Return a value of Spark's as the key has it: unsigned numbers of 64 bits are decimals there."""
    if pa.types.is_integer(kind):
        if isinstance(value, Decimal) and value == value.to_integral_value():
            return int(value)
        fits = type(value) is int
    elif pa.types.is_string(kind):
        fits = isinstance(value, str)
    elif pa.types.is_binary(kind):
        fits = isinstance(value, bytes)
    else:
        fits = isinstance(value, datetime if pa.types.is_timestamp(kind) else date)
    if not fits:
        raise InvalidKey(f"{value!r} is no {kind}")
    return value


def _both(one: Sequence[KeyRange], other: Sequence[KeyRange]) -> Ranges:
    """Return the rows that are in a range of each."""
    return tuple(part for a in one for b in other if (part := a.intersect(b)) is not None)
