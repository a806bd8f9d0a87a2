"""The reference model: what the store means, said as slowly and plainly as possible.

A table is the list of everything ever written to it. Nothing is folded, merged, sorted or thrown away, and every read
is worked out from that list by the definitions:

    put / erase / ...  --->  history: Record(key, group, identity, ts, txn, erased, values), ...
                             ranges:  RangeErasure(start, stop, txn), ...
    get / scan at T    --->  records with txn <= T
                               - those under a later erasure            (row, family, cell, or range)
                               - those replaced at the same timestamp   (cells)
                               - those the purge policy takes           (measured at T)
                             = versions, newest first, per column or cell

The identity of a record is ``()`` in a columns group and ``(family, qualifier)`` in a cells group; an erasure of a
whole family is ``(family, None)``, of a whole row in a cells group ``(None, None)``. A partial record holds only the
columns it sets. Keys are tuples, and because a tuple sorts before its own extensions, `start` and `stop` may be key
prefixes.

The model draws no transaction numbers: each change is told the `txn` under which the store committed it, so that both
sides can be asked the same question at the same moment.

Invariants: a record is never changed or removed once written; txns of the changes to a table never go back; an answer
at T depends on nothing written after T.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from ebla.errors import Conflict, RequestError, TableExists, UnknownTable
from ebla.model.declaration import Schema
from ebla.model.schema import Column, GroupSchema, TableSchema, Target

Key: TypeAlias = "tuple[Any, ...]"
Row: TypeAlias = "dict[str, Any]"
Identity: TypeAlias = "tuple[str | None, ...]"

INFINITY = (1 << 63) - 1
COUNTER_BITS = 10
WHOLE_ROW: Identity = (None, None)


class Version(NamedTuple):
    """One value of a column or cell: the commit that wrote it and its time in microseconds."""

    value: Any
    txn: int
    timestamp: int


class Cell(NamedTuple):
    """One line of `put_cells`; without a timestamp the commit time counts."""

    key: Key
    family: str
    qualifier: str
    value: bytes
    timestamp: int | None = None


@dataclass(frozen=True)
class Record:
    """One thing that was written. `ts` counts in cells groups only; elsewhere it is the commit time."""

    key: Key
    group: str
    identity: Identity
    ts: int
    txn: int
    erased: bool
    values: Any
    # After a change of the schema, in columns groups: the ids of the columns it speaks for; None: all there are.
    scope: frozenset[int] | None = None

    @property
    def place(self) -> tuple[object, ...]:
        """What tells it from other records of its row."""
        return self.group, self.identity, self.ts, self.txn, self.scope

    def hides(self, other: Record, column: Column | None = None) -> bool:
        """Tell whether an erasure in a columns group hides a record, or only what it sets a column to."""
        return self.txn > other.txn and (column is None or self.scope is None or column.id in self.scope)


@dataclass(frozen=True)
class RangeErasure:
    """Everything in [start, stop) that is older than `txn` is gone; None is an open end."""

    start: Key | None
    stop: Key | None
    txn: int

    def covers(self, key: Key) -> bool:
        """Tell whether `key` lies in the range."""
        return in_range(key, self.start, self.stop)


def in_range(key: Key, start: Key | None, stop: Key | None) -> bool:
    """Tell whether `key` lies in [start, stop), either of which may be a prefix or open."""
    return (start is None or key >= start) and (stop is None or key < stop)


def has_prefix(key: Key, prefix: Any) -> bool:
    """Tell whether `key` begins with `prefix`: whole columns of a tuple, or the bytes of a one-column key."""
    if isinstance(prefix, tuple):
        return key[: len(prefix)] == prefix
    return bool(key[0].startswith(prefix))


def time_of(txn: int) -> int:
    """Return the microsecond in which `txn` was drawn."""
    return txn >> COUNTER_BITS


def cell_name(family: str, qualifier: str) -> str:
    """Return the column name of a cell: a bare qualifier in the unnamed family."""
    return f"{family}:{qualifier}" if family else qualifier


class ReferenceStore:
    """Tables by name."""

    def __init__(self) -> None:
        self._tables: dict[str, ReferenceTable] = {}

    def create_table(self, name: str, schema: Schema) -> ReferenceTable:
        """Add an empty table."""
        if name in self._tables:
            raise TableExists(name)
        self._tables[name] = ReferenceTable(schema.number())
        return self._tables[name]

    def table(self, name: str) -> ReferenceTable:
        """Return a table."""
        if name not in self._tables:
            raise UnknownTable(name)
        return self._tables[name]

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return sorted(self._tables)

    def clone_table(self, origin: str, name: str) -> ReferenceTable:
        """Add a table with all that was ever written to another."""
        if name in self._tables:
            raise TableExists(name)
        taken = self.table(origin)
        made = self._tables[name] = ReferenceTable(taken.schema)
        made.history = {key: list(records) for key, records in taken.history.items()}
        made.ranges = list(taken.ranges)
        return made

    def drop_table(self, name: str) -> None:
        """Remove a table and all it ever held."""
        self.table(name)
        del self._tables[name]


class ReferenceTable:
    """One table: its history, the changes that add to it, and the reads worked out from it."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        # Only so that a row is found without reading all others; the lists hold everything ever written.
        self.history: dict[Key, list[Record]] = {}
        self.ranges: list[RangeErasure] = []

    # --- changes ------------------------------------------------------------------------------

    def put(
        self,
        rows: Row | Sequence[Row],
        txn: int,
        *,
        replace: bool = False,
        if_absent: bool = False,
        if_unchanged_since: int | None = None,
    ) -> None:
        """Write rows; within one call they count as written one after the other."""
        rows = [rows] if isinstance(rows, Mapping) else rows
        keys = [self.key_of(row) for row in rows]
        if self.conflicts(keys, txn - 1, if_absent=if_absent, if_unchanged_since=if_unchanged_since):
            raise Conflict("a row exists or has changed")
        commit = _Commit(self, txn)
        for key, row in zip(keys, rows, strict=True):
            typed, cells = self._split(row)
            if replace:
                self._replace_row(commit, key, typed, cells)
            else:
                self._put_row(commit, key, typed, cells)
        commit.write()

    def _put_row(self, commit: _Commit, key: Key, typed: dict[str, Row], cells: list[Cell]) -> None:
        for group, values in typed.items():
            commit.set_columns(key, group, values)
        for cell in cells:
            commit.set_cell(cell)
        if not typed and not cells:
            commit.set_columns(key, self._first_columns_group().name, {})

    def _replace_row(self, commit: _Commit, key: Key, typed: dict[str, Row], cells: list[Cell]) -> None:
        commit.forget(key)
        if not typed and not cells:
            typed = {self._first_columns_group().name: {}}
        for group in self.schema.groups:
            if group.is_cells:
                commit.erase(key, group.name, WHOLE_ROW)
            elif group.name in typed:
                nothing = dict.fromkeys(column.name for column in group.columns)
                commit.set_columns(key, group.name, nothing | typed[group.name])
            else:
                commit.erase(key, group.name, ())
        for cell in cells:
            commit.set_cell(cell)

    def put_cells(self, cells: Iterable[Cell], txn: int) -> None:
        """Write cells; two of one name and timestamp: the last wins."""
        commit = _Commit(self, txn)
        for cell in cells:
            commit.set_cell(cell)
        commit.write()

    def erase(self, key: Key, txn: int, columns: Sequence[str] | None = None) -> None:
        """Erase a row, or some of its columns, cells and families.

        A typed column is set to null, and only where the group shows the row: erasing never makes a row exist.
        """
        commit = _Commit(self, txn)
        if columns is None:
            for group in self.schema.groups:
                commit.erase(key, group.name, WHOLE_ROW if group.is_cells else ())
        for target in [self.schema.resolve(name) for name in columns or ()]:
            if target.column is None:
                commit.erase(key, target.group.name, (target.family, target.qualifier))
            elif self.shows(target.group, key, txn - 1):
                commit.set_columns(key, target.group.name, {target.column.name: None})
        commit.write()

    def erase_many(self, keys: Iterable[Key], txn: int) -> None:
        """Erase rows."""
        for key in dict.fromkeys(keys):
            self.erase(key, txn)

    def erase_range(self, start: Key | None, stop: Key | None, txn: int) -> None:
        """Erase all rows in [start, stop)."""
        self.ranges.append(RangeErasure(start, stop, txn))

    def increment(self, key: Key, column: str, by: Any, txn: int) -> Any:
        """Add to a number and return the sum; what is missing counts as 0. A cell is an 8-byte big-endian integer."""
        current = self._current(key, column, txn - 1)
        if self.schema.resolve(column).column is not None:
            return self._put_value(key, column, (0 if current is None else current) + by, txn)
        return decode_counter(self._put_value(key, column, encode_counter(decode_counter(current) + by), txn))

    def append(self, key: Key, column: str, suffix: Any, txn: int) -> Any:
        """Append to a string, to bytes or to a cell and return the whole; what is missing counts as empty."""
        current = self._current(key, column, txn - 1)
        return self._put_value(key, column, suffix if current is None else current + suffix, txn)

    def transact(self, key: Key, fn: Callable[[Row | None], Row | None], txn: int) -> None:
        """Put what `fn` makes of the row; None changes nothing."""
        changes = fn(self.get(key, as_of=txn - 1))
        if changes is not None:
            self.put(self.key_row(key) | changes, txn)

    def _current(self, key: Key, column: str, at: int) -> Any:
        row = self.get(key, columns=[column], as_of=at)
        return None if row is None else row.get(column)

    def _put_value(self, key: Key, column: str, value: Any, txn: int) -> Any:
        self.put(self.key_row(key) | {column: value}, txn)
        return value

    def alter(self, schema: TableSchema) -> None:
        """Change the schema: all that was ever written is written as if it had stood there under the new one."""
        old, self.schema = self.schema, schema
        for key, records in self.history.items():
            rewritten = [new for record in records for new in rewrite(record, old, schema)]
            # An erasure of a row stands in several groups, and would be written to each of them by each of them.
            erasures = {r.place: r for r in rewritten if r.erased}
            self.history[key] = [r for r in rewritten if not r.erased or erasures[r.place] is r]

    # --- conditions ---------------------------------------------------------------------------

    def conflicts(
        self, keys: Iterable[Key], at: int, *, if_absent: bool = False, if_unchanged_since: int | None = None
    ) -> bool:
        """Tell whether a conditional put of these rows is refused, all of it."""
        for key in keys:
            if if_absent and self.exists(key, at):
                return True
            if if_unchanged_since is not None and self.latest_txn(key) > if_unchanged_since:
                return True
        return False

    def exists(self, key: Key, at: int) -> bool:
        """Tell whether any group shows the row."""
        return self.get(key, as_of=at) is not None

    def shows(self, group: GroupSchema, key: Key, at: int) -> bool:
        """Tell whether one group shows the row."""
        return self._versions(group, key, at) is not None

    def latest_txn(self, key: Key) -> int:
        """Return the newest txn that touched the row, erasures included; 0 if none did."""
        touched = [record.txn for record in self.history.get(key, ())]
        touched += [erasure.txn for erasure in self.ranges if erasure.covers(key)]
        return max(touched, default=0)

    # --- reads --------------------------------------------------------------------------------

    def get(self, key: Key, columns: Sequence[str] | None = None, as_of: int | None = None) -> Row | None:
        """Return the row as a dict, or None if the groups read do not show it."""
        found = self._read(key, columns, self._moment(as_of))
        return None if found is None else self._newest(found)

    def get_many(
        self, keys: Iterable[Key], columns: Sequence[str] | None = None, as_of: int | None = None
    ) -> list[Row | None]:
        """Return the rows in the order asked, None for each that is not there."""
        return [self.get(key, columns, as_of) for key in keys]

    def scan(
        self,
        start: Key | None = None,
        stop: Key | None = None,
        *,
        prefix: Any = None,
        columns: Sequence[str] | None = None,
        where: Callable[[Row], bool | None] | None = None,
        versions: int = 1,
        as_of: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Row]:
        """Return rows in the order of their keys. With `versions` > 1 every value is a list of them, newest first."""
        at = self._moment(as_of)
        rows = []
        for key in sorted(self.history, reverse=reverse):
            if not in_range(key, start, stop) or (prefix is not None and not has_prefix(key, prefix)):
                continue
            found = self._read(key, columns, at)
            if found is None or (where is not None and where(self._looked_at(key, columns, found, at)) is not True):
                continue
            rows.append(self._newest(found) if versions == 1 else self._several(found, versions))
        return rows if limit is None else rows[:limit]

    def _looked_at(self, key: Key, columns: Sequence[str] | None, found: Row, at: int) -> Row:
        """Return what a filter sees of a row: what is read, or all of it if that is the key alone."""
        is_key_alone = columns is not None and set(columns) <= set(self.schema.key_names)
        whole = self._read(key, None, at) if is_key_alone else found
        assert whole is not None, "a row that is there is there as a whole"
        return self._newest(whole)

    def _moment(self, as_of: int | None) -> int:
        if as_of is not None:
            return as_of
        txns = [record.txn for records in self.history.values() for record in records]
        return max([*txns, *(erasure.txn for erasure in self.ranges)], default=0)

    def _newest(self, found: Row) -> Row:
        row: Row = {}
        for name, value in found.items():
            row[name] = value if name in self.schema.key_names else value[0].value if value else None
        return row

    def _several(self, found: Row, versions: int) -> Row:
        return {name: value if name in self.schema.key_names else value[:versions] for name, value in found.items()}

    def _read(self, key: Key, columns: Sequence[str] | None, at: int) -> Row | None:
        """Return the key and, for each column or cell asked for, its versions; None if the row is not shown.

        A columns group that is read shows the row by any record, a cells group by any of the cells asked for. Where
        nothing but the key is asked for, any group may show the row.
        """
        asked = [self.schema.resolve(name) for name in columns or () if name not in self.schema.key_names]
        targets = asked or self._all_targets()
        row: Row = self.key_row(key)
        is_shown = False
        for target in targets:
            versions = self._versions(target.group, key, at)
            if target.column is not None:
                is_shown |= versions is not None
                row[target.column.name] = (versions or {}).get(target.column.name, [])
                continue
            is_shown |= not target.group.is_cells and versions is not None
            for (family, qualifier), cell_versions in (versions or {}).items():
                if target.family in (None, family) and target.qualifier in (None, qualifier):
                    is_shown = True
                    row[cell_name(family, qualifier)] = cell_versions
        if not is_shown:
            return None
        return row if asked or columns is None else self.key_row(key)

    def _all_targets(self) -> list[Target]:
        targets = []
        for group in self.schema.groups:
            columns = [Target(group, column=column) for column in group.columns]
            targets += columns or [Target(group)]  # a group without columns shows rows all the same
        return targets

    def _versions(self, group: GroupSchema, key: Key, at: int) -> dict[Any, list[Version]] | None:
        read = self._versions_in_cells_group if group.is_cells else self._versions_in_columns_group
        return read(group, key, at)

    def _versions_in_columns_group(self, group: GroupSchema, key: Key, at: int) -> dict[str, list[Version]] | None:
        """Return the versions of each column; None if the group does not show the row.

        That the row exists is treated as one more column, which every record sets: so it is purged like one.
        """
        records = sorted(self._seen(group, key, at), key=lambda record: record.txn, reverse=True)
        erasures = [record for record in records if record.erased]
        written = [record for record in records if not record.erased]

        def sets(record: Record, column: Column) -> bool:
            return column.name in record.values and not any(erasure.hides(record, column) for erasure in erasures)

        live = [r for r in written if not any(e.hides(r) for e in erasures) or any(sets(r, c) for c in group.columns)]
        if not purge(group, [Version(None, record.txn, record.ts) for record in live], at):
            return None
        found = {
            column.name: purge(
                group, [Version(r.values[column.name], r.txn, r.ts) for r in written if sets(r, column)], at
            )
            for column in group.columns
        }
        if group.max_versions == 1 and group.max_age_microseconds is None:
            # Where one version is kept, it is one of the row as a whole.
            return {name: [v._replace(txn=live[0].txn, timestamp=live[0].ts) for v in vs] for name, vs in found.items()}
        return found

    def _versions_in_cells_group(self, group: GroupSchema, key: Key, at: int) -> dict[Any, list[Version]] | None:
        """Return the versions of each cell that has any; None if none has."""
        records = self._seen(group, key, at)
        erasures = [record for record in records if record.erased]
        cells: dict[Any, dict[int, Record]] = {}
        for record in records:
            if record.erased or any(erases(erasure, record) for erasure in erasures):
                continue
            at_timestamp = cells.setdefault(record.identity, {})
            if record.ts not in at_timestamp or record.txn > at_timestamp[record.ts].txn:
                at_timestamp[record.ts] = record
        found = {}
        for identity, by_timestamp in cells.items():
            newest_first = [by_timestamp[timestamp] for timestamp in sorted(by_timestamp, reverse=True)]
            kept = purge(group, [Version(record.values, record.txn, record.ts) for record in newest_first], at)
            if kept:
                found[identity] = kept
        return found or None

    def _seen(self, group: GroupSchema, key: Key, at: int) -> list[Record]:
        """Return the group's records of a row up to a moment, without those under a range erasure."""
        ranges = [erasure for erasure in self.ranges if erasure.txn <= at and erasure.covers(key)]
        return [
            record
            for record in self.history.get(key, ())
            if record.group == group.name
            and record.txn <= at
            and not any(erasure.txn > record.txn for erasure in ranges)
        ]

    # --- names --------------------------------------------------------------------------------

    def key_of(self, row: Mapping[str, Any]) -> Key:
        """Return the key of a row."""
        return tuple(row[name] for name in self.schema.key_names)

    def key_row(self, key: Key) -> Row:
        """Return the key columns of a row by name."""
        return dict(zip(self.schema.key_names, key, strict=True))

    def _split(self, row: Mapping[str, Any]) -> tuple[dict[str, Row], list[Cell]]:
        """Divide a row into typed values by group, and cells. A cell that is None is not given."""
        typed: dict[str, Row] = {}
        cells = []
        for name, value in row.items():
            if name in self.schema.key_names:
                continue
            target = self.schema.resolve(name)
            if target.column is not None:
                typed.setdefault(target.group.name, {})[name] = value
            elif value is not None:
                assert target.family is not None
                assert target.qualifier is not None
                cells.append(Cell(self.key_of(row), target.family, target.qualifier, value))
        return typed, cells

    def _first_columns_group(self) -> GroupSchema:
        for group in self.schema.groups:
            if not group.is_cells:
                return group
        raise RequestError("a table of cells alone cannot hold a row without cells")


class _Commit:
    """What one change writes: at most one record per identity and timestamp, the last one given."""

    def __init__(self, table: ReferenceTable, txn: int) -> None:
        self._table = table
        self._txn = txn
        self._records: dict[tuple[Key, str, Identity, int], Record] = {}

    def set_columns(self, key: Key, group: str, values: Row) -> None:
        place = (key, group, (), time_of(self._txn))
        before = self._records.get(place)
        self._records[place] = Record(*place, self._txn, False, (before.values if before else {}) | values)

    def set_cell(self, cell: Cell) -> None:
        group = self._table.schema.family_group(cell.family)
        assert group is not None
        timestamp = time_of(self._txn) if cell.timestamp is None else cell.timestamp
        place = (cell.key, group.name, (cell.family, cell.qualifier), timestamp)
        self._records[place] = Record(*place, self._txn, False, cell.value)

    def erase(self, key: Key, group: str, identity: Identity) -> None:
        place = (key, group, identity, INFINITY)
        self._records[place] = Record(*place, self._txn, True, None)

    def forget(self, key: Key) -> None:
        """Undo what this commit has written to a row so far."""
        self._records = {place: record for place, record in self._records.items() if place[0] != key}

    def write(self) -> None:
        for record in self._records.values():
            self._table.history.setdefault(record.key, []).append(record)


def rewrite(record: Record, old: TableSchema, new: TableSchema) -> Iterable[Record]:
    """Return what a record means under another schema: it may be divided among groups, or mean nothing any more.

    A column that moves takes all rows of its group along.
    """
    group = next(group for group in old.groups if group.name == record.group)
    if group.is_cells:
        yield from _rewrite_cell(record, group, new)
        return
    was_anywhere = {column.id for other in old.groups for column in other.columns}
    spoken = set(group.column_by_id) if record.scope is None else set(record.scope)
    for target in new.groups:
        if target.is_cells or (target.id != group.id and not group.column_by_id.keys() & target.column_by_id.keys()):
            continue
        kept = spoken & target.column_by_id.keys()
        values = None
        if not record.erased:
            values = {
                target.column_by_id[i].name: _widened(
                    record.values[column.name], column.type, target.column_by_id[i].type
                )
                for i, column in group.column_by_id.items()
                if i in kept and column.name in record.values
            }
        if target.id == group.id:
            kept |= target.column_by_id.keys() - was_anywhere
        yield replace(record, group=target.name, values=values, scope=frozenset(kept))


def _rewrite_cell(record: Record, group: GroupSchema, new: TableSchema) -> Iterable[Record]:
    family, qualifier = record.identity
    if family is None:  # a whole row was erased in every group of cells at once
        yield from (replace(record, group=target.name) for target in new.groups if target.is_cells)
        return
    places = {one.id: (target.name, one.name) for target in new.groups for one in target.families}
    names = {one.name: one.id for one in group.families}
    if family in names:
        place = places.get(names[family])
    elif any(one.name == family and one.version == new.version for one in new.dropped):
        place = None
    else:  # it was in the group of all others, and may have a name of its own by now
        named = next((one for one in places.values() if one[1] == family), None)
        rest = places.get(names["*"])
        place = named or (rest and (rest[0], family))
    if place is not None:
        yield replace(record, group=place[0], identity=(place[1], qualifier))


def _widened(value: Any, old: pa.DataType, new: pa.DataType) -> Any:
    return value if old == new else pa.scalar(value, old).cast(new).as_py()


def erases(erasure: Record, record: Record) -> bool:
    """Tell whether an erasure in a cells group hides a record: it covers it, is later, and reaches its timestamp."""
    family, qualifier = erasure.identity
    covers = family is None or (family == record.identity[0] and (qualifier is None or qualifier == record.identity[1]))
    return covers and erasure.txn > record.txn and erasure.ts >= record.ts


def purge(group: GroupSchema, versions: list[Version], at: int) -> list[Version]:
    """Return the versions, newest first, that the group's policy leaves for a reader at `at`.

    A limit that is not set takes nothing away: with one limit alone, that one decides under either join.
    """
    kept = []
    for count, version in enumerate(versions, start=1):
        exceeded = []
        if group.max_versions is not None:
            exceeded.append(count > group.max_versions)
        if group.max_age_microseconds is not None:
            exceeded.append(time_of(at) - version.timestamp > group.max_age_microseconds)
        purged = bool(exceeded) and (all(exceeded) if group.purge_join == "and" else any(exceeded))
        if not purged:
            kept.append(version)
    return kept


def encode_counter(number: int) -> bytes:
    """Return the cell that holds a counter."""
    return struct.pack(">q", number)


def decode_counter(cell: bytes | None) -> int:
    """Return the counter that a cell holds; a missing cell holds 0."""
    if cell is None:
        return 0
    if len(cell) != 8:
        raise RequestError(f"a counter has 8 bytes, not {len(cell)}")
    return int(struct.unpack(">q", cell)[0])
