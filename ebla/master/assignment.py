"""The background task that gives tablets to servers.

    preparing   choose servers          WRITE "creating", with the servers     then the requests go out
    creating    its leader reports it   WRITE "running"                        (reports.py)
    creating    nobody did in time      WRITE "replaced" + a new tablet that is creating, at once

"Creating" is durable before any request goes out, so that a tablet that exists somewhere is always one that METADATA
knows, running, creating, or replaced. A new master finds tablets that are creating and gives their leaders the same
time again, from the moment it sees them.

Without servers to choose from everything stays as it is: replacing one tablet that cannot be made by another does no
good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from ebla.master.catalog import Catalog
from ebla.master.placement import Loads, choose_replicas
from ebla.master.servers import Server
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TabletInfo
from ebla.master.writes import ChangeTable
from ebla.metadata.values.assigning import PREPARING, Assignment, AssignTablets, Replacement, ReplaceTablets
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_metadata import Replica

__all__ = ["AssignmentPlan", "loads_of", "plan_assignments"]


@dataclass(slots=True)
class AssignmentPlan:
    """What one round decided, by table. Nothing has happened yet."""

    assignments: dict[str, list[Assignment]] = field(default_factory=dict)
    replacements: dict[str, list[Replacement]] = field(default_factory=dict)
    unplaced: int = 0  # tablets for which there are too few servers

    def changes(self) -> tuple[ChangeTable, ...]:
        """Return the write: for every table, what gives way and who is assigned, in one transaction."""
        tables = []
        for table_id in dict.fromkeys((*self.replacements, *self.assignments)):
            changes: list[Change] = []
            if table_id in self.replacements:
                changes.append(ReplaceTablets(tuple(self.replacements[table_id])))
            if table_id in self.assignments:
                changes.append(AssignTablets(tuple(self.assignments[table_id])))
            tables.append(ChangeTable(table_id, tuple(changes)))
        return tuple(tables)


def loads_of(catalog: Catalog, servers: Iterable[Server]) -> Loads:
    """Return what the servers have now."""
    hosts = {server.uuid: server.registration.host for server in servers}
    return Loads(
        hosts,
        {uuid: catalog.replicas_on(uuid) for uuid in hosts},
        {uuid: catalog.leaders_on(uuid) for uuid in hosts},
    )


def plan_assignments(
    catalog: Catalog,
    loads: Loads,
    creating_since: dict[str, float],
    now: float,
    settings: MasterSettings,
    random: Random,
    new_id: Callable[[], str],
    is_hopeless: Callable[[TabletInfo], bool] = lambda info: False,
) -> AssignmentPlan:
    """Go over the tablets that wait; `creating_since` gets those that are seen creating for the first time.

    `is_hopeless` says of a tablet that is creating whether its leader is gone or has failed: it is not waited for.
    """
    plan = AssignmentPlan()
    for tablet_id in [*catalog.pending]:
        info = catalog.tablet(tablet_id)
        if info is None or not info.table.is_visible:
            continue
        is_new = info.tablet.state == PREPARING
        is_waited_for = now - creating_since.setdefault(tablet_id, now) <= settings.assignment_timeout_seconds
        if not is_new and is_waited_for and not is_hopeless(info):
            continue
        chosen = choose_replicas(loads, settings.replication, random)
        if chosen is None:
            plan.unplaced += 1
            continue
        _assign(plan, info, is_new, chosen, new_id)
    return plan


def _assign(
    plan: AssignmentPlan, info: TabletInfo, is_new: bool, chosen: tuple[str, ...], new_id: Callable[[], str]
) -> None:
    tablet_id, epoch = info.tablet.id, info.tablet.epoch
    if not is_new:
        replacement = Replacement(tablet_id, epoch, new_id())
        plan.replacements.setdefault(info.table.id, []).append(replacement)
        tablet_id, epoch = replacement.new, 1
    replicas = tuple(Replica(server, new_id()) for server in chosen)
    plan.assignments.setdefault(info.table.id, []).append(Assignment(tablet_id, epoch, chosen[0], replicas))
