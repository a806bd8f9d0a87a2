"""What people ask of replicas: another number of them, another leader, going on with what is left of a tablet.

set_replicas    METADATA wants another number at once; rounds bring it about, one step for each tablet at a time
recover         a replica that is left leads, with what it has; what only the others had is lost
"""

from __future__ import annotations

from ebla.errors import RequestError, Unavailable
from ebla.master.catalog import Catalog
from ebla.master.replicas import Candidates, ReplicaCare
from ebla.master.servers import Server, Servers
from ebla.master.table_info import TableInfo, TabletInfo
from ebla.master.writes import ChangeTable, ChangeTables, Operation, ReadBounds
from ebla.metadata.values.changes import Change
from ebla.metadata.values.replicating import RecoverTablet, SetWanted, TabletNumber
from ebla.metadata.values.runs import run_name
from ebla.metadata.values.table_metadata import Replica, TableMetadata, TabletMetadata

__all__ = ["find_tablet", "recover_tablet", "set_replicas"]


def set_replicas(catalog: Catalog, care: ReplicaCare, name: str, replicas: int) -> Operation[TableInfo]:
    """Have the tablets of a table want so many replicas."""
    info = catalog.table(name)
    tablets = [one for one in info.metadata.tablets if one.wanted != replicas]
    care.to_replicate.pop(info.id, None)
    if any(not one.is_replicated for one in tablets):
        care.to_replicate[info.id] = replicas  # of the table: its tablets may be split before they are asked
    numbers = tuple(TabletNumber(one.id, one.number) for one in tablets if one.is_replicated)
    if numbers:
        yield from _change(catalog, info, SetWanted(numbers, replicas))
    return info


def _change(catalog: Catalog, info: TableInfo, change: Change) -> Operation[None]:
    """Write a change of a table; `Unavailable` if it was changed meanwhile."""
    (answer,) = yield ChangeTables((ChangeTable(info.id, (change,)),))
    if not isinstance(answer, TableMetadata):
        catalog.stale[info.id] = None
        raise Unavailable(f"table {info.name!r} was changed meanwhile ({answer}): try again")
    catalog.install_metadata(answer)


def find_tablet(catalog: Catalog, wanted: str) -> TabletInfo:
    """Return the one tablet of any table whose id begins so."""
    found = [one for one in catalog.tablets if wanted and one.startswith(wanted)]
    info = catalog.tablet(found[0]) if len(found) == 1 else None
    if info is None or not info.table.is_visible:
        raise RequestError(f"{len(found)} tablets are called {wanted!r}: `ebla status --json` has their ids")
    return info


def recover_tablet(
    catalog: Catalog,
    servers: Servers,
    candidates: Candidates,
    wanted: str,
    server: str | None,
    *,
    accept_loss: bool,
) -> Operation[str]:
    """Have a replica that is left lead a tablet whose in-sync replicas are gone; return what was done."""
    info = find_tablet(catalog, wanted)
    tablet = info.tablet
    if not tablet.is_replicated:
        raise RequestError(f"tablet {tablet.id} has one replica: start its server again, or restore a backup")
    alive = candidates.of(tablet)
    if alive:
        names = ", ".join(one.server for one in alive)
        raise RequestError(f"tablet {tablet.id} has replicas in sync that are alive ({names}): it needs no recovery")
    left = [
        one for one in tablet.replicas if candidates.is_alive(one.server) and servers.reported(one.server, tablet.id)
    ]
    if server is not None:
        left = [one for one in left if one.server.startswith(server)]
    if not left:
        raise RequestError(
            f"no replica of tablet {tablet.id} is left on a server that is alive: start one of "
            f"{', '.join(one.server for one in tablet.replicas)}, or restore a backup"
        )
    chosen = max(left, key=lambda one: _progress(servers, one, tablet))
    gone = ", ".join(one.server for one in tablet.in_sync)
    loss = (
        f"what was acknowledged and is neither in files nor in the replica on {chosen.server} is lost: only {gone} "
        f"certainly had all of it"
    )
    if not accept_loss:
        raise RequestError(
            f"tablet {tablet.id} of {info.table.name!r} can be gone on with from {chosen.server}, and then {loss}. "
            f"Start {gone} again if that can be; if they are gone for good, accept the loss (--accept-loss)"
        )
    known = servers.get(chosen.server)
    assert known is not None
    leader = Replica(*chosen.key, known.registration.log_id)
    bounds = yield ReadBounds(tuple(one for one in (tablet.log,) if one is not None))
    floor = max([tablet.txn_floor, *bounds.values()])
    run = run_name(known.uuid, known.instance.seqno)
    yield from _change(catalog, info.table, RecoverTablet(tablet.id, tablet.number, leader, run, floor))
    return f"tablet {tablet.id} of {info.table.name!r} goes on from {chosen.server}; {loss}"


def _progress(servers: Servers, replica: Replica, tablet: TabletMetadata) -> tuple[bool, int]:
    state = servers.reported(replica.server, tablet.id)
    known: Server | None = servers.get(replica.server)
    has_log = known is not None and known.registration.log_id == replica.log_id
    return has_log, 0 if state is None else state.epoch
