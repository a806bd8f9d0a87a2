"""Changes of a table's METADATA, as values: what must hold, and what is to become. Pure: no I/O, no time, no chance.

    metadata  --apply(changes, new txnid)-->  metadata'        or RequirementFailed, and nothing has changed

A change names what it relies on, such as the epoch at which its sender leads a tablet, rather than the transaction
that it was thought up on. So it can be applied to any later metadata for which that still holds: changes that do not
touch each other commute, and one that lost a race is tried again on what the winner left.

    TakeLog         the tablets' writes go to this server's log from now on
    Flush           one group of some tablets is now in these fragments, up to these log indexes
    AddFragments    fragments that came past the log (bulk load)
    ReplaceFragments  some fragments of a tablet group become others, without what nobody can see any more (compaction)
    RangeErase      a range erasure that came past the log (bulk overwrite)
    RecordJob       a bulk job is applied once, at this txn: refused if it is on record
    RecordBatch     the same for the batches of a stream, whose numbers grow: refused below the newest that is on record
    RequireSchema   changes nothing; refuses if the schema has another version
    BeginSplit, FinishSplit, CancelSplit, BeginJoin, FinishJoin, CancelJoin       recutting.py
    AlterSchema     the schema becomes another, and references count for the groups that it has      altering.py
    AssignTablets, StartTablets, ReplaceTablets, PlaceTablets, ForgetReplaced     assigning.py
    ForgetSchemas   nothing comes under earlier versions of the schema any more                       late.py
    UnloadTablets, LoadTablets       serving.py
    OfferTablets, VacateTablets, TakeOver         handing_over.py
    ChangeLeaders, ChangeInSync, AddReplica, RemoveReplica, ForgetReplica, SetWanted, RecoverTablet   replicating.py

Applying a list of changes is all or nothing. Invariants: `flushed` never goes down; a stale epoch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from ebla.metadata.values.altering import Shares, repartitioned, shares_of
from ebla.metadata.values.assigning import (
    Assign,
    AssignTablets,
    ForgetReplaced,
    PlaceTablets,
    ReplaceTablets,
    StartTablets,
    assign,
)
from ebla.metadata.values.handing_over import HandOver, OfferTablets, TakeOver, VacateTablets, hand_over
from ebla.metadata.values.late import ForgetSchemas, arrived, flushed_late, forget_schemas
from ebla.metadata.values.recutting import (
    BeginJoin,
    BeginSplit,
    CancelJoin,
    CancelSplit,
    FinishJoin,
    FinishSplit,
    Recut,
    recut,
)
from ebla.metadata.values.replicating import (
    AddReplica,
    ChangeInSync,
    ChangeLeaders,
    ForgetReplica,
    RecoverTablet,
    RemoveReplica,
    Replicate,
    SetWanted,
    replicate,
    unreplicated,
)
from ebla.metadata.values.requirements import RequirementFailed, TabletAt, led, named_once
from ebla.metadata.values.serving import LoadTablets, Serving, UnloadTablets, serve
from ebla.metadata.values.table_metadata import (
    FragmentRef,
    GroupState,
    RangeErasure,
    StreamBatch,
    TableMetadata,
    TabletMetadata,
)
from ebla.model.ranges import KeyRange
from ebla.model.schema import TableSchema

__all__ = [
    "JOBS_MAX",
    "STREAMS_MAX",
    "AddFragments",
    "AlterSchema",
    "Change",
    "Flush",
    "FlushedTablet",
    "NewFragment",
    "RangeErase",
    "RecordBatch",
    "RecordJob",
    "ReplaceFragments",
    "RequireSchema",
    "RequirementFailed",
    "TabletAt",
    "TakeLog",
    "apply",
    "update",
]

# So many jobs are remembered. A job that is retried after that many others is not recognised.
JOBS_MAX = 1024
# So many streams into a table are remembered, each by its newest batch. The one that was written longest ago goes.
STREAMS_MAX = 1024


class NewFragment(msgspec.Struct, frozen=True, array_like=True):
    """A fragment and the tablets that get a reference to it."""

    fragment: FragmentRef
    tablets: tuple[str, ...]


class FlushedTablet(msgspec.Struct, frozen=True, array_like=True):
    """What a flush means to one tablet: its log up to `flushed` is no longer needed for the group.

    `base` is how far it was flushed when the flush began, for who does not own the memory that it came from: if that
    is another number by now, somebody else has flushed some of it, and the change is refused. None: not asked.
    """

    tablet: str
    epoch: int
    flushed: int
    erasures: tuple[RangeErasure, ...] = ()
    base: int | None = None
    flushed_epoch: int = 0  # of a tablet with several replicas: up to which entry all groups are in fragments;
    flushed_index: int = 0  # 0: that is not said


class TakeLog(msgspec.Struct, frozen=True, array_like=True, tag="take_log"):
    """The tablets' writes go to the log `log` of `server`, which leads them.

    A tablet whose unflushed writes are in another log is refused, unless that log was replayed, as `replayed` says.
    """

    tablets: tuple[TabletAt, ...]
    server: str
    log: str
    replayed: str | None = None


class Flush(msgspec.Struct, frozen=True, array_like=True, tag="flush"):
    """Records of one group went from memory to fragments.

    Every tablet's `flushed` must be greater than before if the tablet gets something, and not smaller in any case.
    """

    group: int
    fragments: tuple[NewFragment, ...]
    tablets: tuple[FlushedTablet, ...]
    schema_version: int = 0  # of which `group` is a group; 0: the one of today, or of the fragments


class AddFragments(msgspec.Struct, frozen=True, array_like=True, tag="add_fragments"):
    """Fragments that were not written from the log; `tablets` are all that get one, with their epochs."""

    group: int
    fragments: tuple[NewFragment, ...]
    tablets: tuple[TabletAt, ...]


class ReplaceFragments(msgspec.Struct, frozen=True, array_like=True, tag="replace_fragments"):
    """Fragments of one group of one tablet were merged: exactly these go, and those take their place.

    `erasures` are range erasures that hide nothing any more. `floor_txn` is the horizon of the merge if it left
    something out, else 0: what readers below it would need may be gone.
    """

    tablet: TabletAt
    group: int
    removed: tuple[FragmentRef, ...]
    added: tuple[FragmentRef, ...]
    erasures: tuple[RangeErasure, ...]
    floor_txn: int


class RangeErase(msgspec.Struct, frozen=True, array_like=True, tag="range_erase"):
    """A range erasure in all groups; `tablets` are all that the range overlaps, with their epochs."""

    erasure: RangeErasure
    tablets: tuple[TabletAt, ...]


class RecordJob(msgspec.Struct, frozen=True, array_like=True, tag="record_job"):
    """Remember that a bulk job was applied at `txn`; refused if it was already."""

    job: str
    txn: int


class RecordBatch(msgspec.Struct, frozen=True, array_like=True, tag="record_batch"):
    """Remember that a batch of a stream was applied at its txn; refused if that one, or a later one, was already."""

    batch: StreamBatch


class RequireSchema(msgspec.Struct, frozen=True, array_like=True, tag="require_schema"):
    """Refuse the whole list unless the schema has this version."""

    version: int


class AlterSchema(msgspec.Struct, frozen=True, array_like=True, tag="alter_schema"):
    """The schema becomes the next version of it; `tablets` are all there are, with everything they have in fragments.

    It was worked out from the schema of `base_version`, and is refused on any other. With `is_late` the tablets are
    those of a cluster and have not been flushed: their leaders do that under the former version, which is kept.
    """

    base_version: int
    schema: TableSchema
    tablets: tuple[FlushedTablet, ...]
    is_late: bool = False


Change: TypeAlias = (
    TakeLog
    | Flush
    | AddFragments
    | ReplaceFragments
    | RangeErase
    | RecordJob
    | RecordBatch
    | RequireSchema
    | AlterSchema
    | ForgetSchemas
    | Recut
    | Assign
    | Serving
    | HandOver
    | Replicate
)


def apply(metadata: TableMetadata, changes: Sequence[Change], new_txnid: str) -> TableMetadata:
    """Return the metadata after a transaction of these changes; raise `RequirementFailed` if one does not fit."""
    return update(metadata, changes).with_txnid(new_txnid, metadata.sequence + 1)


def update(metadata: TableMetadata, changes: Sequence[Change]) -> TableMetadata:
    """Apply changes without ending the transaction, so that those of several senders can become one."""
    for change in changes:
        metadata = _update(metadata, change)
    return metadata


def _update(metadata: TableMetadata, change: Change) -> TableMetadata:
    match change:
        case TakeLog():
            return metadata.with_tablets(_take_log(metadata, change))
        case Flush():
            return metadata.with_tablets(_flush(metadata, change))
        case AddFragments():
            return metadata.with_tablets(_add_fragments(metadata, change))
        case ReplaceFragments():
            return metadata.with_tablets([_replace_fragments(metadata, change)])
        case RangeErase():
            return metadata.with_tablets(_range_erase(metadata, change))
        case RecordJob():
            if metadata.job_txn(change.job) is not None:
                raise RequirementFailed("job_done", f"the job {change.job} was applied already")
            return metadata.with_jobs((*metadata.jobs, (change.job, change.txn))[-JOBS_MAX:])
        case RecordBatch(batch=batch):
            known = metadata.stream_batch(batch.app)
            if known is not None and known.batch >= batch.batch:
                raise RequirementFailed("job_done", f"batch {batch.batch} of {batch.app} was applied already")
            others = [other for other in metadata.streams if other is not known]
            return metadata.with_streams((*others, batch)[-STREAMS_MAX:])
        case RequireSchema():
            if metadata.schema.version != change.version:
                reason = f"the schema has version {metadata.schema.version}, not {change.version}"
                raise RequirementFailed("schema_version", reason)
            return metadata
        case BeginSplit() | FinishSplit() | CancelSplit() | BeginJoin() | FinishJoin() | CancelJoin():
            return recut(metadata, change)
        case AssignTablets() | StartTablets() | ReplaceTablets() | PlaceTablets() | ForgetReplaced():
            return assign(metadata, change)
        case AlterSchema():
            return _alter(metadata, change)
        case ForgetSchemas():
            return forget_schemas(metadata, change)
        case UnloadTablets() | LoadTablets():
            return serve(metadata, change)
        case OfferTablets() | VacateTablets() | TakeOver():
            return hand_over(metadata, change)
        case (
            ChangeLeaders()
            | ChangeInSync()
            | AddReplica()
            | RemoveReplica()
            | ForgetReplica()
            | SetWanted()
            | RecoverTablet()
        ):
            return replicate(metadata, change)


def _alter(metadata: TableMetadata, change: AlterSchema) -> TableMetadata:
    if metadata.schema.version != change.base_version or change.schema.version != change.base_version + 1:
        reason = f"the schema has version {metadata.schema.version}, not {change.base_version}"
        raise RequirementFailed("schema_version", reason)
    named_once(change.tablets)
    if {at.tablet for at in change.tablets} != {tablet.id for tablet in metadata.tablets}:
        raise RequirementFailed("wrong_tablets", "the change of the schema does not name exactly the tablets there are")
    for at in change.tablets:
        led(metadata, at)
    flushed = {at.tablet: None if change.is_late else at.flushed for at in change.tablets}
    altered = metadata.with_schema(
        change.schema,
        [repartitioned(tablet, metadata.schema, change.schema, flushed[tablet.id]) for tablet in metadata.tablets],
    )
    return altered.with_former((*metadata.former, metadata.schema)) if change.is_late else altered


def _take_log(metadata: TableMetadata, change: TakeLog) -> list[TabletMetadata]:
    named_once(change.tablets)
    changed = []
    for at in change.tablets:
        tablet = unreplicated(led(metadata, at))
        if tablet.leader not in (None, change.server):
            reason = f"tablet {tablet.id} is led by {tablet.leader}, not by {change.server}"
            raise RequirementFailed("other_leader", reason)
        if tablet.log is not None and tablet.log not in (change.log, change.replayed):
            reason = f"tablet {tablet.id} has unflushed writes in the log {tablet.log}: replay that first"
            raise RequirementFailed("other_log", reason)
        changed.append(msgspec.structs.replace(tablet, leader=change.server, log=change.log))
    return changed


def _flush(metadata: TableMetadata, change: Flush) -> list[TabletMetadata]:
    named_once(change.tablets)
    version = change.schema_version or next((new.fragment.schema_version for new in change.fragments), 0)
    steps = _late_steps(metadata, version, change.group)
    if steps:
        return _flush_late(metadata, change, version, steps)
    received = _received(metadata, change.group, change.fragments, [at.tablet for at in change.tablets])
    changed = []
    for at in change.tablets:
        tablet = led(metadata, at)
        state = tablet.group(change.group)
        if at.base is not None and at.base != state.flushed:
            reason = f"tablet {tablet.id}, group {change.group}: flushed to {state.flushed} by now, not {at.base}"
            raise RequirementFailed("flushed_meanwhile", reason)
        gets_something = bool(received[at.tablet] or at.erasures)
        if at.flushed < state.flushed or (gets_something and at.flushed == state.flushed):
            reason = f"tablet {tablet.id}, group {change.group}: flushed to {state.flushed} already, not {at.flushed}"
            raise RequirementFailed("already_flushed", reason)
        state = _with_fragments(state, received[at.tablet])
        state = msgspec.structs.replace(state, flushed=at.flushed, erasures=_joined(state.erasures, at.erasures))
        changed.append(_flushed_up_to(tablet.with_group(state), at))
    return changed


def _late_steps(metadata: TableMetadata, version: int, group: int) -> list[Shares]:
    """Return the steps from a former version of the schema to that of today; none if it is that, or is forgotten."""
    if not version or version >= metadata.schema.version:
        return []
    steps = shares_of(metadata.former, metadata.schema, version)
    if steps and not any(one.version == version and group in one.group_by_id for one in metadata.former):
        raise RequirementFailed("unknown_group", f"version {version} of the schema had no group {group}")
    return steps


def _flush_late(metadata: TableMetadata, change: Flush, version: int, steps: Sequence[Shares]) -> list[TabletMetadata]:
    received = _received(metadata, change.group, change.fragments, [at.tablet for at in change.tablets], version)
    changed = []
    for at in change.tablets:
        tablet = led(metadata, at)
        before = next((one.flushed for one in tablet.behind if (one.version, one.group) == (version, change.group)), 0)
        if at.base is not None and at.base != before:
            reason = (
                f"tablet {tablet.id}, group {change.group} of version {version}: flushed to {before}, not {at.base}"
            )
            raise RequirementFailed("flushed_meanwhile", reason)
        state = GroupState(change.group, tuple(received[at.tablet]), flushed=at.flushed)
        changed.append(_flushed_up_to(flushed_late(tablet, steps, version, state, at.erasures), at))
    return changed


def _flushed_up_to(tablet: TabletMetadata, at: FlushedTablet) -> TabletMetadata:
    """Return a tablet with the entry up to which replicas need nothing any more; it never goes back."""
    if at.flushed_index <= tablet.flushed_index:
        return tablet
    return msgspec.structs.replace(tablet, flushed_epoch=at.flushed_epoch, flushed_index=at.flushed_index)


def _add_fragments(metadata: TableMetadata, change: AddFragments) -> list[TabletMetadata]:
    named_once(change.tablets)
    version = next((new.fragment.schema_version for new in change.fragments), 0)
    steps = _late_steps(metadata, version, change.group)
    if steps:
        received = _received(metadata, change.group, change.fragments, [at.tablet for at in change.tablets], version)
        changed = []
        for at in change.tablets:
            tablet = led(metadata, at)
            for target, refs in arrived(steps, change.group, received[at.tablet]).items():
                tablet = tablet.with_group(_with_fragments(tablet.group(target), refs))
            changed.append(tablet)
        return changed
    received = _received(metadata, change.group, change.fragments, [at.tablet for at in change.tablets])
    changed = []
    for at in change.tablets:
        tablet = led(metadata, at)
        changed.append(tablet.with_group(_with_fragments(tablet.group(change.group), received[at.tablet])))
    return changed


def _replace_fragments(metadata: TableMetadata, change: ReplaceFragments) -> TabletMetadata:
    tablet = led(metadata, change.tablet)
    if change.group not in metadata.schema.group_by_id:
        raise RequirementFailed("unknown_group", f"the table has no group {change.group} (any more)")
    state = tablet.group(change.group)
    gone = set(change.removed)
    kept = tuple(fragment for fragment in state.fragments if fragment not in gone)
    if len(kept) + len(gone) != len(state.fragments):
        raise RequirementFailed("fragments_changed", f"tablet {tablet.id} no longer has all fragments that were merged")
    left = tuple(erasure for erasure in state.erasures if erasure not in change.erasures)
    if len(left) + len(change.erasures) != len(state.erasures):
        raise RequirementFailed(
            "erasures_changed", f"tablet {tablet.id} no longer has the range erasures to be dropped"
        )
    state = msgspec.structs.replace(
        state, fragments=kept, erasures=left, floor_txn=max(state.floor_txn, change.floor_txn)
    )
    return tablet.with_group(_with_fragments(state, change.added))


def _range_erase(metadata: TableMetadata, change: RangeErase) -> list[TabletMetadata]:
    named_once(change.tablets)
    erasure = change.erasure
    overlapped = {tablet.id for tablet in metadata.overlapping(KeyRange(erasure.first, erasure.last))}
    if overlapped != {at.tablet for at in change.tablets}:
        raise RequirementFailed("wrong_tablets", "the range erasure does not name exactly the tablets that it overlaps")
    changed = []
    for at in change.tablets:
        tablet = led(metadata, at)
        for group in metadata.schema.group_by_id:
            state = tablet.group(group)
            tablet = tablet.with_group(msgspec.structs.replace(state, erasures=_joined(state.erasures, (erasure,))))
        changed.append(tablet)
    return changed


def _received(
    metadata: TableMetadata,
    group: int,
    fragments: Iterable[NewFragment],
    tablets: Iterable[str],
    former_version: int | None = None,
) -> dict[str, list[FragmentRef]]:
    """Return the new references by tablet, for all of `tablets`; all of one version, that of today or a former one."""
    version = former_version or metadata.schema.version
    if former_version is None and group not in metadata.schema.group_by_id:
        raise RequirementFailed("unknown_group", f"the table has no group {group} (any more)")
    received: dict[str, list[FragmentRef]] = {tablet: [] for tablet in tablets}
    for new in fragments:
        if new.fragment.schema_version != version:
            # What it holds may belong to other groups by now, or to none.
            written = new.fragment.schema_version
            reason = f"{new.fragment.file} was written under schema version {written}, not {version}"
            raise RequirementFailed("schema_version", reason)
        for tablet in new.tablets:
            if tablet not in received:
                reason = f"{new.fragment.file} is given to tablet {tablet}, which the change does not name"
                raise RequirementFailed("wrong_tablets", reason)
            received[tablet].append(new.fragment)
    return received


def _with_fragments(state: GroupState, fragments: Sequence[FragmentRef]) -> GroupState:
    there = {fragment.file for fragment in state.fragments}
    for fragment in fragments:
        if fragment.file in there:
            raise RequirementFailed("fragment_known", f"{fragment.file} is referenced already")
    return msgspec.structs.replace(state, fragments=(*state.fragments, *fragments)) if fragments else state


def _joined(there: tuple[RangeErasure, ...], new: tuple[RangeErasure, ...]) -> tuple[RangeErasure, ...]:
    # One that is there already came by another way, as when an erasure is replayed into several groups.
    return (*there, *(erasure for erasure in new if erasure not in there))
