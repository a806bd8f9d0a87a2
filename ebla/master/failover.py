"""Tablets of one replica that nobody leads, or whose leader cannot: who is to lead them next. Pure.

    the leader's lease is over           vacated (the old leader changes nothing from then on), and offered to another
    the leader says that it has failed   offered to another; the leader lives, so it resigns itself
    nobody leads, and nobody is to       offered
    it was offered, and not taken        offered to another, when the target is gone or its time is over

Three times are told apart. A *lease* is seconds: when it is over, and was taken away, its holder answers nothing any
more, so others may lead at once. *Assignment* is how long a server may take for what it was given. *Replacing* the
replicas of a server that is gone is a matter of minutes (`replicas.py`): it may come back.

A tablet with a single replica needs a log that others can read; those with several are in `replicas.py`. What a leader
was about to do, as a split, keeps nobody from leading its tablet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.master.catalog import Catalog
from ebla.master.placement import Loads
from ebla.master.servers import Servers
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TabletInfo
from ebla.master.writes import ChangeTable
from ebla.metadata.values.changes import Change
from ebla.metadata.values.handing_over import Offer, OfferTablets, VacateTablets
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import Replica

__all__ = ["FailoverPlan", "Offered", "plan_failover"]


@dataclass(frozen=True, slots=True)
class Offered:
    """Since when a tablet is offered to a server, as far as this master knows."""

    target: Replica
    since_seconds: float


@dataclass(slots=True)
class FailoverPlan:
    """What one round decided, by table. Nothing has happened yet."""

    vacated: dict[str, dict[str, list[TabletAt]]] = field(default_factory=dict)  # table -> leader -> tablets
    offers: dict[str, list[Offer]] = field(default_factory=dict)
    waiting: int = 0  # tablets that nobody can lead now

    def changes(self) -> tuple[ChangeTable, ...]:
        """Return the write: one transaction for each table."""
        tables = []
        for table_id in dict.fromkeys((*self.vacated, *self.offers)):
            changes: list[Change] = [
                VacateTablets(tuple(tablets), leader) for leader, tablets in self.vacated.get(table_id, {}).items()
            ]
            if table_id in self.offers:
                changes.append(OfferTablets(tuple(self.offers[table_id])))
            tables.append(ChangeTable(table_id, tuple(changes)))
        return tuple(tables)


def plan_failover(
    catalog: Catalog,
    servers: Servers,
    offered: dict[str, Offered],
    loads: Loads,
    now: float,
    settings: MasterSettings,
    new_id: Callable[[], str],
) -> FailoverPlan:
    """Go over the tablets that have no leader or a failed one; `loads` has the servers that can be given some.

    `offered` gets what is seen offered for the first time, and loses what is not offered any more.
    """
    plan = FailoverPlan()
    for tablet_id in [tablet_id for tablet_id in offered if tablet_id not in catalog.offered]:
        del offered[tablet_id]
    wanting = dict.fromkeys((*servers.orphans, *servers.failed, *catalog.vacant, *catalog.offered))
    for tablet_id in wanting:
        info = catalog.tablet(tablet_id)
        if info is None or not info.table.is_visible or not info.tablet.is_served:
            continue
        if not info.tablet.is_replicated:
            _offer(plan, info, servers, offered, loads, now, settings, new_id)
    return plan


def _is_lost(info: TabletInfo, servers: Servers) -> bool:
    """Whether the leader's lease is over since it was made the leader."""
    tablet = info.tablet
    return tablet.leader is not None and servers.orphans.get(tablet.id) == (tablet.leader, tablet.epoch)


def _offer(
    plan: FailoverPlan,
    info: TabletInfo,
    servers: Servers,
    offered: dict[str, Offered],
    loads: Loads,
    now: float,
    settings: MasterSettings,
    new_id: Callable[[], str],
) -> None:
    tablet, failed = info.tablet, servers.failed.get(info.tablet.id)
    is_lost = _is_lost(info, servers)
    is_led = tablet.leader is not None and not is_lost and failed != tablet.leader
    if is_led and (tablet.target is None or tablet.target.server in loads.hosts):
        return  # if it is offered, its leader sees to it
    # Nobody else can read what its server has logged; one that leads, and resigns, flushes it first.
    is_stuck = tablet.log is not None and not settings.is_log_shared and (is_lost or tablet.leader is None)
    if is_stuck and is_lost and tablet.leader not in loads.hosts:
        plan.waiting += 1
        return
    if is_lost:
        _vacate(plan, info)
    if tablet.target is not None and not _is_over(offered, tablet.id, tablet.target, loads, now, settings):
        return
    own = tablet.replicas[0].server if tablet.replicas else None
    not_again = {failed, None if is_lost else tablet.leader, tablet.target.server if tablet.target else None}
    candidates = [server for server in loads.hosts if server not in not_again and (not is_stuck or server == own)]
    if not candidates and tablet.leader is None:
        candidates = [server for server in loads.hosts if server != failed and (not is_stuck or server == own)]
    if not candidates:
        plan.waiting += 1
        if tablet.target is not None and is_led:
            plan.offers.setdefault(info.table.id, []).append(Offer(tablet.id, tablet.epoch, None))
        return
    server = min(candidates, key=lambda server: loads.replicas[server])
    loads.replicas[server] += 1
    target = next((one for one in tablet.replicas if one.server == server), None) or Replica(server, new_id())
    offered[tablet.id] = Offered(target, now)
    plan.offers.setdefault(info.table.id, []).append(Offer(tablet.id, tablet.epoch + is_lost, target))


def _vacate(plan: FailoverPlan, info: TabletInfo) -> None:
    tablet = info.tablet
    assert tablet.leader is not None
    by_leader = plan.vacated.setdefault(info.table.id, {})
    by_leader.setdefault(tablet.leader, []).append(TabletAt(tablet.id, tablet.epoch))


def _is_over(
    offered: dict[str, Offered], tablet: str, target: Replica, loads: Loads, now: float, settings: MasterSettings
) -> bool:
    """Whether a target has had its time, or is gone."""
    known = offered.get(tablet)
    if known is None or known.target != target:
        known = offered[tablet] = Offered(target, now)
    return target.server not in loads.hosts or now - known.since_seconds > settings.assignment_timeout_seconds
