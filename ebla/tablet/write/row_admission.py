"""Admission of one row: the short way of a put of a single dict of plain values.

    {"user": "ada", "age": 36}  -->  RowMutation { row, per group: plan, values as they lie in Arrow's buffers }

What a dict with certain names means is worked out once and remembered as its *shape*. Then a row costs a look at each
of its values. Whatever is unusual, or wrong, gets None here and goes the long way (`ebla.rows.rows`, `Admission`),
which takes everything and says what is wrong; both ways make the same records of a row that both take. Nothing here
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, NamedTuple, cast

import pyarrow as pa

from ebla.errors import RequestError
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema, TableSchema
from ebla.storage.record.row_block import Physical, RowPlan, is_plain, plan_of

__all__ = ["RowAdmission", "RowMutation", "RowPart"]

_SHAPES_MAX = 256


class RowPart(NamedTuple):
    """What a row sets in one group."""

    group: GroupSchema
    plan: RowPlan
    values: tuple[Physical, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RowMutation:
    """One commit's worth of changes: a row, divided by group. Used in the place of a `Mutation`."""

    row: bytes
    parts: tuple[RowPart, ...]
    bytes: int
    schema_version: int = 0

    @property
    def rows(self) -> pa.Array:
        """The rows touched."""
        return pa.array([self.row], pa.binary())

    @property
    def ranges(self) -> tuple[KeyRange, ...]:
        """The ranges erased: none."""
        return ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return False

    @property
    def sets(self) -> int:
        """How many columns it sets."""
        return sum([len(part.values) for part in self.parts])

    def cells(self) -> dict[str, Any]:
        """Return what the row sets, by field id, as Python will read it."""
        cells: dict[str, Any] = {}
        for part in self.parts:
            cells.update(part.plan.cells(part.values))
        return cells


class _Unusual(Exception):
    """A value that the short way does not take."""


class _Value(NamedTuple):
    """A value of a dict: its name, the one type it may have besides None, and what makes it physical."""

    name: str
    kind: type
    physical: Callable[[Any], Physical] | None


class _Share(NamedTuple):
    group: GroupSchema
    plan: RowPlan
    values: tuple[_Value, ...]


class _Shape(NamedTuple):
    """What the names of a dict mean."""

    key: tuple[_Value, ...]
    shares: tuple[_Share, ...]


class RowAdmission:
    """Turns single rows for one table, at one schema version, into mutations."""

    def __init__(self, schema: TableSchema, codec: KeyCodec, value_bytes_max: int, batch_bytes_max: int) -> None:
        # Set once.
        self._schema = schema
        self._schema_version = schema.version
        self._codec = codec
        self._bytes_max = min(value_bytes_max, batch_bytes_max)
        self._key = tuple(_value(column.name, column.type) for column in schema.key)
        # Any thread adds to it; the same twice does no harm.
        self._shapes: dict[tuple[Any, ...], _Shape | None] = {}

    def put(self, row: Mapping[str, Any]) -> RowMutation | None:
        """Admit a row, or return None if it has to go the long way."""
        names = tuple(row)
        try:
            shape = self._shapes[names]
        except KeyError:
            shape = self._remember(names)
        if shape is None:
            return None
        try:
            key = [_key_value(value, row[value.name]) for value in shape.key]
            encoded = self._codec.encode(key[0] if len(key) == 1 else tuple(key))
            parts = []
            total = 0
            for group, plan, wanted in shape.shares:
                values = tuple([_physical(value, row[value.name]) for value in wanted])
                size = plan.size_bytes(encoded, values)
                total += size
                parts.append(RowPart(group, plan, values, size))
        except (_Unusual, RequestError, pa.ArrowException, ValueError, OverflowError):
            return None
        if total > self._bytes_max:
            return None
        return RowMutation(encoded, tuple(parts), total, self._schema_version)

    def _remember(self, names: tuple[Any, ...]) -> _Shape | None:
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
        shape = self._shapes[names] = self._work_out(names)
        return shape

    def _work_out(self, names: tuple[Any, ...]) -> _Shape | None:
        """Return what the names mean; None if there is anything but a whole key and typed columns of plain types."""
        left = set(names).difference(self._schema.key_names)
        if len(left) + len(self._schema.key_names) != len(names) or not left:
            return None
        shares = []
        for group in self._schema.groups:
            columns = [column for column in group.columns if not group.is_cells and column.name in left]
            if not columns:
                continue
            left.difference_update(column.name for column in columns)
            columns.sort(key=lambda column: column.id)
            if not all(is_plain(column.type) for column in columns):
                return None
            plan = plan_of(tuple(str(column.id) for column in columns), tuple(column.type for column in columns))
            shares.append(_Share(group, plan, tuple(_value(column.name, column.type) for column in columns)))
        if left or not all(is_plain(column.type) for column in self._schema.key):
            return None
        return _Shape(self._key, tuple(shares))


def _key_value(wanted: _Value, value: Any) -> Any:
    if type(value) is not wanted.kind:
        raise _Unusual
    if wanted.physical is not None and wanted.kind is not str:
        wanted.physical(value)  # for what it refuses
    return value


def _physical(wanted: _Value, value: Any) -> Physical:
    if type(value) is wanted.kind:
        return cast(Physical, value if wanted.physical is None else wanted.physical(value))
    if value is None:
        return None
    raise _Unusual


def _value(name: str, kind: pa.DataType) -> _Value:
    types = pa.types
    if types.is_boolean(kind):
        return _Value(name, bool, None)
    if types.is_integer(kind):
        low = -(1 << kind.bit_width - 1) if types.is_signed_integer(kind) else 0
        return _Value(name, int, _integer_between(low, low + (1 << kind.bit_width) - 1))
    if types.is_floating(kind):
        return _Value(name, float, None)
    if types.is_string(kind):
        return _Value(name, str, str.encode)
    if types.is_timestamp(kind):
        return _Value(name, datetime, _moment_in(kind, zoned=kind.tz is not None))
    if types.is_time(kind):
        return _Value(name, time, _moment_in(kind, zoned=False))
    if types.is_date(kind):
        return _Value(name, date, lambda value: pa.scalar(value, kind).value)
    return _Value(name, bytes, None)


def _integer_between(low: int, high: int) -> Callable[[int], int]:
    def check(value: int) -> int:
        if low <= value <= high:
            return value
        raise _Unusual

    return check


def _moment_in(kind: pa.DataType, *, zoned: bool) -> Callable[[Any], Physical]:
    def number_of(value: datetime | time) -> Physical:
        if (value.tzinfo is not None) != zoned:
            raise _Unusual
        number: int = pa.scalar(value, kind).value
        return number

    return number_of
