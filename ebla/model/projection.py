"""Projections: from the column names of a request to what is read, and to how the answer looks.

    columns=["name", "click:home"]  -->  group profile: field 3          -->  | user | day | name | click:home |
                                         group events: family click

A row is in the answer if one of the groups that are read shows it: an outer join on the row. Whole families come as
maps from qualifier to value, the families of a ``*`` group as one map named ``*`` from ``family:qualifier`` to value. A
cell of the unnamed family stands there as ``qualifier``, or as ``:qualifier`` where a column or family is called so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.errors import RequestError, shown
from ebla.model.python_values import may_lose_times
from ebla.model.schema import WILDCARD, GroupSchema, TableSchema, Target


class Version(NamedTuple):
    """One version of a value: what it was, the commit that wrote it, and its timestamp."""

    value: Any
    txn: int
    timestamp: Any


def version_type(value: pa.DataType) -> pa.DataType:
    """Return the type of a column when several versions of it are read."""
    return pa.list_(pa.struct([("value", value), ("txn", pa.int64()), ("timestamp", pa.timestamp("us"))]))


@dataclass(frozen=True, slots=True)
class Output:
    """One column of an answer."""

    name: str
    kind: Literal["typed", "cell", "family", "wildcard"]
    group: GroupSchema
    field_id: int = 0
    type: pa.DataType | None = None
    family: str = ""
    qualifier: str = ""


@dataclass(frozen=True)
class Projection:
    """What a read fetches and how its answer looks."""

    schema: TableSchema
    outputs: tuple[Output, ...]
    versions: int = 1
    is_whole: bool = False  # of all columns: then groups that have lost all of theirs still show their rows
    any_group: bool = False  # any group may show a row, as where nothing but the key is asked for

    @classmethod
    def of(cls, schema: TableSchema, columns: Sequence[str] | None = None, versions: int = 1) -> Projection:
        """Resolve column names; None means all. Raises `UnknownColumn` for a name the table does not take."""
        if isinstance(columns, str):
            raise RequestError(f"columns is a list of names, such as [{shown(columns)}]")
        if isinstance(versions, bool) or not isinstance(versions, (int, np.integer)) or versions < 1:
            raise RequestError(f"versions is a whole number, at least 1, not {versions!r}")
        outputs: list[Output] = []
        if columns is None:
            for group in schema.groups:
                outputs += _all_of(group)
        else:
            named: dict[str, Output] = {}
            for name in columns:
                if name in schema.key_names:
                    continue
                output = _others(schema) if name == WILDCARD else None
                output = output or _output(name, schema.resolve(name))
                if named.setdefault(output.name, output) != output:
                    raise RequestError(
                        f"two columns of the answer would be called {output.name!r}: ask for one of them"
                    )
            outputs = list(named.values())
        return cls(schema, tuple(outputs), versions, columns is None)

    @cached_property
    def groups(self) -> tuple[GroupSchema, ...]:
        """The groups that must be read. A projection on the key alone reads them all: any may show a row."""
        if not self.outputs or self.any_group:
            return self.schema.groups
        wanted = {output.group.id for output in self.outputs}
        if self.is_whole:
            wanted.update(group.id for group in self.schema.groups if not group.is_cells)
        return tuple(group for group in self.schema.groups if group.id in wanted)

    @cached_property
    def types(self) -> Mapping[int, Mapping[int, pa.DataType]]:
        """For every columns group that is read: the field ids wanted, with their types."""
        return {
            group.id: {o.field_id: o.type for o in self.outputs if o.group.id == group.id and o.kind == "typed"}
            for group in self.groups
            if not group.is_cells
        }

    @cached_property
    def plain(self) -> bool:
        """Whether all that is read are typed columns, in one version, that no age limit hides."""
        return self.versions == 1 and all(
            not group.is_cells and (group.max_age_microseconds is None) for group in self.groups
        )

    @cached_property
    def is_short(self) -> bool:
        """Whether the newest of all that is read is found without a merge where a row has few records."""
        return self.versions == 1 and all(group.is_cells or group.max_age_microseconds is None for group in self.groups)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of the answer, without the key."""
        return tuple(output.name for output in self.outputs)

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The field ids of the columns of the answer, as the names that they have in records."""
        return tuple(str(output.field_id) for output in self.outputs)

    @cached_property
    def key_fields(self) -> tuple[str, ...]:
        """The names that the columns of the key have in records; none for a key that is its own row."""
        return () if self.schema.has_simple_key else tuple(f"key:{column.id}" for column in self.schema.key)

    @cached_property
    def by_group(self) -> tuple[tuple[int, tuple[tuple[str, str], ...]], ...]:
        """For every group that is read: the names of the typed columns wanted, with their field ids as text."""
        return tuple(
            (group.id, tuple((o.name, str(o.field_id)) for o in self.outputs if o.group.id == group.id))
            for group in self.groups
        )

    def wanted_cells(self, group: GroupSchema) -> dict[str, frozenset[str] | None] | None:
        """Return the families of a cells group that are read, each with its qualifiers (None: all); None for all."""
        return self._wanted_cells[group.id]

    @cached_property
    def _wanted_cells(self) -> dict[int, dict[str, frozenset[str] | None] | None]:
        return {group.id: self._wanted_of(group) for group in self.schema.groups if group.is_cells}

    def _wanted_of(self, group: GroupSchema) -> dict[str, frozenset[str] | None] | None:
        wanted: dict[str, frozenset[str] | None] = {}
        own = [output for output in self.outputs if output.group.id == group.id]
        if not own or any(output.kind == "wildcard" for output in own):
            return None
        for output in own:
            if output.kind == "family" or wanted.get(output.family, frozenset()) is None:
                wanted[output.family] = None
            else:
                wanted[output.family] = (wanted.get(output.family) or frozenset()) | {output.qualifier}
        is_all = all(family.name in wanted and wanted[family.name] is None for family in group.families)
        return None if is_all else wanted

    def only_wanted(self, group: GroupSchema, cells: dict[tuple[str, str], bytes]) -> dict[tuple[str, str], bytes]:
        """Leave out cells of a group that are not read."""
        wanted = self.wanted_cells(group)
        if wanted is None:
            return cells
        return {
            (family, qualifier): value
            for (family, qualifier), value in cells.items()
            if family in wanted and ((own := wanted[family]) is None or qualifier in own)
        }

    def shown_cells(
        self,
        key: Iterable[tuple[str, Any]],
        values: Mapping[str, Any],
        cells: Mapping[int, Mapping[tuple[str, str], bytes]],
    ) -> dict[str, Any]:
        """Return one row as `spread` does, given its key, its typed columns and its cells by group."""
        shown: dict[str, Any] = dict(key)
        for output in self.outputs:
            kind = output.kind
            if kind == "typed":
                shown[output.name] = values[output.name]
                continue
            own = cells[output.group.id]
            if kind == "cell":
                value = own.get((output.family, output.qualifier))
                if value is not None:
                    shown[output.name] = value
            elif kind == "family":
                wanted = output.family
                for family, qualifier in sorted(own):
                    if family == wanted:
                        shown.setdefault(f"{family}:{qualifier}", own[family, qualifier])
            else:
                named = self.named_families
                for family, qualifier in sorted(own):
                    if family not in named:
                        shown.setdefault(self._called(family, qualifier), own[family, qualifier])
        return shown

    @cached_property
    def named_families(self) -> frozenset[str]:
        """The families that the wildcard group lists by name, which are not among its others."""
        group = self.schema.wildcard_group
        return frozenset() if group is None else frozenset(family.name for family in group.families)

    def _called(self, family: str, qualifier: str) -> str:
        """Return what a cell of a ``*`` group is called in an answer."""
        if family or ":" in qualifier or qualifier in self.taken_names:
            return f"{family}:{qualifier}"
        return qualifier

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the answer."""
        fields = [pa.field(column.name, column.type) for column in self.schema.key]
        return pa.schema(fields + [pa.field(output.name, self._type(output)) for output in self.outputs])

    @cached_property
    def may_lose_times(self) -> bool:
        """Whether the answer may have times of day that Python has not."""
        return may_lose_times(self.arrow_schema)

    def _type(self, output: Output) -> pa.DataType:
        value = output.type if output.kind == "typed" else pa.binary()
        if self.versions > 1:
            value = version_type(value)
        return pa.map_(pa.string(), value) if output.kind in ("family", "wildcard") else value

    @cached_property
    def taken_names(self) -> frozenset[str]:
        """The names of the key, of columns and of families."""
        taken = set(self.schema.key_names)
        for group in self.schema.groups:
            taken.update(column.name for column in group.columns)
            taken.update(family.name for family in group.families)
        return frozenset(taken)


def _all_of(group: GroupSchema) -> list[Output]:
    outputs = [Output(c.name, "typed", group, field_id=c.id, type=c.type) for c in group.columns]
    outputs += [Output(f.name, "family", group, family=f.name) for f in group.families if f.name != WILDCARD]
    if group.is_wildcard:
        outputs.append(Output(WILDCARD, "wildcard", group))
    return outputs


def _others(schema: TableSchema) -> Output | None:
    """Return the column of all families that have none of their own; None if the table takes no such families."""
    group = schema.wildcard_group
    return None if group is None else Output(WILDCARD, "wildcard", group)


def _output(name: str, target: Target) -> Output:
    if target.column is not None:
        return Output(name, "typed", target.group, field_id=target.column.id, type=target.column.type)
    assert target.family is not None
    if target.qualifier is None:
        return Output(name.removesuffix(":"), "family", target.group, family=target.family)
    return Output(name, "cell", target.group, family=target.family, qualifier=target.qualifier)


def spread(row: dict[str, Any], projection: Projection) -> dict[str, Any]:
    """Turn one row of an answer into the dict that a user gets: maps opened, absent cells left out.

    A cell that is called like a column with a ':' in its name does not take its place.
    """
    shown = {name: row[name] for name in projection.schema.key_names}
    several = projection.versions > 1
    for output in projection.outputs:
        value = row[output.name]
        if output.kind == "typed":
            shown[output.name] = [Version(**v) for v in value or ()] if several else value
        elif output.kind == "cell":
            if value is not None:
                shown[output.name] = [Version(**v) for v in value] if several else value
        else:
            prefix = f"{output.family}:" if output.kind == "family" else ""
            for qualifier, item in value or ():
                shown.setdefault(prefix + qualifier, [Version(**v) for v in item] if several else item)
    return shown
