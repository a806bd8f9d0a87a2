"""Schemas as text: the options of ``ebla create``, and the JSON form that ``ebla describe --json`` prints.

    --key user:string --column name:string --group "events:families=click,view;max_versions=3"
    {"key": {"user": "string"}, "columns": {"name": "string"}, "groups": [{"name": "events", "families": [...]}]}

Both become an `ebla.Schema`; whether that can be is for the schema itself to say. The JSON that `describe` prints can
be given to `create` as it is, so that a table's shape can be copied, kept in version control and edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ebla.errors import InvalidKey, SchemaError
from ebla.model.declaration import Group, Schema
from ebla.model.schema import GroupSchema, TableSchema
from ebla.model.text_values import from_json, from_text, type_text

_AGE_UNITS = (("w", 604_800), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_GROUP_FORM = '"name:families=a,b;max_versions=3" or "name:columns=a:int32,b:string;compression=zstd"'


class GroupJson(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A group as JSON."""

    name: str
    columns: dict[str, str] | None = None
    families: list[str] | None = None
    compression: str | None = None
    block_bytes: int | None = None
    max_versions: int | Literal["all"] | None = None
    max_age: str | float | None = None
    purge_join: str | None = None
    in_memory: bool = False
    lookup_at_once: bool = False


class SchemaJson(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A table's schema as JSON. `name` and `version` are told by `describe` and ignored by `create`."""

    name: str | None = None
    version: int | None = None
    key: dict[str, str] | None = None
    columns: dict[str, str] | None = None
    groups: list[GroupJson] = []
    splits: list[Any] = []


# --- in ------------------------------------------------------------------------------------------


def schema_from_options(keys: Sequence[str], columns: Sequence[str], groups: Sequence[str]) -> Schema:
    """Build a schema from ``name:type`` texts and group texts."""
    parts: dict[str, Any] = {"groups": [group_from_text(text) for text in groups]}
    if keys:
        parts["key"] = dict(named_type(text, "--key") for text in keys)
    if columns:
        parts["columns"] = dict(named_type(text, "--column") for text in columns)
    for option, given, kept in (("--key", keys, parts.get("key")), ("--column", columns, parts.get("columns"))):
        if kept is not None and len(kept) != len(given):
            raise SchemaError(f"{option} names a column twice: every column has one type")
    return Schema(**parts)


def schema_from_json(text: bytes, origin: str) -> tuple[Schema, list[Any]]:
    """Build a schema and the keys to split at from their JSON form."""
    try:
        given = msgspec.json.decode(text, type=SchemaJson)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SchemaError(f"{origin} is not a schema: {error}; `ebla describe TABLE --json` shows the form") from None
    parts: dict[str, Any] = {"groups": [_group(group) for group in given.groups], "columns": given.columns}
    if given.key is not None:
        parts["key"] = given.key
    return Schema(**parts), given.splits


def group_from_text(text: str) -> Group:
    """Build a group from ``name:option=value;...``."""
    name, options = group_options_from_text(text, "--group")
    return _group(GroupJson(name=name, **options))


def group_options_from_text(text: str, given_by: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options that ``name:option=value;...`` gives."""
    name, colon, rest = text.partition(":")
    if not colon or not name.strip():
        raise SchemaError(f"{given_by} {text!r}: write {_GROUP_FORM}")
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(";"))):
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if option == "columns":
            texts = split_outside_brackets(value) if value else []
            options[option] = dict(named_type(column, "columns") for column in texts)
        elif option == "families":
            options[option] = [family.strip() for family in value.split(",") if family.strip()]
        elif option == "max_versions" and value == "all":
            options[option] = value
        elif option == "max_age" and value == "none":
            options[option] = None
        elif option in ("max_versions", "block_bytes"):
            if not value.isdecimal():
                raise SchemaError(f"{given_by} {name!r}: {option} is a whole number, not {value!r}")
            options[option] = int(value)
        elif option in ("in_memory", "lookup_at_once"):
            if value.lower() not in ("", "true", "false") or (equals and not value):
                raise SchemaError(f"{given_by} {name!r}: {option} is true or false, not {value!r}")
            options[option] = value.lower() != "false"
        elif option in ("compression", "max_age", "purge_join"):
            options[option] = value
        else:
            raise SchemaError(
                f"{given_by} {name!r}: no option {option!r}; there are columns, families, compression, block_bytes, "
                "max_versions, max_age, purge_join, in_memory and lookup_at_once"
            )
    return name.strip(), options


def _group(given: GroupJson) -> Group:
    return Group(**{name: value for name, value in msgspec.structs.asdict(given).items() if value is not None})


def named_type(text: str, option: str) -> tuple[str, str]:
    """Return the name and the type that ``name:type`` gives."""
    name, colon, kind = text.partition(":")
    if not colon or not name.strip() or not kind.strip():
        raise SchemaError(f"{option} {text!r}: write name:type, such as age:int32")
    return name.strip(), kind.strip()


def split_outside_brackets(text: str) -> list[str]:
    """Split at commas, except those inside a type such as ``decimal128(10, 2)`` or ``struct<x: int32, y: string>``."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "<([") - (char in ">)]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


# --- keys ----------------------------------------------------------------------------------------


def key_from_components(components: Sequence[str], schema: TableSchema) -> Any:
    """Return a whole key, a scalar or a tuple, from one text for each key column."""
    if len(components) != len(schema.key):
        named = " ".join(name.upper() for name in schema.key_names)
        raise InvalidKey(f"the key is {named}: give {len(schema.key)} value(s), not {len(components)}")
    values = tuple(
        from_text([text], column.type, column.name)[0].as_py()
        for text, column in zip(components, schema.key, strict=True)
    )
    return values if len(values) > 1 else values[0]


def bound_from_text(text: str, schema: TableSchema) -> Any:
    """Return a key or the beginning of one from the text of an option such as ``--start`` or ``--split``.

    The text is the first key column's value, or a JSON array of the first few columns' values.
    """
    if not text.startswith("["):
        return bound_from_values([text], schema)
    try:
        values = msgspec.json.decode(text, type=list[Any])
    except msgspec.MsgspecError as error:
        raise InvalidKey(f'the key {text!r} is not a JSON array ({error}): write ["ada", "2026-01-01"]') from None
    return bound_from_values(values, schema)


def bound_from_values(values: Any, schema: TableSchema) -> Any:
    """Return a key or the beginning of one from decoded JSON: one value, or a list of them."""
    given = values if isinstance(values, list) else [values]
    if not 1 <= len(given) <= len(schema.key):
        raise InvalidKey(f"the key is {', '.join(schema.key_names)}: {given!r} has {len(given)} value(s)")
    convert = [
        (from_text if isinstance(value, str) else from_json)([value], column.type, column.name)[0].as_py()
        for value, column in zip(given, schema.key, strict=False)
    ]
    return tuple(convert) if len(schema.key) > 1 else convert[0]


# --- out -----------------------------------------------------------------------------------------


def schema_to_json(name: str, schema: TableSchema) -> SchemaJson:
    """Return the JSON form of a table's schema."""
    return SchemaJson(
        name=name,
        version=schema.version,
        key={column.name: type_text(column.type) for column in schema.key},
        groups=[_group_to_json(group) for group in schema.groups],
    )


def _group_to_json(group: GroupSchema) -> GroupJson:
    return GroupJson(
        name=group.name,
        columns=None if group.is_cells else {column.name: type_text(column.type) for column in group.columns},
        families=[family.name for family in group.families] if group.is_cells else None,
        compression=group.compression,
        block_bytes=group.block_bytes,
        max_versions="all" if group.max_versions is None else group.max_versions,
        max_age=None if group.max_age_microseconds is None else age_text(group.max_age_microseconds),
        purge_join=group.purge_join,
        in_memory=group.in_memory,
        lookup_at_once=group.lookup_at_once,
    )


def age_text(microseconds: int) -> str:
    """Write an age in the largest unit that keeps it whole."""
    for unit, seconds in _AGE_UNITS:
        if microseconds % (seconds * 1_000_000) == 0:
            return f"{microseconds // (seconds * 1_000_000)}{unit}"
    return f"{microseconds}us"
