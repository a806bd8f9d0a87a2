"""What the store keeps of a table: its key, and its locality groups with their columns or families.

A user declares a `Schema` of `Group`s (declaration.py). The store numbers it: a `TableSchema` gives every key column,
value column, family and group an id that is never given out again, and a version that grows with every change. Inside
the store, columns are known by id, so that a rename touches no data and a dropped column cannot come back under its old
name.

    Schema  --number()-->  TableSchema  --resolve("click:home")-->  Target(group, family, qualifier)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec
import pyarrow as pa

from ebla.errors import SchemaError, UnknownColumn, shown
from ebla.model.column_types import is_key_type

WILDCARD = "*"
RESERVED_CELL_NAMES = ("family", "qualifier", "value", "timestamp")


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


class GroupSchema(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """A numbered locality group. What has a default came later: METADATA does not say it, and has the same checksum."""

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
    lookup_at_once: bool = False

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


def _is_text(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


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
