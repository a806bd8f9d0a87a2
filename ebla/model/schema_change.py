"""Changes of a schema: what a user asks for, and the schema that comes of it. Pure: values in, values out.

    TableSchema, Alteration  --altered()-->  TableSchema of the next version        or SchemaError, UnknownColumn

What a request names is done in this order, each step on what the ones before it made:

    drop columns, families -> rename -> new groups -> add columns, families -> move -> types -> settings -> drop groups

So a name that is dropped may be added again in the same request: it is another column then, with another id. Ids are
never given out twice, and everything inside the store goes by them; what a column or family held before it was dropped
can not come back with its name. Families are the exception, for their names stand in the files: `TableSchema.dropped`
says from when on a name counts anew.

A type may be changed to one that holds every value of the old type exactly. Keys keep their types and their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa

from ebla.arguments import checked_names, plain_texts
from ebla.errors import SchemaError, UnknownColumn, shown
from ebla.model.column_types import TypeLike, type_of
from ebla.model.declaration import Group, check_family, check_name, number_group, parse_age
from ebla.model.schema import WILDCARD, Column, DroppedFamily, Family, GroupSchema, TableSchema

__all__ = ["Alteration", "altered", "is_lossless"]

_SETTINGS = (
    "name",
    "compression",
    "block_bytes",
    "max_versions",
    "max_age",
    "purge_join",
    "in_memory",
    "lookup_at_once",
)


@dataclass(frozen=True)
class Alteration:
    """A request to change a schema. `Database.alter_table` says what each part means."""

    add_columns: Mapping[str, TypeLike | Mapping[str, TypeLike]] = field(default_factory=dict)
    drop_columns: Sequence[str] = ()
    add_families: Mapping[str, Sequence[str]] | Sequence[str] = ()
    drop_families: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    move: Mapping[str, str] = field(default_factory=dict)
    change_types: Mapping[str, TypeLike] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    change_groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    drop_groups: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("drop_columns", "add_families", "drop_families", "groups", "drop_groups"):
            value = getattr(self, name)
            if isinstance(value, (str, Group)) or not isinstance(value, Iterable):
                raise SchemaError(f"{name} is a list, such as [{shown(value)}]")
            if not isinstance(value, Mapping):
                # As a tuple, for it is read more than once.
                object.__setattr__(self, name, checked_names(name, value, error=SchemaError))
        if isinstance(self.add_families, Mapping):
            families = {
                g: tuple(names) if isinstance(names, Iterator) else names for g, names in self.add_families.items()
            }
            object.__setattr__(self, "add_families", plain_texts(families))
        for name in ("add_columns", "rename", "move", "change_types", "change_groups"):
            if not isinstance(getattr(self, name), Mapping):
                raise SchemaError(f"{name} is a dict, not {shown(getattr(self, name))}")
            object.__setattr__(self, name, plain_texts(getattr(self, name)))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return not any(getattr(self, name) for name in self.__dataclass_fields__)


def altered(schema: TableSchema, request: Alteration, dropped_at: int = 0) -> TableSchema:
    """Return the schema that a request makes of this one, as its next version.

    `dropped_at` is the newest txn that the table may have: cells up to it of families that are dropped stay gone.
    """
    if request.is_empty:
        raise SchemaError("nothing to change: say what to add, drop, rename, move or set")
    change = _Change(schema, dropped_at)
    for name in request.drop_columns:
        change.drop_column(name)
    for name in request.drop_families:
        change.drop_family(name)
    change.rename(request.rename)
    for group in request.groups:
        change.add_group(group)
    change.add_columns(request.add_columns)
    change.add_families(request.add_families)
    for name, group_name in request.move.items():
        change.move(name, group_name)
    for name, kind in request.change_types.items():
        change.change_type(name, kind)
    for name, settings in request.change_groups.items():
        change.set_group(name, settings)
    for name in request.drop_groups:
        change.drop_group(name)
    return change.finished()


class _Change:
    """A schema under change: its groups as they are by now."""

    def __init__(self, schema: TableSchema, dropped_at: int) -> None:
        self._old = schema
        self._version = schema.version + 1
        self._dropped_at = dropped_at
        self._ids = count(schema.next_id)
        self._key = list(schema.key)
        self._groups = {group.name: group for group in schema.groups}
        self._dropped = {one.name: one for one in schema.dropped}
        self._fresh: set[str] = set()  # families of the `*` group that were dropped just now

    def finished(self) -> TableSchema:
        schema = TableSchema(
            version=self._version,
            key=tuple(self._key),
            groups=tuple(self._groups.values()),
            next_id=next(self._ids),
            dropped=tuple(sorted(self._dropped.values(), key=lambda one: one.name)),
        )
        if not schema.groups:
            raise SchemaError("a table needs at least one group: add another before the last one is dropped")
        schema.check()
        return schema

    # --- finding things ---

    def _group(self, name: str) -> GroupSchema:
        found = self._groups.get(name) if isinstance(name, str) else None
        if found is None:
            raise SchemaError(f"there is no group {name!r}: the table has {', '.join(map(repr, self._groups))}")
        return found

    def _only(self, *, is_cells: bool) -> GroupSchema:
        fitting = [group for group in self._groups.values() if group.is_cells == is_cells]
        known = [group for group in fitting if group.id < self._old.next_id]
        if len(fitting) == 1 or len(known) == 1:
            return (known or fitting)[0]
        default = self._groups.get("default")
        if default is not None and default.is_cells == is_cells:
            return default
        what, given = ("families", "{group: [family]}") if is_cells else ("columns", "{group: {column: type}}")
        raise SchemaError(
            f"the table has {len(fitting)} groups of {what}: say which is meant, as {given}, or add one with groups"
        )

    def _column(self, name: str) -> tuple[GroupSchema, Column]:
        for group in self._groups.values():
            for column in group.columns:
                if column.name == name:
                    return group, column
        raise UnknownColumn(f"no column {name!r}: the table has {self._described()}")

    def _family(self, name: str) -> tuple[GroupSchema, Family] | None:
        for group in self._groups.values():
            for family in group.families:
                if family.name == name:
                    return group, family
        return None

    def _described(self) -> str:
        return msgspec.structs.replace(self._old, groups=tuple(self._groups.values())).describe_columns()

    def _put(self, group: GroupSchema, **changed: Any) -> None:
        self._groups[group.name] = msgspec.structs.replace(group, **changed)

    # --- dropping ---

    def drop_group(self, name: str) -> None:
        group = self._group(name)
        for family in group.families:
            self._forget(family.name)
        del self._groups[name]

    def drop_column(self, name: str) -> None:
        _check_text(name, "column")
        if name in self._old.key_names:
            raise SchemaError(f"{name!r} is part of the key, which every row has: make another table instead")
        group, column = self._column(name)
        self._put(group, columns=tuple(one for one in group.columns if one.id != column.id))

    def drop_family(self, name: str) -> None:
        _check_text(name, "family")
        found = self._family(name)
        if found is None:
            if name == WILDCARD or not any(group.is_wildcard for group in self._groups.values()):
                raise UnknownColumn(f"no family {name!r}: the table has {self._described()}")
            check_family(name)  # cells of it may be in the group of all others
            self._fresh.add(name)
        else:
            group, family = found
            self._put(group, families=tuple(one for one in group.families if one.id != family.id))
        self._forget(name)

    def _forget(self, family: str) -> None:
        if family != WILDCARD:
            self._dropped[family] = DroppedFamily(family, self._dropped_at, self._version)

    # --- renaming ---

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename columns of the key, columns and families, all at once: two may change their names with each other."""
        known = {column.name for column in self._key}
        for group in self._groups.values():
            known.update(column.name for column in group.columns)
            known.update(family.name for family in group.families)
        for old, new in names.items():
            if old not in known or old == WILDCARD:
                raise UnknownColumn(f"no column or family {old!r} to rename: the table has {self._described()}")
            if self._family(old) is not None:
                self._check_new_family(old, new, names)
            else:
                check_name(new, "column")
        self._key = [self._named(column, names) for column in self._key]
        for group in list(self._groups.values()):
            columns = tuple(self._named(column, names) for column in group.columns)
            families = tuple(Family(one.id, names.get(one.name, one.name)) for one in group.families)
            self._put(group, columns=columns, families=families)

    def _named(self, column: Column, names: Mapping[str, str]) -> Column:
        new = names.get(column.name, column.name)
        if new == column.name:
            return column
        return Column(column.id, new, column.type, self._version, column.typed_since)

    def _check_new_family(self, old: str, new: str, names: Mapping[str, str]) -> None:
        if check_family(new) == WILDCARD:
            raise SchemaError(f"family {old!r} cannot be called '*': move it to the group of all others instead")
        is_named = self._old_family(new)
        if new != old and not is_named and new not in self._fresh and self._old.wildcard_group is not None:
            raise SchemaError(
                f"the group {self._old.wildcard_group.name!r} may hold cells of {new!r} already: drop those with "
                f"drop_families=[{new!r}] in the same call, or choose another name for {old!r}"
            )

    def _old_family(self, name: str) -> bool:
        return any(family.name == name for group in self._old.groups for family in group.families)

    # --- adding ---

    def add_group(self, group: Group) -> None:
        numbered = number_group(group, self._ids, self._version, may_be_empty=True)
        if numbered.name in self._groups:
            raise SchemaError(f"there is a group {numbered.name!r} already: its settings are changed by change_groups")
        self._groups[numbered.name] = numbered

    def add_columns(self, given: Mapping[str, TypeLike | Mapping[str, TypeLike]]) -> None:
        for name, what in given.items():
            if isinstance(what, Mapping):
                for column, kind in what.items():
                    self._add_column(self._group(name), column, kind)
            else:
                self._add_column(self._only(is_cells=False), name, what)

    def _add_column(self, group: GroupSchema, name: str, kind: TypeLike) -> None:
        if group.is_cells:
            raise SchemaError(f"group {group.name!r} holds families of cells: columns go to a group of columns")
        column = Column(next(self._ids), check_name(name, "column"), type_of(name, kind), self._version, self._version)
        self._put(group, columns=(*group.columns, column))

    def add_families(self, given: Mapping[str, Sequence[str]] | Sequence[str]) -> None:
        by_group = given if isinstance(given, Mapping) else {self._only(is_cells=True).name: given} if given else {}
        for group_name, names in by_group.items():
            if isinstance(names, str) or not isinstance(names, Iterable):
                given_name = names if isinstance(names, str) else "family"
                raise SchemaError(f"add_families lists names, such as {{{group_name!r}: [{given_name!r}]}}")
            for name in names:
                group = self._group(group_name)
                if not group.is_cells:
                    raise SchemaError(f"group {group_name!r} holds columns: families go to a group of families")
                self._put(group, families=(*group.families, Family(next(self._ids), check_family(name))))

    # --- moving ---

    def move(self, name: str, group_name: str) -> None:
        target = self._group(group_name)
        found = self._family(name)
        if found is not None:
            group, family = found
            if not target.is_cells:
                raise SchemaError(f"{name!r} is a family of cells: group {group_name!r} holds columns")
            if group.name != group_name:
                self._put(group, families=tuple(one for one in group.families if one.id != family.id))
                self._put(target, families=(*target.families, family))
            return
        if name in (column.name for column in self._key):
            raise SchemaError(f"{name!r} is part of the key, which is in every group")
        group, column = self._column(name)
        if target.is_cells:
            raise SchemaError(f"{name!r} is a column: group {group_name!r} holds families of cells")
        if group.name != group_name:
            self._put(group, columns=tuple(one for one in group.columns if one.id != column.id))
            self._put(target, columns=(*target.columns, column))

    # --- types and settings ---

    def change_type(self, name: str, given: TypeLike) -> None:
        if name in (column.name for column in self._key):
            raise SchemaError(f"{name!r} is part of the key, whose order depends on its type: make another table")
        group, column = self._column(name)
        kind = type_of(name, given)
        if kind == column.type:
            return
        if not is_lossless(column.type, kind):
            raise SchemaError(
                f"column {name!r} cannot become {kind}: not every {column.type} is one. Add a column of that type, "
                "copy, and drop the old one"
            )
        changed = Column(column.id, column.name, kind, column.named_since, self._version)
        self._put(group, columns=tuple(changed if one.id == column.id else one for one in group.columns))

    def set_group(self, name: str, settings: Mapping[str, Any]) -> None:
        group = self._group(name)
        if not isinstance(settings, Mapping):
            raise SchemaError(f"change_groups is like {{{name!r}: {{'compression': 'zstd'}}}}")
        unknown = [key for key in settings if key not in _SETTINGS]
        if unknown:
            raise SchemaError(f"group {name!r} has no setting {unknown[0]!r}: there are {', '.join(_SETTINGS)}")
        merged: dict[str, Any] = {key: getattr(group, key) for key in _SETTINGS if key != "max_age"}
        merged["max_versions"] = group.max_versions or "all"
        merged |= {key: value for key, value in settings.items() if key != "max_age"}
        age = group.max_age_microseconds
        if "max_age" in settings:
            age = None if settings["max_age"] is None else parse_age(settings["max_age"])
        # The same checks as when a table is made.
        layout: dict[str, Any] = {"families": ["any"]} if group.is_cells else {"columns": {}}
        checked = number_group(Group(**merged, **layout), count(1))
        if checked.name != name and checked.name in self._groups:
            raise SchemaError(f"there is a group {checked.name!r} already")
        new = msgspec.structs.replace(
            group,
            name=checked.name,
            compression=checked.compression,
            block_bytes=checked.block_bytes,
            max_versions=checked.max_versions,
            max_age_microseconds=age,
            purge_join=checked.purge_join,
            in_memory=checked.in_memory,
            lookup_at_once=checked.lookup_at_once,
        )
        self._groups = {(new.name if one == name else one): (new if one == name else g) for one, g in self._all()}

    def _all(self) -> list[tuple[str, GroupSchema]]:
        return list(self._groups.items())


# --- types ---------------------------------------------------------------------------------------


def is_lossless(old: pa.DataType, new: pa.DataType) -> bool:
    """Tell whether every value of `old` is a value of `new`, exactly."""
    types = pa.types
    if old == new:
        return True
    if types.is_integer(old):
        bits = old.bit_width - types.is_signed_integer(old)
        if types.is_integer(new):
            grows = new.bit_width - types.is_signed_integer(new) >= bits
            return bool(grows and (types.is_signed_integer(new) or types.is_unsigned_integer(old)))
        if types.is_floating(new):
            return bool(bits <= {16: 11, 32: 24, 64: 53}[new.bit_width])
        return bool(types.is_decimal(new) and new.precision - new.scale >= len(str(1 << bits)))
    if types.is_floating(old):
        return bool(types.is_floating(new) and new.bit_width >= old.bit_width)
    if types.is_decimal(old) and types.is_decimal(new):
        whole = old.precision - old.scale
        return bool(new.scale >= old.scale and new.precision - new.scale >= whole and new.bit_width >= old.bit_width)
    if types.is_date32(old):
        # A date32 reaches further than microseconds do.
        return new in (pa.date64(), pa.timestamp("s"), pa.timestamp("ms"))
    if types.is_time(old) and types.is_time(new):
        units = ("s", "ms", "us", "ns")
        return units.index(new.unit) >= units.index(old.unit)
    if types.is_list(old) and types.is_list(new):
        return is_lossless(old.value_type, new.value_type)
    return False


def _check_text(name: object, what: str) -> None:
    if not isinstance(name, str):
        raise UnknownColumn(f"a {what} is named by a string, not {shown(name)}")
