"""A tablet moved by hand: offered to the server that people name, as the balancer does it.

    offered --> its leader flushes it and resigns --> the server takes it over          `handing_over`
    of several replicas: learned, unless it has one --> in sync --> its leader resigns to it --> one too many goes

The balancer goes on: it evens out servers of which one leads more tablets than another by more than is tolerated.
"""

from __future__ import annotations

from collections.abc import Callable

from ebla.errors import RequestError, Unavailable
from ebla.master.catalog import Catalog
from ebla.master.replicas import ReplicaCare
from ebla.master.servers import Server, Servers
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TableInfo
from ebla.master.writes import ChangeTable, ChangeTables, Operation
from ebla.metadata.values.handing_over import Offer, OfferTablets
from ebla.metadata.values.table_metadata import Replica, TableMetadata

__all__ = ["move_tablet"]


def move_tablet(
    catalog: Catalog,
    servers: Servers,
    name: str,
    tablet_id: str,
    wanted: str,
    *,
    new_id: Callable[[], str],
    now: float,
    settings: MasterSettings,
    care: ReplicaCare,
) -> Operation[tuple[TableInfo, str]]:
    """Offer a tablet to a server, named by its uuid, the beginning of it, or its address; return its uuid."""
    info = catalog.table(name)
    found = [one for one in info.metadata.tablets if one.id.startswith(tablet_id)] if tablet_id else []
    if len(found) != 1:
        raise RequestError(f"{len(found)} tablets of {name!r} are called {tablet_id!r}: see Table.tablets()")
    tablet = found[0]
    server = _server(servers, wanted, now, settings)
    if tablet.leader == server.uuid and tablet.target is None:
        return info, server.uuid
    if tablet.is_replicated:
        if not server.registration.log_id:
            raise RequestError(f"server {server.uuid} keeps no replicas: choose another")
        assert tablet.leader is not None
        care.moving[tablet.id] = (tablet.leader, server.uuid)
        return info, server.uuid
    offer = Offer(tablet.id, tablet.epoch, Replica(server.uuid, new_id()))
    (answer,) = yield ChangeTables((ChangeTable(info.id, (OfferTablets((offer,)),)),))
    if not isinstance(answer, TableMetadata):
        catalog.stale[info.id] = None
        raise Unavailable(f"tablet {tablet.id} was changed meanwhile, and is not moved ({answer}): try again")
    catalog.install_metadata(answer)
    return info, server.uuid


def _server(servers: Servers, wanted: str, now: float, settings: MasterSettings) -> Server:
    named = [one for one in servers if wanted and (one.uuid.startswith(wanted) or one.registration.address == wanted)]
    if len(named) != 1:
        raise RequestError(f"{len(named)} servers are called {wanted!r}: `ebla status` has their uuids and addresses")
    if named[0] not in servers.live(now, settings.silent_after_seconds):
        raise RequestError(f"server {named[0].uuid} is not alive: start it, or choose another")
    return named[0]
