"""What a user declares of a table: a `Schema` of `Group`s, with the names, types, sizes and ages that may be asked for.

`Schema.number` checks a declaration and makes of it the numbered `TableSchema` that the store keeps (schema.py). What
cannot be is refused with a `SchemaError` that says what may be written in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from ebla.arguments import plain_text
from ebla.errors import SchemaError, shown
from ebla.model.column_types import TypeLike, type_of
from ebla.model.schema import Column, Family, GroupSchema, TableSchema

COMPRESSIONS = ("none", "lz4", "snappy", "zstd")
BLOCK_BYTES_DEFAULT = 256 * 1024
# Who chooses zstd wants little space, and small blocks compress less.
BLOCK_BYTES_ZSTD = 384 * 1024
BLOCK_BYTES_MIN = 1024
BLOCK_BYTES_MAX = 1 << 30
# What METADATA can say of ages and numbers of versions.
NUMBER_MAX = (1 << 63) - 1
NAME_BYTES_MAX = 255

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


@dataclass(frozen=True)
class Group:
    """A locality group: columns or families that are stored together and apart from all others.

    Give either `columns` (name -> type; one typed Parquet column each) or `families` (names, or ``"*"`` for every
    family in no other group; free qualifiers, bytes values).

    `max_versions` and `max_age` purge old versions, either of them being enough (`purge_join="or"`) or only both
    together (``"and"``). A group that sets neither keeps one version if it has columns and all if it has families;
    ``max_versions="all"`` keeps all in either. Whatever is kept, `as_of` sees the past as far as history reaches.
    `block_bytes` is how much a read fetches at least: unless it is given 256 KiB, 384 KiB with zstd, and 1 MiB
    of columns that were loaded or compacted.
    `in_memory` asks the cache to keep the group's blocks. `lookup_at_once` has a lookup file made of every fragment of
    the group as soon as it is written, for rows that will be read one by one; else one is made when that pays.
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
    lookup_at_once: bool = False


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
    for flag in ("in_memory", "lookup_at_once"):
        if not isinstance(getattr(group, flag), bool):
            raise SchemaError(f"group {shown(group.name)}: {flag} is True or False, not {shown(getattr(group, flag))}")
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
        lookup_at_once=group.lookup_at_once,
    )


def _is_whole(given: object, least: int, most: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and least <= given <= most


def _block_bytes(group: Group) -> int:
    if group.block_bytes is not None:
        return group.block_bytes
    return default_block_bytes(group.compression)


def default_block_bytes(compression: str) -> int:
    """Return how large blocks are if the declaration of a group does not say it."""
    return BLOCK_BYTES_ZSTD if compression == "zstd" else BLOCK_BYTES_DEFAULT


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


def check_family(name: str) -> str:
    """Return `name` if a family may be called that; ``*`` stands for all others."""
    plain = check_name(name, "family")
    if ":" in plain:
        raise SchemaError(f"family {plain!r}: a family has no ':' in its name")
    return plain


def check_table_name(name: str) -> str:
    """Return `name` if a table may be called that."""
    name = plain_text(name)
    if not isinstance(name, str) or not _TABLE_NAME.fullmatch(name) or name in (".", ".."):
        raise SchemaError(f"a table name has 1 to 128 letters, digits, '_', '.' or '-', not {shown(name)}")
    if name == "META" or name.startswith("sys."):
        raise SchemaError(f"{name!r} is the name of a system table: choose another")
    return name


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
