"""What people ask of replicas: another number of them, another leader, going on with what is left of a tablet.

set_replicas    METADATA wants another number at once; rounds bring it about, one step for each tablet at a time
recover         a replica that is left leads, with what it has; what only the others had is lost

A replica in sync is gone when its server has another log, or was silent for long and does not hold its lease. One that
the master has merely not heard may be about to report, or acknowledge writes while it is cut off from the masters.
"""

from __future__ import annotations

from collections.abc import Callable

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
    now_seconds: Callable[[], float],
    silent_after_seconds: float,
) -> Operation[str]:
    """Have a replica that is left lead a tablet whose in-sync replicas are gone; return what was done.

    `Unavailable` while one of them may be there: it is worth asking again.
    """
    info = find_tablet(catalog, wanted)
    tablet = info.tablet
    if not tablet.is_replicated:
        raise RequestError(f"tablet {tablet.id} has one replica: start its server again, or restore a backup")
    alive = candidates.of(tablet)
    if alive:
        names = ", ".join(one.server for one in alive)
        raise RequestError(f"tablet {tablet.id} has replicas in sync that are alive ({names}): it needs no recovery")
    _check_are_gone(servers, tablet, now_seconds(), silent_after_seconds)
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
    _check_are_gone(servers, tablet, now_seconds(), silent_after_seconds)  # one may have been heard meanwhile
    floor = max([tablet.txn_floor, *bounds.values()])
    run = run_name(known.uuid, known.instance.seqno)
    yield from _change(catalog, info.table, RecoverTablet(tablet.id, tablet.number, leader, run, floor))
    return f"tablet {tablet.id} of {info.table.name!r} goes on from {chosen.server}; {loss}"


def _check_are_gone(servers: Servers, tablet: TabletMetadata, now: float, silent_after_seconds: float) -> None:
    """Raise `Unavailable` unless every replica in sync is known to be gone, and who is left had time to report."""
    if servers.may_be_coming(now, silent_after_seconds):
        raise Unavailable(
            f"the master has led for less than {silent_after_seconds:.0f} s, and servers that are alive may not have "
            f"reported to it: nothing of tablet {tablet.id} is given up yet; wait so long, then try again"
        )
    there = [
        one.server
        for one in tablet.in_sync
        if not _has_other_log(servers, one) and not servers.is_gone(one.server, now, silent_after_seconds)
    ]
    if there:
        raise Unavailable(
            f"tablet {tablet.id} has replicas in sync that may be alive ({', '.join(there)}): they were heard a moment "
            "ago, or their lease is not over; wait some seconds, then try again. If that stays so, they run, and "
            "cannot report to the masters: mend that, or stop them"
        )


def _has_other_log(servers: Servers, replica: Replica) -> bool:
    """Whether the server of a replica has said that it has another log than the one that is on record."""
    known = servers.get(replica.server)
    return known is not None and known.registration.log_id not in ("", replica.log_id)


def _progress(servers: Servers, replica: Replica, tablet: TabletMetadata) -> tuple[bool, int]:
    state = servers.reported(replica.server, tablet.id)
    known: Server | None = servers.get(replica.server)
    has_log = known is not None and known.registration.log_id == replica.log_id
    return has_log, 0 if state is None else state.epoch
