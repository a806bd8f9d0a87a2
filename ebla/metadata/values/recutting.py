"""Split and join in METADATA: a plan is saved first, then carried out. Pure, like all changes.

    running --BeginSplit--> splitting --FinishSplit--> (gone: two children, running)
                                |
                                `-----CancelSplit----> running

    running  --BeginJoin--> joining \\
                                     >-FinishJoin--> (both gone: one tablet, running)     CancelJoin: both running again
    running  --BeginJoin--> joining /

The plan holds what was chosen, the row and the ids of the tablets to come, so that whoever takes it up again after a
crash does the same. A tablet that has a plan gets no second one. Meanwhile it is served as before, and its fragments
change as before: what its successors refer to is worked out when the plan is finished, from what is there then.

**Successors** share the fragments of those they replace, by reference: each has those that overlap its rows, and a file
that both halves of a join refer to in the same way becomes one reference. A file that only one of them refers to, and
that reaches over the border, is clipped: what the other half has merged into other files must not come back. They have
the range erasures that overlap them, whole: a range erasure holds for its whole range anyway. History reaches back as
far as in the tablet where it is shortest.

**The log.** Ids are never used again, so entries of the log that name a tablet that is gone can only be older than its
end. `FinishSplit` and `FinishJoin` are sent once all of them are in fragments; the tablet is then on record as
*retired*, until the log that may name it is gone too. A replay passes over entries of retired tablets and of no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ebla.metadata.values.replicating import unreplicated
from ebla.metadata.values.requirements import RequirementFailed, TabletAt, led
from ebla.metadata.values.table_metadata import (
    FragmentRef,
    GroupState,
    JoinPlan,
    Retired,
    SplitPlan,
    TableMetadata,
    TabletMetadata,
)
from ebla.model.ranges import KeyRange

__all__ = [
    "JOINING",
    "RUNNING",
    "SPLITTING",
    "BeginJoin",
    "BeginSplit",
    "CancelJoin",
    "CancelSplit",
    "FinishJoin",
    "FinishSplit",
    "Recut",
    "recut",
]

RUNNING = "running"
SPLITTING = "splitting"
JOINING = "joining"


class BeginSplit(msgspec.Struct, frozen=True, array_like=True, tag="begin_split"):
    """A tablet is going to be split at `row`, into tablets of these ids."""

    tablet: TabletAt
    row: bytes
    children: tuple[str, str]


class FinishSplit(msgspec.Struct, frozen=True, array_like=True, tag="finish_split"):
    """A tablet becomes its two children.

    The sender has seen to it that all that the log has of the tablet is in fragments. All of it is at or below `txn`;
    nothing below `log_from` is in the log any more.
    """

    tablet: TabletAt
    txn: int
    log_from: int


class CancelSplit(msgspec.Struct, frozen=True, array_like=True, tag="cancel_split"):
    """A split that was begun is not going to happen."""

    tablet: TabletAt


class BeginJoin(msgspec.Struct, frozen=True, array_like=True, tag="begin_join"):
    """Two neighbours, the one with the smaller rows first, are going to be one tablet of the id `child`."""

    left: TabletAt
    right: TabletAt
    child: str


class FinishJoin(msgspec.Struct, frozen=True, array_like=True, tag="finish_join"):
    """Two neighbours become one tablet. `txn` and `log_from` as in `FinishSplit`, for both of them."""

    left: TabletAt
    right: TabletAt
    txn: int
    log_from: int


class CancelJoin(msgspec.Struct, frozen=True, array_like=True, tag="cancel_join"):
    """A join that was begun is not going to happen."""

    left: TabletAt
    right: TabletAt


Recut = BeginSplit | FinishSplit | CancelSplit | BeginJoin | FinishJoin | CancelJoin


def recut(metadata: TableMetadata, change: Recut) -> TableMetadata:
    """Return the metadata after a step of a split or a join; raise `RequirementFailed` if it does not fit."""
    match change:
        case BeginSplit():
            return metadata.with_tablets([_begin_split(metadata, change)])
        case FinishSplit():
            return _finish_split(metadata, change)
        case CancelSplit():
            return metadata.with_tablets([_without_plan(_splitting(metadata, change.tablet)[0])])
        case BeginJoin():
            return metadata.with_tablets(_begin_join(metadata, change))
        case FinishJoin():
            return _finish_join(metadata, change)
        case CancelJoin():
            left, right, _ = _joining(metadata, change.left, change.right)
            return metadata.with_tablets([_without_plan(left), _without_plan(right)])


def _check_idle(metadata: TableMetadata, tablet: TabletMetadata) -> None:
    if metadata.is_fixed:
        raise RequirementFailed("fixed", "the table is fixed: its tablets are never split or joined")
    if tablet.state != RUNNING or tablet.split is not None or tablet.join is not None:
        raise RequirementFailed("busy", f"tablet {tablet.id} is {tablet.state}: let that end first")


def _check_new(metadata: TableMetadata, ids: Iterable[str]) -> None:
    known = {retired.tablet for retired in metadata.retired}
    for new in ids:
        if not new or metadata.by_id(new) is not None or new in known:
            raise RequirementFailed("tablet_known", f"the table has, or had, a tablet {new!r} already")


def _begin_split(metadata: TableMetadata, change: BeginSplit) -> TabletMetadata:
    tablet = led(metadata, change.tablet)
    _check_idle(metadata, tablet)
    if not tablet.first < change.row or not (tablet.last is None or change.row < tablet.last):
        reason = f"{change.row!r} does not divide tablet {tablet.id}, which has the rows from {tablet.first!r} on"
        raise RequirementFailed("outside", f"{reason} to {tablet.last!r}")
    if change.children[0] == change.children[1]:
        raise RequirementFailed("tablet_known", "the two children need ids of their own")
    _check_new(metadata, change.children)
    return msgspec.structs.replace(tablet, state=SPLITTING, split=SplitPlan(change.row, change.children))


def _splitting(metadata: TableMetadata, at: TabletAt) -> tuple[TabletMetadata, SplitPlan]:
    tablet = led(metadata, at)
    if tablet.split is None:
        raise RequirementFailed("not_begun", f"no split of tablet {tablet.id} was begun")
    return tablet, tablet.split


def _without_plan(tablet: TabletMetadata) -> TabletMetadata:
    return msgspec.structs.replace(tablet, state=RUNNING, split=None, join=None)


def _finish_split(metadata: TableMetadata, change: FinishSplit) -> TableMetadata:
    parent, plan = _splitting(metadata, change.tablet)
    left_id, right_id = plan.children
    left = _part(parent, left_id, KeyRange(parent.first, plan.row))
    right = _part(parent, right_id, KeyRange(plan.row, parent.last))
    metadata = metadata.with_recut([parent.id], [left, right])
    return _with_retired(metadata, [parent], change.txn, change.log_from)


def _part(parent: TabletMetadata, tablet_id: str, rows: KeyRange) -> TabletMetadata:
    groups = tuple(
        GroupState(
            state.group,
            tuple(fragment for fragment in state.fragments if fragment.may_have_rows_in(rows)),
            tuple(erasure for erasure in state.erasures if KeyRange(erasure.first, erasure.last).overlaps(rows)),
            0,
            state.floor_txn,
        )
        for state in parent.groups
    )
    return msgspec.structs.replace(
        parent,
        id=tablet_id,
        first=rows.first,
        last=rows.last,
        state=RUNNING,
        groups=groups,
        split=None,
        target=None,
        behind=(),
        flushed_epoch=0,
        flushed_index=0,
    )


def _begin_join(metadata: TableMetadata, change: BeginJoin) -> list[TabletMetadata]:
    left, right = led(metadata, change.left), led(metadata, change.right)
    for one in (left, right):
        unreplicated(one, "such tablets cannot be joined yet")
        _check_idle(metadata, one)
    if left.last is None or left.last != right.first:
        raise RequirementFailed("not_neighbours", f"the tablets {left.id} and {right.id} are not neighbours")
    if (left.leader, left.log, left.replicas) != (right.leader, right.log, right.replicas):
        # A log that nobody has written yet is taken over; two that are different have to be made one first.
        if left.leader not in (None, right.leader) and right.leader is not None:
            raise RequirementFailed(
                "other_leader", f"the tablets {left.id} and {right.id} are led by different servers"
            )
        if left.log is not None and right.log is not None and left.log != right.log:
            raise RequirementFailed("other_log", f"the tablets {left.id} and {right.id} have writes in different logs")
    _check_new(metadata, [change.child])
    plan = JoinPlan(left.id, right.id, change.child)
    return [msgspec.structs.replace(one, state=JOINING, join=plan) for one in (left, right)]


def _joining(
    metadata: TableMetadata, left_at: TabletAt, right_at: TabletAt
) -> tuple[TabletMetadata, TabletMetadata, JoinPlan]:
    left, right = led(metadata, left_at), led(metadata, right_at)
    if left.join is None or left.join != right.join or (left.join.left, left.join.right) != (left.id, right.id):
        raise RequirementFailed("not_begun", f"no join of the tablets {left.id} and {right.id} was begun")
    return left, right, left.join


def _finish_join(metadata: TableMetadata, change: FinishJoin) -> TableMetadata:
    left, right, plan = _joining(metadata, change.left, change.right)
    groups = sorted({state.group for tablet in (left, right) for state in tablet.groups})
    whole = msgspec.structs.replace(
        left,
        id=plan.child,
        last=right.last,
        state=RUNNING,
        epoch=max(left.epoch, right.epoch),
        leader=left.leader or right.leader,
        log=left.log or right.log,
        groups=tuple(_united(left, right, group) for group in groups),
        join=None,
        target=None,
        log_epoch=max(left.log_epoch, right.log_epoch),
        behind=(),
    )
    metadata = metadata.with_recut([left.id, right.id], [whole])
    return _with_retired(metadata, [left, right], change.txn, change.log_from)


def _united(left: TabletMetadata, right: TabletMetadata, group: int) -> GroupState:
    """Return what one tablet keeps of a group that two kept: what is in both only once."""
    own, other = left.group(group), right.group(group)
    # Two that were clipped to different rows may be the same in what is left of them.
    fragments = list(dict.fromkeys(_clipped(fragment, left.range) for fragment in own.fragments))
    for clipped in dict.fromkeys(_clipped(fragment, right.range) for fragment in other.fragments):
        twins = (at for at, twin in enumerate(fragments) if _continues(twin, clipped))
        at = next(twins, None)
        if at is None:
            fragments.append(clipped)
        else:
            fragments[at] = _without_border(fragments[at], clipped)
    erasures = (*own.erasures, *(erasure for erasure in other.erasures if erasure not in own.erasures))
    # So may one that was put together of two, and another: each counts once.
    united = tuple(dict.fromkeys(fragments))
    return GroupState(group, united, erasures, 0, max(own.floor_txn, other.floor_txn))


def _clipped(fragment: FragmentRef, rows: KeyRange) -> FragmentRef:
    """Return a reference whose file counts no further than it did in a tablet of these rows."""
    counted = fragment.within(rows)
    assert counted is not None, "a reference has rows of its tablet"
    reaches_out = fragment.first < counted.first or (counted.last is not None and fragment.last >= counted.last)
    return msgspec.structs.replace(fragment, clip=(counted.first, counted.last) if reaches_out else None)


def _continues(left: FragmentRef, right: FragmentRef) -> bool:
    """Tell whether two references to a file differ only in that the one counts up to where the other begins."""
    if left.file != right.file or left.clip is None or right.clip is None or left.clip[1] != right.clip[0]:
        return False
    return msgspec.structs.replace(left, clip=None) == msgspec.structs.replace(right, clip=None)


def _without_border(left: FragmentRef, right: FragmentRef) -> FragmentRef:
    """Return one reference for two that continue each other."""
    assert left.clip is not None
    assert right.clip is not None
    return _clipped(msgspec.structs.replace(left, clip=None), KeyRange(left.clip[0], right.clip[1]))


def _with_retired(metadata: TableMetadata, tablets: Sequence[TabletMetadata], txn: int, log_from: int) -> TableMetadata:
    # The sender tells of its own log alone: what other servers' logs may name stays on record.
    logs = {None, *(tablet.log for tablet in tablets)}
    kept = [one for one in metadata.retired if one.txn >= log_from or one.is_elsewhere or one.log not in logs]
    new = (Retired(tablet.id, txn, tablet.log, tablet.log_epoch > 0) for tablet in tablets)
    return metadata.with_retired((*kept, *new))
