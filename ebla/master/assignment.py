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

from collections.abc import Callable, Iterable, Mapping
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
from ebla.metadata.values.runs import run_name
from ebla.metadata.values.table_metadata import Replica
from ebla.metadata.values.tablet_metadata import needed_of

__all__ = ["AssignmentPlan", "loads_of", "logs_of", "plan_assignments"]


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
    logs: Mapping[str, tuple[str, str]],
    is_hopeless: Callable[[TabletInfo], bool] = lambda info: False,
) -> AssignmentPlan:
    """Go over the tablets that wait; `creating_since` gets those that are seen creating for the first time.

    `logs` has the servers that can keep replicas, as `logs_of` tells.
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
        wanted = info.tablet.wanted
        chosen = choose_replicas(loads, wanted, random) if wanted == 1 else _several(loads, wanted, logs, random)
        if chosen is None:
            plan.unplaced += 1
            continue
        _assign(plan, info, is_new, chosen, new_id, logs)
    return plan


def logs_of(servers: Iterable[Server]) -> dict[str, tuple[str, str]]:
    """Return of the servers that can keep replicas the id of their log, and which run they are."""
    return {
        server.uuid: (server.registration.log_id, run_name(server.uuid, server.instance.seqno))
        for server in servers
        if server.registration.log_id
    }


def _several(loads: Loads, wanted: int, logs: Mapping[str, tuple[str, str]], random: Random) -> tuple[str, ...] | None:
    """Return the servers of a tablet that is to have several; fewer than it wants, if a majority of them is there."""
    able = [server for server in loads.hosts if server in logs]
    if len(able) < needed_of(wanted):
        return None
    among = Loads({server: loads.hosts[server] for server in able}, loads.replicas, loads.leaders)
    return choose_replicas(among, min(wanted, len(able)), random)


def _assign(
    plan: AssignmentPlan,
    info: TabletInfo,
    is_new: bool,
    chosen: tuple[str, ...],
    new_id: Callable[[], str],
    logs: Mapping[str, tuple[str, str]],
) -> None:
    tablet_id, epoch = info.tablet.id, info.tablet.epoch
    if not is_new:
        replacement = Replacement(tablet_id, epoch, new_id())
        plan.replacements.setdefault(info.table.id, []).append(replacement)
        tablet_id, epoch = replacement.new, 1
    leader, run = chosen[0], None
    if info.tablet.wanted == 1:
        replicas = tuple(Replica(server, new_id()) for server in chosen)
    else:
        replicas = tuple(Replica(server, new_id(), logs[server][0], is_in_sync=True) for server in chosen)
        run = logs[leader][1]
    plan.assignments.setdefault(info.table.id, []).append(Assignment(tablet_id, epoch, leader, replicas, run))
