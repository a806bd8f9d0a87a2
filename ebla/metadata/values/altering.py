"""What a change of the schema means to the fragments of a tablet. Pure: no I/O, no time, no chance.

No file is touched. A reference says what of its file counts for the group that it stands in, and a change of the schema
writes other references:

    Schema = X:(a b) Y:(c d)        X: 1[a b]              Y: 1'[c d], 3[c d]
    Schema = X:(a b c) Y:(d)        X: 1(a b), 1'(c), 3(c) Y: 1'(d), 3(d)          c is served from files of Y
    compact X into 4=[a b c]        X: 4                   Y: 1'(d), 3(d)
    Schema = X:(a) Y:(b c d)        X: 4(a)                Y: 1'(d), 3(d), 4(b c)  nothing old of c comes back from 3

**Columns** go by id. A column that leaves a group takes a reference to each of its fragments along, restricted to it;
what stays behind is restricted to the others. So is what a group had when another column arrives: an erasure in it says
nothing of columns that were elsewhere then. A column takes all rows of its group along, so that a read of it shows the
rows that it showed before; they stay when it goes on, by references to no column at all. Range erasures and the floor
of history come along too.

**Families** go by name in files, so a reference may also say what a family is called now. Of a group that takes ``*``
nobody knows which families its files hold: what leaves it is named as left out.

What is dropped stops to count. It vanishes from the files when they are compacted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from ebla.metadata.values.table_metadata import FormerGroup, FragmentRef, GroupState, RangeErasure, TabletMetadata
from ebla.model.schema import WILDCARD, GroupSchema, TableSchema

__all__ = ["Shares", "repartitioned", "shares_of"]


def repartitioned(tablet: TabletMetadata, old: TableSchema, new: TableSchema, flushed: int | None) -> TabletMetadata:
    """Return a tablet with its references in the groups of the new schema; its log is flushed up to an index.

    None: its leader flushes what it has in memory later, under the old version. Then a group is flushed as far as all
    that it is made of, and how far the former groups are is kept for that time (`late.py`).
    """
    shares = Shares(old, new)
    parts: dict[int, list[FragmentRef]] = {group.id: [] for group in new.groups}
    for group in old.groups:
        for target, refs in shares.of(group.id, tablet.group(group.id).fragments).items():
            parts[target] += refs
    states = []
    for group_id in sorted(parts):
        sources = shares.sources[group_id]
        before = [tablet.group(source) for source in sorted({group_id, *sources})]
        flushed_before = [tablet.group(source).flushed for source in sources] or [0]
        states.append(
            GroupState(
                group_id,
                tuple(dict.fromkeys(parts[group_id])),  # a column that comes and goes may bring the same rows again
                _all_erasures(before),
                min(flushed_before) if flushed is None else max(flushed, *(state.flushed for state in before)),
                max(state.floor_txn for state in before),
            )
        )
    behind = tablet.behind
    if flushed is None:
        behind += tuple(FormerGroup(old.version, group.id, tablet.group(group.id).flushed) for group in old.groups)
    return msgspec.structs.replace(tablet, groups=tuple(states), behind=behind)


class Shares:
    """What of the references of a table's groups counts for which groups of its next schema."""

    def __init__(self, old: TableSchema, new: TableSchema) -> None:
        self.new = new
        self._shares: dict[int, Mapping[int, _ColumnShare | _FamilyShare]] = {
            group.id: _family_shares(group, old, new) if group.is_cells else _column_shares(group, old, new)
            for group in old.groups
        }
        self.sources: dict[int, set[int]] = {group.id: set() for group in new.groups}
        """By group of the new schema: those of the old one that it gets something from."""
        for source, targets in self._shares.items():
            for target in targets:
                self.sources[target].add(source)

    def of(self, source: int, fragments: Iterable[FragmentRef]) -> dict[int, list[FragmentRef]]:
        """Return the references of a group as they count afterwards, by group."""
        return {
            target: [ref for one in fragments if (ref := share.of(one)) is not None]
            for target, share in self._shares[source].items()
        }


def shares_of(former: Sequence[TableSchema], schema: TableSchema, version: int) -> list[Shares]:
    """Return the steps that lead from a former version to the schema of today; none if it is not on record."""
    schemas = [*(one for one in former if one.version >= version), schema]
    if schemas[0].version != version:
        return []
    return [Shares(old, new) for old, new in pairwise(schemas)]


def _all_erasures(states: Iterable[GroupState]) -> tuple[RangeErasure, ...]:
    # Every range erasure holds in all groups; one that a group has dropped hides nothing there any more.
    return tuple(dict.fromkeys(erasure for state in states for erasure in state.erasures))


# --- columns -------------------------------------------------------------------------------------


class _ColumnShare:
    """What of the references of a group counts for one group afterwards."""

    def __init__(self, had: Collection[int], keeps: Collection[int], adds: Collection[int] = ()) -> None:
        self._had = frozenset(had)
        self._keeps = frozenset(keeps)
        # What is new in the group is in none of the old files, so those that had all else may be said to have it, too.
        # Not more of them: what came from other groups must be told from it, for one may erase what another sets.
        self._adds = frozenset(adds)

    def of(self, ref: FragmentRef) -> FragmentRef:
        """Return the reference as it counts then. It may have rows alone to tell of, and no column."""
        counted = self._had if ref.columns is None else frozenset(ref.columns)
        is_whole = ref.columns is None or (self._had and counted >= self._had)
        wanted = tuple(sorted((counted & self._keeps) | (self._adds if is_whole else frozenset())))
        return ref if ref.columns == wanted else msgspec.structs.replace(ref, columns=wanted)


class _SameShare(_ColumnShare):
    """The same where nothing comes and nothing leaves: files go on counting, dropped ids are never asked for again."""

    def of(self, ref: FragmentRef) -> FragmentRef:
        return ref if ref.columns is None else super().of(ref)


def _column_shares(group: GroupSchema, old: TableSchema, new: TableSchema) -> dict[int, _ColumnShare]:
    had = set(group.column_by_id)
    was_anywhere = {column.id for other in old.groups for column in other.columns}
    shares: dict[int, _ColumnShare] = {}
    for target in new.groups:
        if target.is_cells:
            continue
        keeps = had.intersection(target.column_by_id)
        if target.id == group.id:
            adds = target.column_by_id.keys() - was_anywhere
            arrived = target.column_by_id.keys() - adds - had
            left = any(had & other.column_by_id.keys() for other in new.groups if other.id != group.id)
            shares[target.id] = (_ColumnShare if arrived or left else _SameShare)(had, keeps, adds)
        elif keeps:
            shares[target.id] = _ColumnShare(had, keeps)
    return shares


# --- families ------------------------------------------------------------------------------------


class _FamilyShare:
    """What of the references of a group of families counts for one group afterwards, and under which names."""

    def __init__(self, only: Collection[str] | None, without: Collection[str], names: Mapping[str, str]) -> None:
        self._only = only
        self._without = without
        self._names = {old: new for old, new in names.items() if old != new}

    def of(self, ref: FragmentRef) -> FragmentRef | None:
        """Return the reference as it counts then; None if it does not."""
        if self._only is not None:
            counted = {stored for name in self._only for stored in _stored(ref, name)}
            if not counted:
                return None
            ref = _with_families(ref, tuple(sorted(counted)), ())
        gone = {stored for name in self._without for stored in _stored(ref, name)}
        if gone and ref.families is not None:
            left = tuple(name for name in ref.families if name not in gone)
            if not left:
                return None
            ref = _with_families(ref, left, ref.families_out)
        elif gone:
            ref = _with_families(ref, None, tuple(sorted({*ref.families_out, *gone})))
        now = dict(ref.renamed)
        for old, new in self._names.items():
            now.update((stored, new) for stored in _stored(ref, old))
        renamed = tuple(sorted((stored, name) for stored, name in now.items() if _counts(ref, stored)))
        return ref if renamed == ref.renamed else msgspec.structs.replace(ref, renamed=renamed)


def _with_families(ref: FragmentRef, only: tuple[str, ...] | None, without: tuple[str, ...]) -> FragmentRef:
    if (ref.families, ref.families_out) == (only, without):
        return ref
    return msgspec.structs.replace(ref, families=only, families_out=without)


def _counts(ref: FragmentRef, stored: str) -> bool:
    return (ref.families is None or stored in ref.families) and stored not in ref.families_out


def _stored(ref: FragmentRef, name: str) -> set[str]:
    """Return the names that a family may have in the file of a reference."""
    found = {stored for stored, now in ref.renamed if now == name}
    if all(stored != name for stored, _ in ref.renamed):
        found.add(name)
    return {stored for stored in found if _counts(ref, stored)}


def _family_shares(group: GroupSchema, old: TableSchema, new: TableSchema) -> dict[int, _FamilyShare]:
    places = {family.id: (target.id, family.name) for target in new.groups for family in target.families}
    dropped = {one.name for one in new.dropped if one.version == new.version}
    shares: dict[int, _FamilyShare] = {}
    going: dict[int, set[str]] = defaultdict(set)
    renamed: dict[str, str] = {}
    rest: int | None = None  # who gets the families that nobody names
    for family in group.families:
        target, name = places.get(family.id, (None, family.name))
        if family.name == WILDCARD:
            rest = target
        elif target is not None:
            going[target].add(family.name)
            renamed[family.name] = name
    named = {family.name for one in old.groups for family in one.families if family.name != WILDCARD}
    if group.is_wildcard:
        # Families that had no name of their own in the schema, and have one now.
        for one in new.groups:
            for family in one.families:
                is_new = all(family.id != known.id for other in old.groups for known in other.families)
                if is_new and family.name not in named | dropped | {WILDCARD}:
                    going[one.id].add(family.name)
    for target in {*going, *(() if rest is None else (rest,))}:
        names = going[target]
        if target == rest:
            elsewhere = {name for other, others in going.items() if other != target for name in others}
            gone = {family.name for family in group.families if family.id not in places} - {WILDCARD}
            left_out = elsewhere | gone | (dropped - names)
            if target != group.id:
                left_out |= named - names
            shares[target] = _FamilyShare(None, left_out, renamed)
        elif target == group.id and not _has_left(group, going, target):
            shares[target] = _FamilyShare(None, (), renamed)
        else:
            shares[target] = _FamilyShare(names, (), renamed)
    return shares


def _has_left(group: GroupSchema, going: Mapping[int, Collection[str]], target: int) -> bool:
    """Tell whether a group loses a family, or all that have no name."""
    return any(family.name not in going[target] for family in group.families)
