"""What a table looks like: its key, and its locality groups with their columns or families.

A user declares a `Schema` of `Group`s. The store numbers it: a `TableSchema` gives every key column, value column,
family and group an id that is never given out again, and a version that grows with every change. Inside the store,
columns are known by id, so that a rename touches no data and a dropped column cannot come back under its old name.

    Schema  --number()-->  TableSchema  --resolve("click:home")-->  Target(group, family, qualifier)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from ebla.arguments import plain_text
from ebla.errors import SchemaError, UnknownColumn, shown

TypeLike: TypeAlias = "str | pa.DataType"

WILDCARD = "*"
COMPRESSIONS = ("none", "lz4", "snappy", "zstd")
BLOCK_BYTES_DEFAULT = 256 * 1024
# Who chooses zstd wants little space, and small blocks compress less.
BLOCK_BYTES_ZSTD = 384 * 1024
BLOCK_BYTES_MIN = 1024
BLOCK_BYTES_MAX = 1 << 30
# What METADATA can say of ages and numbers of versions.
NUMBER_MAX = (1 << 63) - 1
NAME_BYTES_MAX = 255
RESERVED_CELL_NAMES = ("family", "qualifier", "value", "timestamp")

_TABLE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_AGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)\s*")
_AGE_MICROSECONDS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_DECIMAL = re.compile(r"decimal(32|64|128|256)?\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_DECIMALS = {
    "32": (pa.decimal32, 9),
    "64": (pa.decimal64, 18),
    "128": (pa.decimal128, 38),
    "256": (pa.decimal256, 76),
}


# --- types ---------------------------------------------------------------------------------------


def parse_type(given: TypeLike) -> pa.DataType:
    """Return the Arrow type that `given` names, in the form in which Ebla stores it.

    Takes an Arrow type or its name: ``int32``, ``string``, ``timestamp[us, tz=UTC]``, ``decimal128(10, 2)``,
    ``list<float64>``, ``struct<x: int32, y: string>``; every type that it returns has a name that it takes. Large, view
    and dictionary forms become the plain ones.
    """
    if isinstance(given, pa.DataType):
        return _stored_type(given)
    if not isinstance(given, str):
        raise SchemaError(f"a type is an Arrow type or its name, not {shown(given)}")
    text = given.strip()
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        make, precision_max = _DECIMALS[decimal[1] or "128"]
        if 1 <= int(decimal[2]) <= precision_max:
            return _stored_type(make(int(decimal[2]), int(decimal[3])))
    stamp = re.fullmatch(r"timestamp\[(s|ms|us|ns)(?:,\s*tz=([^\]]+))?\]", text)
    if stamp:
        return _stored_type(pa.timestamp(stamp[1], stamp[2]))
    fixed = re.fullmatch(r"fixed_size_binary\[(\d{1,9})\]", text)
    if fixed:
        return _stored_type(pa.binary(int(fixed[1])))
    listed = re.fullmatch(r"(list|fixed_size_list)<(.*)>(?:\[(\d{1,9})\])?", text)
    if listed and (listed[1] == "list") == (listed[3] is None):
        inner = parse_type(listed[2].strip().removeprefix("item:"))
        return _stored_type(pa.list_(inner, -1 if listed[3] is None else int(listed[3])))
    if text.startswith("struct<") and text.endswith(">"):
        parts = [part.partition(":") for part in _split_top(text[7:-1])]
        return _stored_type(pa.struct([pa.field(name.strip(), parse_type(inner)) for name, _, inner in parts]))
    if re.match(r"map\b", text):
        raise _no_maps(text)
    try:
        return _stored_type(pa.type_for_alias(text))
    except ValueError:
        raise SchemaError(
            f"unknown type {given!r}: use an Arrow type or a name such as int64, string, date32, timestamp[us], "
            "decimal128(10, 2) or list<string>"
        ) from None


def type_of(column: str, given: TypeLike) -> pa.DataType:
    """Return the Arrow type that `given` names; `SchemaError` says for which column it cannot be."""
    try:
        return parse_type(given)
    except SchemaError as error:
        raise SchemaError(f"column {column!r}: {error}") from None


def _split_top(text: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _stored_type(given: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(given):
        return _stored_type(given.value_type)
    if types.is_large_string(given) or types.is_string_view(given):
        return pa.string()
    if types.is_large_binary(given) or types.is_binary_view(given):
        return pa.binary()
    if any(
        is_kind(given) for is_kind in (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    ):
        return pa.list_(_stored_type(given.value_type))
    if types.is_fixed_size_list(given) and given.list_size > 0:  # Parquet cannot tell an empty list of those from null
        return pa.list_(_stored_type(given.value_type), given.list_size)
    if types.is_struct(given) and 0 < len({f.name for f in given}) == given.num_fields:
        return pa.struct([pa.field(f.name, _stored_type(f.type)) for f in given])
    if types.is_map(given):
        raise _no_maps(str(given))
    if not _is_scalar(given):
        raise SchemaError(f"a column cannot be of type {given}: use a scalar, list or struct type")
    if types.is_timestamp(given) and given.tz is not None:
        _check_time_zone(given.tz)
    return given


def _no_maps(given: str) -> SchemaError:
    return SchemaError(
        f"a column cannot be of type {given}: for a map use a group of families, which holds any names with bytes as "
        "values, or a list such as list<struct<key: string, value: int64>>"
    )


def _check_time_zone(name: str) -> None:
    """Refuse a time zone that nobody knows: values in it could be written, and not be read as Python's."""
    try:
        pa.lib.string_to_tzinfo(name)
    except (pa.ArrowException, ValueError, LookupError, OSError):
        raise SchemaError(
            f"there is no time zone {name!r} on this machine: use one such as UTC, Europe/Zurich or +01:00"
        ) from None


def _is_scalar(given: pa.DataType) -> bool:
    """Tell whether the log, memory and Parquet can all hold values of the type: not intervals, for example."""
    types = pa.types
    return bool(
        types.is_boolean(given)
        or types.is_integer(given)
        or types.is_floating(given)
        or (types.is_decimal(given) and 0 <= given.scale <= given.precision)
        or given in (pa.string(), pa.binary())
        or (types.is_fixed_size_binary(given) and given.byte_width > 0)
        or (types.is_temporal(given) and not types.is_interval(given))
    )


def is_key_type(given: pa.DataType) -> bool:
    """Tell whether a key column may have this type: one whose order can be kept in bytes."""
    types = pa.types
    return bool(
        types.is_boolean(given)
        or types.is_integer(given)
        or given in (pa.float32(), pa.float64(), pa.string(), pa.binary())
        or types.is_date(given)
        or types.is_timestamp(given)
        or types.is_time(given)
    )


def parse_age(given: str | timedelta | float | int) -> int:
    """Return an age in microseconds from ``"30d"``, ``"12h"``, a timedelta, or a number of seconds."""
    try:
        micros = _microseconds_of(given)
    except SchemaError:
        raise
    except (OverflowError, ValueError):  # infinite, or no number
        micros = NUMBER_MAX + 1
    if micros <= 0:
        raise SchemaError("an age must be longer than zero")
    if micros > NUMBER_MAX:
        raise SchemaError(
            f"an age is less than 292,000 years, not {shown(given)}: leave it out to keep versions of any age"
        )
    return micros


def _microseconds_of(given: object) -> int:
    if isinstance(given, timedelta):
        return given // timedelta(microseconds=1)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return int(given * 1_000_000)
    match = _AGE.fullmatch(given) if isinstance(given, str) else None
    if not match:
        raise SchemaError(f"an age is written like 30d, 12h, 15m or 45s, not {shown(given)}")
    return int(float(match[1]) * _AGE_MICROSECONDS[match[2]])


def check_table_name(name: str) -> str:
    """Return `name` if a table may be called that."""
    name = plain_text(name)
    if not isinstance(name, str) or not _TABLE_NAME.fullmatch(name) or name in (".", ".."):
        raise SchemaError(f"a table name has 1 to 128 letters, digits, '_', '.' or '-', not {shown(name)}")
    if name == "META" or name.startswith("sys."):
        raise SchemaError(f"{name!r} is the name of a system table: choose another")
    return name


# --- what the user declares ----------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A locality group: columns or families that are stored together and apart from all others.

    Give either `columns` (name -> type; one typed Parquet column each) or `families` (names, or ``"*"`` for every
    family in no other group; free qualifiers, bytes values).

    `max_versions` and `max_age` purge old versions, either of them being enough (`purge_join="or"`) or only both
    together (``"and"``). A group that sets neither keeps one version if it has columns and all if it has families;
    ``max_versions="all"`` keeps all in either. Whatever is kept, `as_of` sees the past as far as history reaches.
    `block_bytes` is how much a read fetches at least: 256 KiB unless it is given, 384 KiB with zstd.
    `in_memory` asks the cache to keep the group's blocks.
    """

    name: str
    columns: Mapping[str, TypeLike] | None = None
    families: Sequence[str] | None = None
    compression: str = "lz4"
    block_bytes: int | None = None
    max_versions: int | Literal["all"] | None = None
    max_age: str | timedelta | float | None = None
    purge_join: Literal["and", "or"] = "or"
    in_memory: bool = False


@dataclass(frozen=True)
class Schema:
    """The key and the groups of a table.

    `key` maps key columns to types, in order; the default is one column ``row: binary``. `columns` is short for one
    group named ``default`` with these columns.
    """

    key: Mapping[str, TypeLike] = field(default_factory=lambda: {"row": "binary"})
    groups: Sequence[Group] = ()
    columns: Mapping[str, TypeLike] | None = None

    def number(self) -> TableSchema:
        """Check the declaration and give everything in it an id. Raises `SchemaError` if it cannot be."""
        if not isinstance(self.key, Mapping) or not isinstance(self.columns, (Mapping, type(None))):
            raise SchemaError("key and columns map names to types, such as {'user': 'string', 'day': 'date32'}")
        if not isinstance(self.groups, Sequence):
            raise SchemaError(f"groups is a list of ebla.Group, such as [{shown(self.groups)}]")
        groups = list(self.groups)
        if self.columns is not None:
            groups.insert(0, Group("default", columns=self.columns))
        if not groups:
            raise SchemaError("a table needs at least one group: give columns={...} or groups=[Group(...)]")
        if not self.key:
            raise SchemaError("a key needs at least one column")
        ids = iter(range(1, 1 << 30))
        key = tuple(Column(next(ids), check_name(n, "key column"), type_of(n, t)) for n, t in self.key.items())
        numbered = tuple(number_group(group, ids) for group in groups)
        schema = TableSchema(version=1, key=key, groups=numbered, next_id=next(ids))
        schema.check()
        return schema


def check_name(name: Any, what: str) -> str:
    """Return `name` if a column, a family or a group may be called that."""
    name = plain_text(name)
    if not isinstance(name, str) or not name:
        raise SchemaError(f"a {what} needs a name, not {shown(name)}")
    if name.startswith("_"):
        raise SchemaError(f"{what} {name!r}: names that begin with '_' belong to the store")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise SchemaError(f"{what} {name!r}: half a surrogate pair is no text, leave it out of the name") from None
    if length > NAME_BYTES_MAX:
        raise SchemaError(f"{what} {name[:20]!r}...: a name has at most {NAME_BYTES_MAX} bytes")
    return name


def number_group(group: Group, ids: Iterable[int], version: int = 1, *, may_be_empty: bool = False) -> GroupSchema:
    """Check one group and give everything in it an id. Raises `SchemaError` if it cannot be."""
    take = iter(ids)
    if not isinstance(group, Group):
        raise SchemaError(f"groups is a list of ebla.Group, not of {type(group).__name__}")
    if (group.columns is None) == (group.families is None):
        raise SchemaError(f"group {shown(group.name)} needs either columns or families, and not both")
    if not isinstance(group.compression, str) or group.compression not in COMPRESSIONS:
        raise SchemaError(f"group {shown(group.name)}: compression is one of {', '.join(COMPRESSIONS)}")
    if not isinstance(group.purge_join, str) or group.purge_join not in ("and", "or"):
        raise SchemaError(f"group {shown(group.name)}: purge_join is 'and' or 'or', not {shown(group.purge_join)}")
    if group.block_bytes is not None and not _is_whole(group.block_bytes, BLOCK_BYTES_MIN, BLOCK_BYTES_MAX):
        raise SchemaError(
            f"group {shown(group.name)}: block_bytes is at least {BLOCK_BYTES_MIN} and at most {BLOCK_BYTES_MAX}, "
            f"a whole number, not {shown(group.block_bytes)}"
        )
    if not isinstance(group.in_memory, bool):
        raise SchemaError(f"group {shown(group.name)}: in_memory is True or False, not {shown(group.in_memory)}")
    if group.columns is not None and not isinstance(group.columns, Mapping):
        raise SchemaError(f"group {shown(group.name)}: columns maps names to types, such as {{'age': 'int32'}}")
    if group.families is not None and (isinstance(group.families, str) or not isinstance(group.families, Sequence)):
        raise SchemaError(f"group {shown(group.name)}: families is a list of names, such as [{shown(group.families)}]")
    columns = tuple(
        Column(next(take), check_name(name, "column"), type_of(name, kind), version, version)
        for name, kind in (group.columns or {}).items()
    )
    families = tuple(Family(next(take), check_family(name)) for name in (group.families or ()))
    if group.families is not None and not families and not may_be_empty:
        raise SchemaError(f"group {shown(group.name)} lists no family")
    return GroupSchema(
        id=next(take),
        name=check_name(group.name, "group"),
        layout="columns" if group.columns is not None else "cells",
        columns=columns,
        families=families,
        compression=str(plain_text(group.compression)),
        block_bytes=_block_bytes(group),
        max_versions=_max_versions(group),
        max_age_microseconds=None if group.max_age is None else parse_age(group.max_age),
        purge_join="and" if group.purge_join == "and" else "or",
        in_memory=group.in_memory,
    )


def _is_whole(given: object, least: int, most: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and least <= given <= most


def _block_bytes(group: Group) -> int:
    if group.block_bytes is not None:
        return group.block_bytes
    return BLOCK_BYTES_ZSTD if group.compression == "zstd" else BLOCK_BYTES_DEFAULT


def _max_versions(group: Group) -> int | None:
    """Return how many versions a group keeps, None for all of them."""
    given = group.max_versions
    if given is None:
        # Who says nothing about versions of typed columns thinks of a table as SQL does.
        return 1 if group.columns is not None and group.max_age is None else None
    if isinstance(given, str) and given == "all":
        return None
    if not _is_whole(given, 1, NUMBER_MAX):
        raise SchemaError(f"group {shown(group.name)}: max_versions is at least 1, or 'all', not {shown(given)}")
    return given


def check_family(name: str) -> str:
    """Return `name` if a family may be called that; ``*`` stands for all others."""
    plain = check_name(name, "family")
    if ":" in plain:
        raise SchemaError(f"family {plain!r}: a family has no ':' in its name")
    return plain


def _is_text(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- what the store keeps ------------------------------------------------------------------------


class Column(msgspec.Struct, frozen=True):
    """A typed column with the id by which the store knows it."""

    id: int
    name: str
    type: pa.DataType
    named_since: int = 1  # the schema version in which it got its name
    typed_since: int = 1  # the schema version in which it got its type


class Family(msgspec.Struct, frozen=True):
    """A column family of a cells group; ``*`` stands for every family in no other group."""

    id: int
    name: str


class GroupSchema(msgspec.Struct, frozen=True, dict=True):
    """A numbered locality group."""

    id: int
    name: str
    layout: Literal["columns", "cells"]
    columns: tuple[Column, ...]
    families: tuple[Family, ...]
    compression: str
    block_bytes: int
    max_versions: int | None  # None: all
    max_age_microseconds: int | None
    purge_join: Literal["and", "or"]
    in_memory: bool

    @cached_property
    def column_by_id(self) -> dict[int, Column]:
        """The group's columns by id."""
        return {column.id: column for column in self.columns}

    @property
    def keeps_one(self) -> bool:
        """Whether one version of each typed column is kept, whatever its age."""
        return not self.is_cells and self.max_versions == 1 and self.max_age_microseconds is None

    @property
    def is_cells(self) -> bool:
        """Whether the group holds free cells rather than typed columns."""
        return self.layout == "cells"

    @property
    def is_wildcard(self) -> bool:
        """Whether the group takes every family that no other group names."""
        return any(family.name == WILDCARD for family in self.families)


class DroppedFamily(msgspec.Struct, frozen=True):
    """A family that was dropped: no cell of that name with a txn up to this one is ever shown again."""

    name: str
    txn: int
    version: int  # of the schema that dropped it


@dataclass(frozen=True, slots=True)
class Target:
    """What a column name means: a typed column, one cell, or a whole family of cells."""

    group: GroupSchema
    column: Column | None = None
    family: str | None = None
    qualifier: str | None = None


class TableSchema(msgspec.Struct, frozen=True, dict=True):
    """A numbered schema at one version."""

    version: int
    key: tuple[Column, ...]
    groups: tuple[GroupSchema, ...]
    next_id: int
    dropped: tuple[DroppedFamily, ...] = ()

    def __str__(self) -> str:
        lines = ["key: " + ", ".join(f"{column.name} {column.type}" for column in self.key)]
        for group in self.groups:
            names = [f"{column.name} {column.type}" for column in group.columns]
            names += [f"{family.name}:..." for family in group.families]
            lines.append(f"group {group.name}: " + ", ".join(names))
        return "\n".join(lines)

    def check(self) -> None:
        """Raise `SchemaError` unless every column maps to one group and the key can be ordered."""
        for column in self.key:
            if not is_key_type(column.type):
                raise SchemaError(
                    f"key column {column.name!r} cannot be {column.type}: use an integer, float, bool, string, "
                    "binary, date, time or timestamp"
                )
        names: dict[str, str] = {}
        for name, where in self._names():
            if name in names:
                if names[name] == where:
                    raise SchemaError(f"there would be two of {name!r} in {where}: choose another name")
                raise SchemaError(f"{name!r} stands both in {names[name]} and in {where}: a column has one place")
            names[name] = where
        if len({group.name for group in self.groups}) != len(self.groups):
            raise SchemaError("two groups have the same name")
        if sum(group.is_wildcard for group in self.groups) > 1:
            raise SchemaError("at most one group may take the families '*'")
        if any(group.is_cells for group in self.groups):
            for column in self.key:
                if column.name in RESERVED_CELL_NAMES:
                    raise SchemaError(f"key column {column.name!r}: the name is taken in tables with cells groups")

    def _names(self) -> Iterable[tuple[str, str]]:
        for column in self.key:
            yield column.name, "the key"
        for group in self.groups:
            for column in group.columns:
                yield column.name, f"group {shown(group.name)}"
            for family in group.families:
                if family.name != WILDCARD:
                    yield family.name, f"group {shown(group.name)}"

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns, in order."""
        return tuple(column.name for column in self.key)

    @cached_property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """The types of the key columns, in order."""
        return tuple(column.type for column in self.key)

    @cached_property
    def has_simple_key(self) -> bool:
        """Whether the key is one binary or string column, which then is its own encoding."""
        return len(self.key) == 1 and self.key[0].type in (pa.binary(), pa.string())

    @cached_property
    def group_by_id(self) -> dict[int, GroupSchema]:
        """The groups by id."""
        return {group.id: group for group in self.groups}

    @cached_property
    def typed_since(self) -> int:
        """The newest version in which a column got another type: older files are read with a cast."""
        return max((column.typed_since for group in self.groups for column in group.columns), default=1)

    @cached_property
    def wildcard_group(self) -> GroupSchema | None:
        """The group that takes every family that no group names, if there is one."""
        return next((group for group in self.groups if group.is_wildcard), None)

    @cached_property
    def _column_targets(self) -> dict[str, Target]:
        return {
            column.name: Target(group, column=column)
            for group in self.groups
            if not group.is_cells
            for column in group.columns
        }

    @cached_property
    def _family_groups(self) -> dict[str, GroupSchema]:
        return {family.name: group for group in self.groups for family in group.families}

    def family_group(self, family: str) -> GroupSchema | None:
        """Return the cells group that takes `family`, or None."""
        groups = self._family_groups
        return groups.get(family) or groups.get(WILDCARD)

    def resolve(self, name: str) -> Target:
        """Return what the column `name` means; raise `UnknownColumn` if the table takes no such column.

        A declared column is found by its name. Otherwise ``family:qualifier`` is one cell, ``family`` or ``family:``
        a whole declared family, and a bare name in a table with a ``*`` group a cell of the unnamed family.
        """
        if not isinstance(name, str):
            raise UnknownColumn(f"a column is named by a string, not {shown(name)}")
        found = self._column_targets.get(name)
        if found is not None:
            return found
        if name in self.key_names:
            raise UnknownColumn(f"{name!r} is part of the key, and no column that can be changed by itself")
        family, colon, qualifier = name.partition(":")
        if not colon:
            if name in self._family_groups and name != WILDCARD:
                return Target(self._family_groups[name], family=name)
            family, qualifier = "", name
        taken = family == WILDCARD or family in self._column_targets or family in self.key_names
        group = None if taken else self.family_group(family)
        if group is None:
            raise UnknownColumn(f"no column {name!r}: the table has {self.describe_columns()}")
        if not _is_text(name):
            raise UnknownColumn(f"no column {name!r}: half a surrogate pair is no text, leave it out of the name")
        return Target(group, family=family, qualifier=qualifier if not colon or qualifier else None)

    def describe_columns(self) -> str:
        """Name the table's columns and families in one line, for error messages."""
        parts = [column.name for group in self.groups for column in group.columns]
        parts += [f"{family.name}:*" for group in self.groups for family in group.families]
        shown = ", ".join(parts[:20]) + (", ..." if len(parts) > 20 else "")
        return shown or "no columns"


def encode_hook(value: Any) -> Any:
    """Let msgspec write the Arrow types inside a schema."""
    if isinstance(value, pa.DataType):
        return pa.schema([pa.field("", value)]).serialize().to_pybytes()
    raise NotImplementedError(f"cannot encode {type(value)}")


def decode_hook(kind: type, value: Any) -> Any:
    """Let msgspec read the Arrow types inside a schema."""
    if kind is pa.DataType:
        return pa.ipc.read_schema(pa.py_buffer(value)).field(0).type
    raise NotImplementedError(f"cannot decode {kind}")
