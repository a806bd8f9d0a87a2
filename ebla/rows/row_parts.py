"""What a put is put together from: column names resolved, limits kept, cells laid out line by line.

    "name"        ->  a typed column of a columns group
    "click:home"  ->  one cell            a bare name under a "*" group is a cell of the unnamed family
    "click"       ->  a family: every entry of the map is a cell

`CellLines` collects cells from many columns and lays them out in the order of the rows where that matters: of two cells
for one place, the one of the later row stays the later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch, InvalidKey, UnknownColumn
from ebla.model.batch import PutBatch
from ebla.model.casts import cast_array, cast_bytes, is_text, text_lengths
from ebla.model.schema import WILDCARD, Column, TableSchema
from ebla.settings import Settings

__all__ = [
    "MAP",
    "SET",
    "CellLines",
    "CellName",
    "Limits",
    "cell_of_others",
    "check_family",
    "check_keys",
    "check_name",
    "check_put",
    "check_qualifier",
    "check_qualifiers",
    "check_unfolded",
    "check_unique",
    "check_values",
    "resolve_cell",
    "rows_that_exist",
    "typed_columns",
    "validate",
]

SET = "_set"
MAP = pa.map_(pa.string(), pa.binary())
QUALIFIER_BYTES_MAX = 64 * 1024
_DEFAULTS = Settings()

Numbers = np.ndarray[Any, Any]


class Limits(NamedTuple):
    """How large a put, and a single value in it, may be."""

    value_bytes_max: int = _DEFAULTS.value_bytes_max
    batch_bytes_max: int = _DEFAULTS.batch_bytes_max


# --- names ---------------------------------------------------------------------------------------


class CellName(NamedTuple):
    """Where the values of an input column go: one cell, or a family where `qualifier` is None.

    `bare_family` is the family that a map under this name fills; it differs from `family` for a bare name in a table
    with a ``*`` group, where ``click`` with bytes is a cell of the unnamed family and with a map is the family click.
    """

    family: str
    qualifier: str | None
    bare_family: str


def check_name(name: object) -> str:
    """Return the name of an input column if it can be one."""
    if not isinstance(name, str):
        raise InvalidBatch(f"a column is named by a string, not {name!r}")
    if name.startswith("_"):
        raise InvalidBatch(f"column {name!r}: names that begin with '_' belong to the store, leave it out")
    return name


def check_unique(names: Sequence[str]) -> None:
    """Raise `InvalidBatch` if a name stands twice."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidBatch(f"column {twice!r} is given more than once: keep one")


def resolve_cell(schema: TableSchema, name: str) -> CellName:
    """Return which cells `name`, which is no typed column, means. Raises `UnknownColumn` if the table takes none."""
    target = schema.resolve(name)
    assert target.family is not None
    bare = name if ":" not in name else target.family
    if target.qualifier is not None:
        check_qualifier(target.qualifier)
    if target.family:
        check_family(schema, target.family)
    return CellName(target.family, target.qualifier, bare)


def cell_of_others(schema: TableSchema, name: str) -> CellName:
    """Return which cell a name in the column ``*`` means: of the family before the colon, or of the unnamed one."""
    family, _, qualifier = name.partition(":") if ":" in name else ("", "", name)
    if family:
        check_family(schema, family)
    return CellName(family, check_qualifier(qualifier), family)


def check_family(schema: TableSchema, family: str) -> None:
    """Raise `UnknownColumn` unless cells of this family have a place in the table that no other name takes."""
    if family == WILDCARD or ":" in family or family.startswith("_") or schema.family_group(family) is None:
        raise UnknownColumn(f"no family {family!r}: the table has {schema.describe_columns()}")
    if family in schema.key_names or any(column.name == family for g in schema.groups for column in g.columns):
        raise UnknownColumn(f"{family!r} is a column of the table, so it cannot be a family as well: use another name")


def check_qualifier(qualifier: str) -> str:
    """Return a qualifier if it is not too long."""
    if len(qualifier) * 4 > QUALIFIER_BYTES_MAX and len(qualifier.encode()) > QUALIFIER_BYTES_MAX:
        raise InvalidBatch(f"qualifier {qualifier[:20]!r}...: at most {QUALIFIER_BYTES_MAX} bytes are allowed")
    return qualifier


def check_qualifiers(qualifiers: pa.Array) -> None:
    """Raise `InvalidBatch` if one of the qualifiers is too long."""
    if qualifiers.get_total_buffer_size() > QUALIFIER_BYTES_MAX and len(qualifiers):
        check_qualifier(qualifiers[int(np.argmax(text_lengths(qualifiers)))].as_py() or "")


# --- limits --------------------------------------------------------------------------------------


def check_keys(key: Sequence[Column], arrays: Sequence[pa.Array]) -> None:
    """Raise `InvalidKey` if a key column has nulls."""
    for column, array in zip(key, arrays, strict=True):
        if array.null_count:
            at = pc.index(array.is_null(), True).as_py()
            raise InvalidKey(
                f"key column {column.name!r} has {array.null_count} nulls, the first in row {at}: a key has none"
            )


def validate(batch: pa.RecordBatch) -> None:
    """Raise `InvalidBatch` if the batch is not what it says it is: offsets out of range, text that is no UTF-8."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as reason:
        raise InvalidBatch(f"the Arrow data is damaged: {reason}") from None


def check_unfolded(arrays: Sequence[pa.Array], types: Sequence[pa.DataType], limits: Limits) -> None:
    """Raise `InvalidBatch` if casting the arrays to the types would take more memory than a put may have."""
    pairs = zip(arrays, types, strict=True)
    bytes_total = sum(cast_bytes(array, type_) for array, type_ in pairs if array.type != type_)
    if bytes_total > limits.batch_bytes_max:
        raise InvalidBatch(
            f"the rows unfold to {bytes_total} bytes: at most {limits.batch_bytes_max} are taken, send fewer rows"
        )


def check_put(put: PutBatch, limits: Limits) -> PutBatch:
    """Return a put whose halves are not larger than allowed."""
    for half in (put.columns, put.cells):
        if half is not None and half.get_total_buffer_size() > min(limits):
            check_values(half.schema.names, half.columns, limits)
    return put


def check_values(names: Sequence[str], arrays: Sequence[pa.Array], limits: Limits) -> None:
    """Raise `InvalidBatch` if the arrays together, or a string or binary value in them, are larger than allowed."""
    # What the buffers hold is an upper limit and quickly known; only beyond it is it worth counting.
    if sum(array.get_total_buffer_size() for array in arrays) <= min(limits):
        return
    sizes = [_size_bytes(array) for array in arrays]
    if sum(sizes) > limits.batch_bytes_max:
        raise InvalidBatch(f"{sum(sizes)} bytes at once: at most {limits.batch_bytes_max} are taken, send fewer rows")
    for name, array, size in zip(names, arrays, sizes, strict=True):
        if size > limits.value_bytes_max:
            _check_lengths(name, array, np.arange(len(array)), limits.value_bytes_max)


def _size_bytes(array: pa.Array) -> int:
    """Return the size of an array, which may be a slice of a larger one. Arrow's own count is slow for short slices."""
    if array.type in (pa.string(), pa.binary()) and len(array):
        offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
        return int(offsets[-1] - offsets[0]) + 4 * len(array)
    return int(array.nbytes)


def _check_lengths(name: str, array: pa.Array, rows: Numbers, value_bytes_max: int) -> None:
    if is_text(array.type):
        lengths = text_lengths(array)
        if len(lengths) and lengths.max() > value_bytes_max:
            at = int(np.argmax(lengths > value_bytes_max))
            raise InvalidBatch(
                f"column {name!r} has a value of {lengths[at]} bytes in row {rows[at]}: "
                f"at most {value_bytes_max} are allowed"
            )
    elif any(
        is_kind(array.type) for is_kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    ):
        counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
        _check_lengths(name, array.flatten(), np.repeat(rows, counts), value_bytes_max)
    elif pa.types.is_struct(array.type):
        for field in array.flatten():
            _check_lengths(name, field, rows, value_bytes_max)
    elif pa.types.is_map(array.type):
        # As a list, which has the same buffers and a way to leave out what null maps have underneath.
        entries = pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)]))
        _check_lengths(name, array.cast(entries), rows, value_bytes_max)


# --- cells ---------------------------------------------------------------------------------------


class CellLines:
    """Collects cells as columns of (row position, family, qualifier, value) and lays them out in one batch."""

    def __init__(self, schema: TableSchema, keys: Sequence[pa.Array], limits: Limits) -> None:
        self._schema = schema
        self._keys = keys
        self._bytes_left = limits.batch_bytes_max
        self._parts: list[tuple[Numbers, pa.Array, pa.Array, pa.Array]] = []
        self._places: set[tuple[str, str | None]] = set()
        self._families: set[str] = set()
        self._are_mixed = False

    @property
    def rows(self) -> Numbers:
        """The positions of all rows that have a cell."""
        return np.concatenate([rows for rows, *_ in self._parts]) if self._parts else np.empty(0, np.int64)

    def add_cell(self, name: str, family: str, qualifier: str, values: pa.Array) -> None:
        """Add the cells of one input column: a value per row, null where there is no cell."""
        self._are_mixed |= (family, qualifier) in self._places or (family, None) in self._places
        values = self._cast(values, pa.binary(), f"column {name!r}")
        rows = np.arange(len(values))
        if values.null_count:
            rows = np.flatnonzero(np.asarray(values.is_valid()))
            values = values.drop_null()
        self._add(rows, family, qualifier, self._repeat(qualifier, len(rows)), values)

    def add_family(
        self, name: str, family: str, rows: Numbers, entries: pa.Array, qualifiers: pa.Array, values: pa.Array
    ) -> None:
        """Add the cells of a family from one input column: those `entries` of the qualifiers and values, by `rows`.

        The rows must be in order. A null value is no cell. Qualifiers of the family ``*`` are the names of cells.
        """
        self._are_mixed |= family in self._families
        # Cast before taking: Arrow has no `take` for views.
        qualifiers = self._cast(qualifiers, pa.string(), f"the qualifiers of {name!r}").take(entries)
        values = self._cast(values, pa.binary(), f"column {name!r}").take(entries)
        if qualifiers.null_count:
            at = rows[pc.index(qualifiers.is_null(), True).as_py()]
            raise InvalidBatch(f"column {name!r} has a null for a qualifier in row {at}")
        check_qualifiers(qualifiers)
        if values.null_count:
            valid = values.is_valid()
            rows, qualifiers, values = rows[np.asarray(valid)], qualifiers.filter(valid), values.filter(valid)
        if family == WILDCARD:
            self._add_others(rows, qualifiers, values)
        else:
            self._add(rows, family, None, qualifiers, values)

    def _add_others(self, rows: Numbers, names: pa.Array, values: pa.Array) -> None:
        """Add cells whose names have the family, too, unless it is the unnamed one."""
        named = pc.extract_regex(names, r"(?s)^(?P<family>[^:]*):(?P<qualifier>.*)$")
        families = pc.fill_null(pc.struct_field(named, "family"), "")
        qualifiers = pc.coalesce(pc.struct_field(named, "qualifier"), names)
        for family in pc.unique(families).to_pylist():
            if family:
                check_family(self._schema, family)
        self._charge(int(text_lengths(families).sum()))
        self._are_mixed = True  # a cell may be in a column of its own as well
        if len(rows):
            self._parts.append((rows, families, qualifiers, values))

    def add_lines(self, rows: Numbers, families: pa.Array, qualifiers: pa.Array, values: pa.Array) -> None:
        """Add cells of all kinds, already in the order of their rows and in their types; to be called once, alone."""
        self._parts.append((rows, families, qualifiers, values))

    def _add(self, rows: Numbers, family: str, qualifier: str | None, qualifiers: pa.Array, values: pa.Array) -> None:
        # Cells of two input columns can have the same place; only then does the order of the lines matter.
        self._places.add((family, qualifier))
        self._families.add(family)
        if len(rows):
            self._parts.append((rows, self._repeat(family, len(rows)), qualifiers, values))

    def batch(self) -> pa.RecordBatch | None:
        """Return all cells with their keys, None if there are none."""
        if not self._parts:
            return None
        rows, keys = self.rows, self._keys
        columns = list(self._parts[0][1:])
        if len(self._parts) > 1:
            columns = [pa.concat_arrays([part[at] for part in self._parts]) for at in (1, 2, 3)]
        if self._are_mixed:
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            columns = [column.take(pa.array(order)) for column in columns]
        if len(rows) != len(keys[0]) or not np.array_equal(rows, np.arange(len(rows))):
            # One row with a long key and many cells repeats its key in every line.
            self._charge(sum(int(text_lengths(key)[rows].sum()) for key in keys if is_text(key.type)))
            keys = [key.take(pa.array(rows)) for key in keys]
        names = [*self._schema.key_names, "family", "qualifier", "value"]
        return pa.RecordBatch.from_arrays([*keys, *columns], names=names)

    def _cast(self, array: pa.Array, to: pa.DataType, what: str) -> pa.Array:
        if array.type != to and not (array.type == pa.string() and to == pa.binary()):
            self._charge(cast_bytes(array, to))
        return cast_array(array, to, what)

    def _repeat(self, text: str, count: int) -> pa.Array:
        self._charge(len(text) * count)
        return pa.repeat(text, count)

    def _charge(self, bytes_more: int) -> None:
        self._bytes_left -= bytes_more
        if self._bytes_left < 0:
            raise InvalidBatch("the cells, each with its key and name, are too many bytes at once: send fewer rows")


# --- rows without values -------------------------------------------------------------------------


def rows_that_exist(schema: TableSchema, keys: Sequence[pa.Array], rows: Numbers) -> pa.RecordBatch | None:
    """Return the half of a put that makes the rows at these positions exist without setting anything."""
    if not len(rows):
        return None
    if all(group.is_cells for group in schema.groups):
        raise InvalidBatch(
            f"row {rows[0]} has a key and no cell: there is nothing to write, give it a cell or leave the row out"
        )
    taken = [key.take(pa.array(rows)) for key in keys]
    return pa.RecordBatch.from_arrays([*taken, pa.repeat("", len(rows))], names=[*schema.key_names, SET])


def typed_columns(schema: TableSchema) -> Mapping[str, Column]:
    """Return the typed columns of all columns groups, by name."""
    return {column.name: column for group in schema.groups if not group.is_cells for column in group.columns}
