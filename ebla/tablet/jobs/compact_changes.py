"""What becomes of METADATA when a job commits merges that were carried out elsewhere: what still fits, and what not.

Pure. `compact_driver` carries it out; the orders and their answers are in `ebla.service.job_orders`.
"""

from __future__ import annotations

from ebla.metadata.values.changes import Change, RequirementFailed, RequireSchema, update
from ebla.metadata.values.table_metadata import GroupState, TableMetadata
from ebla.service.job_orders import CompactCommit, Merge, Replacement
from ebla.tablet.read.scopes import may_join
from ebla.tablet.upkeep.merging import replacement
from ebla.tablet.upkeep.present import has_roots, is_dense, is_rooted, needed_until

__all__ = ["fitting", "is_applied"]


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
        change = replacement(one.merge, one.tablet, one.group, one.added, one.records_read)
        try:
            then = update(after, [changes[0], change])
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
        changes.append(change)
    return changes, refused


def _broken_promise(state: GroupState, merge: Merge, horizon: int) -> str | None:
    """Return what a merge was promised and does not hold any more."""
    if merge.horizon > horizon:
        return "snapshot_held"
    removed = set(merge.fragments)
    others = [ref for ref in state.fragments if ref not in removed]
    if merge.is_rooted and not is_rooted(others, merge.horizon):
        return "older_fragments"
    if merge.is_dense and not is_dense(merge.fragments, others, None):
        return "fragments_between"
    if merge.roots_present and not has_roots(merge.fragments, others, merge.present, merge.horizon):
        return "older_fragments"
    if merge.present and merge.history_txn < needed_until(others, merge.present, merge.horizon):
        return "older_fragments"
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
