"""Admission of one row: the short way of a put of a single dict of plain values.

    {"user": "ada", "age": 36}  -->  RowMutation { row, per group: plan, values as they lie in Arrow's buffers }

What a dict with certain names means is worked out once and remembered as its *shape*. Then a row costs a look at each
of its values. Whatever is unusual, or wrong, gets None here and goes the long way (`ebla.rows.rows`, `Admission`),
which takes everything and says what is wrong; both ways make the same records of a row that both take. Nothing here
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from ebla.errors import RequestError
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema, TableSchema
from ebla.rows.row_parts import resolve_cell
from ebla.storage.record.cell_block import CellPlan
from ebla.storage.record.row_block import Physical, RowPlan, is_plain, plan_of

__all__ = ["RowAdmission", "RowMutation", "RowPart"]

_SHAPES_MAX = 256
# What is read of these is what was put, and not only equal to it.
_READ_AS_PUT = frozenset((str, bytes, int, bool))


class RowPart(NamedTuple):
    """What a row sets in one group."""

    group: GroupSchema
    plan: RowPlan | CellPlan
    values: tuple[Any, ...]
    size_bytes: int


class RowMutation(msgspec.Struct, frozen=True):
    """One commit's worth of changes: a row, divided by group. Used in the place of a `Mutation`.

    `is_whole` says that it sets all that the row can have. `given` has the key and what the row sets, as Python will
    read them, under `names`; None where they first have to be made of what lies in the parts.
    """

    row: bytes
    parts: tuple[RowPart, ...]
    bytes: int
    schema_version: int = 0
    is_whole: bool = False
    has_cells: bool = False
    names: tuple[str, ...] = ()
    given: tuple[Any, ...] | None = None

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

    def cells(self) -> dict[str, Any]:
        """Return what the row sets, by field id, as Python will read it."""
        cells: dict[str, Any] = {}
        for _, plan, values, _ in self.parts:
            assert isinstance(plan, RowPlan), "what is read of cells depends on those that were there before"
            cells.update(plan.cells(values))
        return cells


class _Unusual(Exception):
    """A value that the short way does not take."""


class _Value(NamedTuple):
    """A value of a dict: its name, the one type it may have besides None, and what makes it physical."""

    name: str
    kind: type
    physical: Callable[[Any], Physical] | None


class _Share(NamedTuple):
    """What of the values of a dict, from `begin` to `end` after those of the key, is one group's."""

    group: GroupSchema
    plan: RowPlan | CellPlan
    begin: int
    end: int


class _Shape(NamedTuple):
    """What the names of a dict mean. `take` returns its values in the order of `names`: first the key."""

    names: tuple[str, ...]
    take: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    kinds: tuple[type, ...]
    values: tuple[Callable[[Any], Physical] | None, ...]
    shares: tuple[_Share, ...]
    is_whole: bool
    has_cells: bool
    is_read_as_put: bool


class RowAdmission:
    """Turns single rows for one table, at one schema version, into mutations."""

    def __init__(self, schema: TableSchema, codec: KeyCodec, value_bytes_max: int, batch_bytes_max: int) -> None:
        # Set once.
        self._schema = schema
        self._schema_version = schema.version
        self._codec = codec
        self._bytes_max = min(value_bytes_max, batch_bytes_max)
        self._key = tuple(_value(column.name, column.type) for column in schema.key)
        self._key_length = len(self._key)
        columns = [column for group in schema.groups for column in group.columns]
        self._columns = None if any(group.is_cells for group in schema.groups) else len(columns)
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
            given = shape.take(row)
            values = [
                _physical(kind, physical, value)
                for kind, physical, value in zip(shape.kinds, shape.values, given, strict=True)
            ]
            of_key = self._key_length
            encoded = self._codec.encode(given[0] if of_key == 1 else given[:of_key])
            parts = []
            total = 0
            for group, plan, begin, end in shape.shares:
                own = tuple(values[begin:end])
                if shape.has_cells and None in own and group.is_cells:
                    return None
                size = plan.size_bytes(encoded, own)
                total += size
                parts.append(RowPart(group, plan, own, size))
        except (_Unusual, RequestError, pa.ArrowException, ValueError, OverflowError):
            return None
        if total > self._bytes_max:
            return None
        return RowMutation(
            encoded,
            tuple(parts),
            total,
            self._schema_version,
            shape.is_whole,
            shape.has_cells,
            shape.names,
            given if shape.is_read_as_put else None,
        )

    def _remember(self, names: tuple[Any, ...]) -> _Shape | None:
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
        shape = self._shapes[names] = self._work_out(names)
        return shape

    def _work_out(self, names: tuple[Any, ...]) -> _Shape | None:
        """Return what the names mean; None if there is anything but a whole key, plain typed columns, and cells."""
        left = set(names).difference(self._schema.key_names)
        if len(left) + len(self._schema.key_names) != len(names) or not left:
            return None
        shares = []
        values = [*self._key]
        for group in self._schema.groups:
            columns = [column for column in group.columns if column.name in left]
            if not columns:
                continue
            left.difference_update(column.name for column in columns)
            columns.sort(key=lambda column: column.id)
            if not all(is_plain(column.type) for column in columns):
                return None
            plan = plan_of(tuple(str(column.id) for column in columns), tuple(column.type for column in columns))
            begin = len(values)
            values += [_value(column.name, column.type) for column in columns]
            shares.append(_Share(group, plan, begin, len(values)))
        if not all(is_plain(column.type) for column in self._schema.key):
            return None
        try:
            cells = self._cells_of(left)
        except RequestError:
            return None
        for group_id, named in sorted(cells.items()):
            begin = len(values)
            values += [_Value(name, bytes, None) for _, name in named]
            of_cells = CellPlan([cell for cell, _ in named])
            shares.append(_Share(self._schema.group_by_id[group_id], of_cells, begin, len(values)))
        kinds = [value.kind for value in values]
        read_as_put = [kind in _READ_AS_PUT for kind in kinds[: len(self._key)]]
        read_as_put += [kind in _READ_AS_PUT or kind is float for kind in kinds[len(self._key) :]]
        return _Shape(
            tuple(value.name for value in values),
            itemgetter(*(value.name for value in values)),
            tuple(kinds),
            tuple(value.physical for value in values),
            tuple(shares),
            len(values) - len(self._key) == self._columns,
            bool(cells),
            all(read_as_put),
        )

    def _cells_of(self, names: Iterable[Any]) -> dict[int, list[tuple[tuple[str, str], str]]]:
        """Return which cells are meant, in order, by group, each with its name. Raises `RequestError`."""
        by_group: dict[int, list[tuple[tuple[str, str], str]]] = {}
        for name in names:
            family, qualifier, _ = resolve_cell(self._schema, name)
            if name.startswith("_"):
                raise RequestError("the name of a column of Ebla's own")
            group = self._schema.family_group(family)
            if group is None or qualifier is None:
                raise RequestError("a whole family")
            by_group.setdefault(group.id, []).append(((family, qualifier), name))
        for named in by_group.values():
            named.sort()
            if len({cell for cell, _ in named}) < len(named):
                raise RequestError("two names of one cell")
        return by_group


def _physical(kind: type, physical: Callable[[Any], Physical] | None, value: Any) -> Any:
    if type(value) is kind:
        return value if physical is None else physical(value)
    if value is None:  # of a key: refused when it is encoded
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
