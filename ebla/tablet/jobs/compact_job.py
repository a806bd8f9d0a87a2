"""Compactions that are carried out elsewhere: what a job asks the owner of the store, and what it is told. Pure.

    PrepareCompaction  -->  CompactionTerms    how far back each group must be kept, and what may be in memory only
       the job chooses by the engine's rules
    BeginCompaction    -->  CompactionBegun    the engine leaves these files alone for a while
       the job merges, writes files of its own
    CompactCommit      -->  CompactResult      what was replaced; what was refused, and why

Nothing is promised in between: whatever changes a tablet meanwhile goes first, and what does not fit any more is
refused, tablet by tablet and group by group. So a commit that is repeated does no harm either. That the engine leaves
files alone only spares both the work that would be in vain.
"""

from __future__ import annotations

import msgspec

from ebla.metadata.values.changes import Change, RequirementFailed, RequireSchema, TabletAt, update
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata
from ebla.tablet.read.scopes import may_join
from ebla.tablet.upkeep.compaction import Strategy, is_dense
from ebla.tablet.upkeep.merging import Merge, replacement

__all__ = [
    "BeginCompaction",
    "CompactCommit",
    "CompactResult",
    "CompactionBegun",
    "CompactionTerms",
    "GroupTerms",
    "PrepareCompaction",
    "Replacement",
    "fitting",
    "is_applied",
]


class PrepareCompaction(msgspec.Struct, frozen=True, tag="prepare_compaction"):
    """Flush a table, and say on which terms its fragments may be merged now."""

    job: str
    table_id: str


class GroupTerms(msgspec.Struct, frozen=True):
    """What holds for a group: its `horizon` (`storage.compact`); from `unflushed` on, records may be in memory only."""

    group: int
    horizon: int
    unflushed: int


class CompactionTerms(msgspec.Struct, frozen=True, tag="compaction_terms"):
    """What a job must know to choose and merge as the owner would."""

    groups: tuple[GroupTerms, ...]
    strategy: Strategy


class BeginCompaction(msgspec.Struct, frozen=True, tag="begin_compaction"):
    """Leave these files of a table to the job, in the place of those that it named before; none: it is done."""

    job: str
    table_id: str
    files: tuple[str, ...]


class CompactionBegun(msgspec.Struct, frozen=True, tag="compaction_begun"):
    """The files are left alone until the job commits or says that it is done, but no longer than some time."""

    seconds: float


class Replacement(msgspec.Struct, frozen=True):
    """One merge that was carried out: all of its files are written."""

    tablet: TabletAt
    group: int
    merge: Merge
    added: tuple[FragmentRef, ...]
    records_read: int

    def change(self) -> Change:
        """Return what becomes of METADATA."""
        return replacement(self.merge, self.tablet, self.group, self.added, self.records_read)


class CompactCommit(msgspec.Struct, frozen=True, tag="compact"):
    """Replace what was merged: of these, all that still fit."""

    job: str
    table_id: str
    schema_version: int
    replacements: tuple[Replacement, ...]


class CompactResult(msgspec.Struct, frozen=True, tag="compacted"):
    """What was refused, by its number, each with a word that says why; everything else was replaced."""

    refused: tuple[tuple[int, str], ...] = ()


def fitting(
    metadata: TableMetadata, commit: CompactCommit, horizons: dict[int, int]
) -> tuple[list[Change], dict[int, str]]:
    """Return the changes of what fits METADATA as it is now, and why the rest does not, by number.

    `horizons` are those of the groups by now. They only grow, unless somebody began to hold an old snapshot.
    """
    changes: list[Change] = [RequireSchema(commit.schema_version)]
    refused: dict[int, str] = {}
    after = metadata
    for number, one in enumerate(commit.replacements):
        try:
            then = update(after, [changes[0], one.change()])
        except RequirementFailed as error:
            refused[number] = error.code
            continue
        tablet = metadata.by_id(one.tablet.tablet)
        assert tablet is not None, "a change of a tablet that is not there is refused"
        broken = _broken_promise(tablet.group(one.group), one.merge, horizons.get(one.group, 0))
        if broken is not None:
            refused[number] = broken
            continue
        after = then
        changes.append(one.change())
    return changes, refused


def _broken_promise(state: GroupState, merge: Merge, horizon: int) -> str | None:
    """Return what a merge was promised and does not hold any more."""
    if merge.horizon > horizon:
        return "snapshot_held"
    removed = set(merge.fragments)
    others = [ref for ref in state.fragments if ref not in removed]
    if merge.is_rooted and any(ref.txn_min <= merge.horizon for ref in others):
        return "older_fragments"
    if merge.is_dense and not is_dense(merge.fragments, others, None):
        return "fragments_between"
    return "strands" if merge.joins and not may_join(others) else None


def is_applied(metadata: TableMetadata, one: Replacement) -> bool:
    """Tell whether METADATA has a replacement whose outcome is not known.

    Files that only it can have brought tell; where nothing was left to be written, that its inputs are gone.
    """
    tablet = metadata.by_id(one.tablet.tablet)
    if tablet is None:
        return False
    there = set(tablet.group(one.group).fragments)
    return set(one.added) <= there if one.added else not there & set(one.merge.fragments)
