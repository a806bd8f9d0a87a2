"""Random changes of a schema, drawn from plain seeds: what a table of any shape can be asked to become."""

from __future__ import annotations

import random
from typing import Any

from ebla.model.declaration import Group
from ebla.model.schema import WILDCARD, GroupSchema, TableSchema

Request = dict[str, Any]

GROUPS_MAX = 5
WIDER = {"int32": ("int64", "float64"), "float32": ("float64",), "date32": ("timestamp[ms]", "date64")}


def columns_of(schema: TableSchema) -> list[tuple[GroupSchema, str, str]]:
    """Return all typed columns: group, name, type."""
    return [(group, column.name, str(column.type)) for group in schema.groups for column in group.columns]


def _families_of(schema: TableSchema) -> list[tuple[GroupSchema, str]]:
    return [(group, family.name) for group in schema.groups for family in group.families]


def _keeps_one(group: GroupSchema) -> bool:
    return group.max_versions == 1 and group.max_age_microseconds is None


def same_names(schema: TableSchema, dice: random.Random) -> Request | None:
    """Draw a change after which all columns and families of before are there, by the same names and types."""
    ways = [_readd_column, _move_column, _move_family, _readd_family, _settings, _move_to_new_group]
    return dice.choice(ways)(schema, dice)


def any_change(schema: TableSchema, dice: random.Random) -> Request | None:
    """Draw a change of any kind."""
    ways = [
        _add_column, _drop_column, _rename, _widen, _add_family, _drop_family, _drop_group, _move_wildcard, _several,
        _move_column, _move_family, _move_to_new_group, _readd_column, _readd_family,
    ]  # fmt: skip
    return dice.choice(ways)(schema, dice)


def _new_name(schema: TableSchema, prefix: str) -> str:
    return f"{prefix}{schema.next_id}"


def _settings(schema: TableSchema, dice: random.Random) -> Request:
    name = dice.choice(schema.groups).name
    compression = dice.choice(("none", "lz4", "snappy", "zstd"))
    return {"change_groups": {name: {"compression": compression, "block_bytes": dice.choice((1024, 65536))}}}


def _add_column(schema: TableSchema, dice: random.Random) -> Request | None:
    groups = [group.name for group in schema.groups if not group.is_cells]
    if not groups:
        return None
    kind = dice.choice(("int32", "string", "float32", "date32"))
    return {"add_columns": {dice.choice(groups): {_new_name(schema, "c"): kind}}}


def _drop_column(schema: TableSchema, dice: random.Random) -> Request | None:
    columns = columns_of(schema)
    return {"drop_columns": [dice.choice(columns)[1]]} if columns else None


def _readd_column(schema: TableSchema, dice: random.Random) -> Request | None:
    columns = columns_of(schema)
    if not columns:
        return None
    group, name, kind = dice.choice(columns)
    places = [g.name for g in schema.groups if not g.is_cells and _keeps_one(g) == _keeps_one(group)]
    return {"drop_columns": [name], "add_columns": {dice.choice(places): {name: kind}}}


def _move_column(schema: TableSchema, dice: random.Random) -> Request | None:
    columns = [one for one in columns_of(schema) if not _keeps_one(one[0])]
    places = [group.name for group in schema.groups if not group.is_cells and not _keeps_one(group)]
    if not columns or len(places) < 2:
        return None
    moved = dice.sample(columns, min(len(columns), dice.randint(1, 2)))
    return {"move": {name: dice.choice(places) for _, name, _ in moved}}


def _move_to_new_group(schema: TableSchema, dice: random.Random) -> Request | None:
    if len(schema.groups) >= GROUPS_MAX:
        empty = [g.name for g in schema.groups if not g.columns and not g.families]
        return {"drop_groups": [empty[0]]} if empty and len(schema.groups) > 1 else None
    name = _new_name(schema, "g")
    columns = [one for one in columns_of(schema) if not _keeps_one(one[0])]
    families = _families_of(schema)
    if columns and dice.random() < 0.6:
        group = Group(name, columns={}, max_versions="all", compression="zstd")
        return {"groups": [group], "move": {dice.choice(columns)[1]: name}}
    if families:
        return {"groups": [Group(name, families=[])], "move": {dice.choice(families)[1]: name}}
    return None


def _move_family(schema: TableSchema, dice: random.Random) -> Request | None:
    families = [one for one in _families_of(schema) if one[1] != WILDCARD]
    places = [group.name for group in schema.groups if group.is_cells]
    return {"move": {dice.choice(families)[1]: dice.choice(places)}} if families and len(places) > 1 else None


def _move_wildcard(schema: TableSchema, dice: random.Random) -> Request | None:
    places = [group.name for group in schema.groups if group.is_cells]
    if not places:
        return None
    if schema.wildcard_group is None:
        return {"add_families": {dice.choice(places): [WILDCARD]}}
    if dice.random() < 0.3:
        return {"drop_families": [WILDCARD]}
    return {"move": {WILDCARD: dice.choice(places)}}


def _add_family(schema: TableSchema, dice: random.Random) -> Request | None:
    """Name a family: one that is new, or that the group of all others has cells of."""
    places = [group.name for group in schema.groups if group.is_cells]
    known = {name for _, name in _families_of(schema)}
    names = [name for name in ("loose", "other", _new_name(schema, "f")) if name not in known]
    return {"add_families": {dice.choice(places): [dice.choice(names)]}} if places else None


def _drop_family(schema: TableSchema, dice: random.Random) -> Request | None:
    names = [name for _, name in _families_of(schema) if name != WILDCARD]
    if schema.wildcard_group is not None:
        names += [name for name in ("loose", "other") if name not in names]
    return {"drop_families": [dice.choice(names)]} if names else None


def _readd_family(schema: TableSchema, dice: random.Random) -> Request | None:
    families = [one for one in _families_of(schema) if one[1] != WILDCARD]
    places = [group.name for group in schema.groups if group.is_cells]
    if not families:
        return None
    _, name = dice.choice(families)
    return {"drop_families": [name], "add_families": {dice.choice(places): [name]}}


def _rename(schema: TableSchema, dice: random.Random) -> Request | None:
    names = [name for _, name, _ in columns_of(schema)]
    families = [name for _, name in _families_of(schema) if name != WILDCARD]
    if families and (not names or dice.random() < 0.4):
        old = dice.choice(families)
        if len(families) > 1 and dice.random() < 0.5:
            other = dice.choice([name for name in families if name != old])
            return {"rename": {old: other, other: old}}
        new = _new_name(schema, "f")
        drops = [new] if schema.wildcard_group is not None else []
        return {"rename": {old: new}, "drop_families": drops}
    if not names:
        return None
    old = dice.choice(names)
    return {"rename": {old: _new_name(schema, "c")}}


def _widen(schema: TableSchema, dice: random.Random) -> Request | None:
    fitting = [(name, wider) for _, name, kind in columns_of(schema) for wider in WIDER.get(kind[:7].strip("["), ())]
    return {"change_types": dict([dice.choice(fitting)])} if fitting else None


def _drop_group(schema: TableSchema, dice: random.Random) -> Request | None:
    columns_groups = [group for group in schema.groups if not group.is_cells]
    if len(schema.groups) < 4 or dice.random() < 0.5:
        return None
    group = dice.choice(schema.groups)
    return None if group.is_cells is False and len(columns_groups) == 1 else {"drop_groups": [group.name]}


def _several(schema: TableSchema, dice: random.Random) -> Request | None:
    """Draw a few changes in one call, as far as they do not touch the same things."""
    columns = dice.sample(columns_of(schema), min(3, len(columns_of(schema))))
    places = [group.name for group in schema.groups if not group.is_cells]
    if len(columns) < 3:
        return None
    (_, dropped, _), (_, renamed, _), (_, moved, _) = columns
    new = _new_name(schema, "c")
    return {
        "drop_columns": [dropped],
        "rename": {renamed: dropped},
        "add_columns": {dice.choice(places): {new: "int32"}},
        "move": {moved: dice.choice(places)},
    }
