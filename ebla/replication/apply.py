"""All changes of a table that replication knows, applied. Pure."""

from __future__ import annotations

from ebla.replication.actions import Change
from ebla.replication.changes import (
    AddReplica,
    ChangeInSync,
    ChangeLeader,
    Flush,
    ForgetReplica,
    RemoveReplica,
    SetWanted,
    TakeOver,
    apply_member_change,
)
from ebla.replication.configuration import Table
from ebla.replication.recut_changes import apply_recut_change

__all__ = ["apply"]

_OF_MEMBERS = (
    ChangeLeader,
    ChangeInSync,
    AddReplica,
    RemoveReplica,
    ForgetReplica,
    SetWanted,
    TakeOver,
    Flush,
)


def apply(table: Table, change: Change) -> Table:
    """Return the table after a change; raise `RequirementFailed` if it does not fit."""
    if isinstance(change, _OF_MEMBERS):
        return apply_member_change(table, change)
    return apply_recut_change(table, change)
