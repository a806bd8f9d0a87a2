"""What the balancer would do now: the catalog and the servers, as the values that `balance.plan_moves` decides on."""

from __future__ import annotations

from collections.abc import Iterable

from ebla.master.balance import Move, Placed, plan_moves
from ebla.master.catalog import Catalog
from ebla.master.replicas import ReplicaCare
from ebla.master.servers import Servers
from ebla.master.settings import MasterSettings

__all__ = ["plan_balance"]

_RUNNING = "running"


def plan_balance(
    catalog: Catalog, servers: Servers, settings: MasterSettings, now: float, care: ReplicaCare
) -> list[Move]:
    """Return the moves of one round. None while servers that should be there are neither known nor known to be dead."""
    hosts = {server.uuid: server.registration.host for server in servers.live(now, settings.silent_after_seconds)}
    absent = [server for server in catalog.placed_servers() if server not in hosts]
    dead = frozenset(server for server in absent if servers.is_dead(server, now, settings.replace_after_seconds))
    if not hosts or len(dead) < len(absent):
        return []
    if not _is_uneven(catalog, hosts, max(1, settings.imbalance_tolerated)):
        return []
    return plan_moves(
        _placed(catalog, servers, hosts, care),
        hosts,
        moves_max=settings.moves_max,
        imbalance_tolerated=settings.imbalance_tolerated,
    )


def _is_uneven(catalog: Catalog, hosts: Iterable[str], tolerated: int) -> bool:
    replicas = [catalog.replicas_on(server) for server in hosts]
    leaders = [catalog.leaders_on(server) for server in hosts]
    return max(replicas) - min(replicas) > tolerated or max(leaders) - min(leaders) > tolerated


def _placed(catalog: Catalog, servers: Servers, hosts: dict[str, str], care: ReplicaCare) -> Iterable[Placed]:
    for info in catalog.names.values():
        metadata = info.metadata
        version = metadata.schema.version
        for tablet in metadata.tablets:
            if tablet.target is not None:  # it is moving already, and counts where it will be
                yield Placed(tablet.id, tablet.target.server, (tablet.target.server,), False)
                continue
            if tablet.state != _RUNNING or tablet.leader is None:
                continue
            wanted = (tablet.epoch, version, _RUNNING)
            at = tuple(replica.server for replica in tablet.replicas)
            is_reported = all(server not in hosts or servers.reported(server, tablet.id) == wanted for server in at)
            is_settled = is_reported and (not tablet.is_replicated or care.is_settled(tablet))
            yield Placed(tablet.id, tablet.leader, at, is_settled)
