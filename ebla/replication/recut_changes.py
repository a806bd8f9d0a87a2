"""Changes of a table that go through a pause of a tablet, or a gate: split, alter, bulk load. Pure.

    BeginSplit --> (plan in METADATA) --FinishSplit--> two children, the parent is retired
                          `------------CancelSplit---> as before

    Alter --> table at the next schema version --ReachSchema, tablet by tablet--> everything is written under it
    CommitLoad, AbortLoad        whichever comes first decides what became of a bulk load

A finished split ends the epoch of the parent. Its children begin at that epoch, led by the same server under the same
lease: so the leader of the parent may answer reads until it learns of the end, since no child is led before.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ebla.metadata.values.requirements import RequirementFailed
from ebla.replication.changes import based_on, led_at, with_tablet
from ebla.replication.configuration import NOWHERE, Configuration, Plan, Replica, Retired, Table, needed_of

__all__ = [
    "AbortLoad",
    "Alter",
    "BeginSplit",
    "CancelSplit",
    "CommitLoad",
    "FinishSplit",
    "ReachSchema",
    "RecutChange",
    "apply_recut_change",
]

_replace = msgspec.structs.replace


class BeginSplit(msgspec.Struct, frozen=True, tag="begin_split"):
    """A tablet is going to be split as planned."""

    tablet: str
    epoch: int
    number: int
    plan: Plan


class FinishSplit(msgspec.Struct, frozen=True, tag="finish_split"):
    """A tablet becomes its children. `confirmed`: of each child, the replicas that have its first entry on disk."""

    tablet: str
    epoch: int
    number: int
    confirmed: tuple[tuple[Replica, ...], tuple[Replica, ...]]
    txn_floor: int


class CancelSplit(msgspec.Struct, frozen=True, tag="cancel_split"):
    """A split that was begun is not going to happen."""

    tablet: str
    number: int


class Alter(msgspec.Struct, frozen=True, tag="alter"):
    """The schema has this version now; tablets come to it one by one."""

    version: int


class ReachSchema(msgspec.Struct, frozen=True, tag="reach_schema"):
    """All that a tablet has of former versions is in files; it is written under this one from now on."""

    tablet: str
    epoch: int
    number: int
    version: int


class CommitLoad(msgspec.Struct, frozen=True, tag="commit_load"):
    """A file at one txn becomes part of these tablets, each in the configuration in which its gate was closed."""

    job: str
    txn: int
    tablets: tuple[tuple[str, int], ...]
    file: str


class AbortLoad(msgspec.Struct, frozen=True, tag="abort_load"):
    """A bulk load that was not committed never will be."""

    job: str


RecutChange: TypeAlias = BeginSplit | FinishSplit | CancelSplit | Alter | ReachSchema | CommitLoad | AbortLoad


def apply_recut_change(table: Table, change: RecutChange) -> Table:
    """Return the table after a change; raise `RequirementFailed` if it does not fit."""
    match change:
        case BeginSplit():
            tablet = led_at(based_on(table, change), change.epoch)
            if tablet.plan is None and tablet.first < change.plan.row and tablet.range.contains(change.plan.row):
                tablet = _replace(tablet, plan=change.plan)
            return with_tablet(table, tablet)
        case FinishSplit():
            return _finish(table, led_at(based_on(table, change), change.epoch), change)
        case CancelSplit():
            return _cancel(table, based_on(table, change))
        case Alter():
            if change.version <= table.schema_version:
                raise RequirementFailed("schema_version", f"the schema has version {table.schema_version}")
            return _replace(table, version=table.version + 1, schema_version=change.version)
        case ReachSchema():
            tablet = led_at(based_on(table, change), change.epoch)
            return with_tablet(table, _replace(tablet, schema_version=max(tablet.schema_version, change.version)))
        case CommitLoad():
            return _load(table, change)
        case AbortLoad():
            if change.job in table.jobs:
                raise RequirementFailed("job_done", f"the load {change.job} is {table.jobs[change.job]}")
            return _replace(table, version=table.version + 1, jobs={**table.jobs, change.job: "aborted"})


def _finish(table: Table, tablet: Configuration, change: FinishSplit) -> Table:
    plan = tablet.plan
    if plan is None:
        return with_tablet(table, tablet)
    tablets = {key: value for key, value in table.tablets.items() if key != tablet.tablet}
    bounds = ((tablet.first, plan.row), (plan.row, tablet.last))
    for child, (first, last), planned, confirmed in zip(
        plan.children, bounds, plan.replicas, change.confirmed, strict=True
    ):
        ready = {(one.server, one.assignment_id): one.log_id for one in confirmed}
        members = tuple(
            Replica(one.server, one.assignment_id, ready.get((one.server, one.assignment_id), ""), one.server in at)
            for one in planned
            for at in [{server for server, _ in ready}]
        )
        count = sum(member.is_in_sync for member in members)
        if count < needed_of(tablet.counted) or tablet.leader not in {one.server for one in members if one.is_in_sync}:
            return with_tablet(table, tablet)
        tablets[child] = _replace(
            tablet,
            tablet=child,
            first=first,
            last=last,
            number=1,
            replicas=members,
            txn_floor=max(tablet.txn_floor, change.txn_floor),
            flushed=NOWHERE,
            plan=None,
            leaving=(),
            log_ends=(),
        )
    retired = {**table.retired, tablet.tablet: Retired(tablet.tablet, plan.children)}
    return _replace(table, version=table.version + 1, tablets=tablets, retired=retired)


def _cancel(table: Table, tablet: Configuration) -> Table:
    if tablet.plan is None:
        return with_tablet(table, tablet)
    retired = {**table.retired, **{child: Retired(child) for child in tablet.plan.children}}
    return _replace(with_tablet(table, _replace(tablet, plan=None)), retired=retired)


def _load(table: Table, change: CommitLoad) -> Table:
    if change.job in table.jobs:
        raise RequirementFailed("job_done", f"the load {change.job} is {table.jobs[change.job]}")
    tablets = dict(table.tablets)
    for name, number in change.tablets:
        tablet = table.tablets.get(name)
        if tablet is None or tablet.number != number:
            raise RequirementFailed("other_number", f"tablet {name} is no longer in configuration {number}")
        tablets[name] = _replace(
            tablet, files=(*tablet.files, change.file), txn_floor=max(tablet.txn_floor, change.txn)
        )
    return _replace(table, version=table.version + 1, tablets=tablets, jobs={**table.jobs, change.job: "done"})
