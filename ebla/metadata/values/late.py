"""What is written under a former version of the schema and arrives after the next one: it is taken in, never refused.

    version 1   X: a b     Y: c          leader flushes X under 1, up to 7 --.    METADATA has version 2 by then
    version 2   X: a       Y: b c                                            `--> X gets (a), Y gets (b)

A change of the schema does not wait for the tablets' leaders. Each of them flushes what it has in memory under the
version that its rows were written with, then goes over to the new one, and reports it. Until all have, METADATA keeps
the former versions (`TableMetadata.former`), and for each tablet how far the former groups are flushed
(`TabletMetadata.behind`): a group of today is flushed as far as every former group that it has something of.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.metadata.values.altering import Shares
from ebla.metadata.values.requirements import RequirementFailed
from ebla.metadata.values.table_metadata import (
    FormerGroup,
    FragmentRef,
    GroupState,
    RangeErasure,
    TableMetadata,
    TabletMetadata,
)

__all__ = ["ForgetSchemas", "arrived", "flushed_late", "forget_schemas"]


class ForgetSchemas(msgspec.Struct, frozen=True, array_like=True, tag="forget_schemas"):
    """The leaders of all tablets use this version of the schema or a later one: nothing comes under earlier ones."""

    version: int


def forget_schemas(metadata: TableMetadata, change: ForgetSchemas) -> TableMetadata:
    """Return the metadata without what was kept for rows of earlier versions than that."""
    version = change.version
    if version > metadata.schema.version:
        reason = f"the schema has version {metadata.schema.version}, not {version}"
        raise RequirementFailed("schema_version", reason)
    changed = [
        msgspec.structs.replace(tablet, behind=tuple(one for one in tablet.behind if one.version >= version))
        for tablet in metadata.tablets
        if any(one.version < version for one in tablet.behind)
    ]
    kept = tuple(schema for schema in metadata.former if schema.version >= version)
    return metadata.with_tablets(changed).with_former(kept)


def arrived(steps: Sequence[Shares], group: int, fragments: Sequence[FragmentRef]) -> dict[int, list[FragmentRef]]:
    """Return the references of a group of a former schema by the groups of today that they count for."""
    by_group = {group: [*fragments]}
    for step in steps:
        after: dict[int, list[FragmentRef]] = {}
        for source, refs in by_group.items():
            for target, counted in step.of(source, refs).items():
                after.setdefault(target, []).extend(counted)
        by_group = after
    return {target: list(dict.fromkeys(refs)) for target, refs in by_group.items()}


def flushed_late(
    tablet: TabletMetadata,
    steps: Sequence[Shares],
    version: int,
    state: GroupState,
    erasures: tuple[RangeErasure, ...],
) -> TabletMetadata:
    """Return a tablet with one group of a former schema flushed: `state` has the new references and the index."""
    known = {(one.version, one.group): one.flushed for one in tablet.behind}
    if state.flushed < known.get((version, state.group), 0):
        reason = f"tablet {tablet.id}, group {state.group} of version {version}: flushed further already"
        raise RequirementFailed("already_flushed", reason)
    for target, refs in arrived(steps, state.group, state.fragments).items():
        there = tablet.group(target)
        new = tuple(ref for ref in refs if ref not in there.fragments)
        erased = tuple(erasure for erasure in erasures if erasure not in there.erasures)
        there = msgspec.structs.replace(there, fragments=(*there.fragments, *new), erasures=(*there.erasures, *erased))
        tablet = tablet.with_group(there)
    known[(version, state.group)] = state.flushed
    return _caught_up(tablet, steps, version, known)


def _caught_up(
    tablet: TabletMetadata, steps: Sequence[Shares], version: int, known: dict[tuple[int, int], int]
) -> TabletMetadata:
    """Return a tablet whose groups are flushed as far as all that they are made of."""
    for step in steps:
        is_last = step is steps[-1]
        for target, sources in step.sources.items():
            flushed = min((known.get((version, source), 0) for source in sources), default=0)
            if not is_last:
                key = (step.new.version, target)
                known[key] = max(known.get(key, 0), flushed)
            elif flushed > tablet.group(target).flushed:
                tablet = tablet.with_group(msgspec.structs.replace(tablet.group(target), flushed=flushed))
        version = step.new.version
    behind = tuple(FormerGroup(version, group, flushed) for (version, group), flushed in sorted(known.items()))
    return msgspec.structs.replace(tablet, behind=behind)
