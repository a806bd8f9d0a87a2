"""The cleaner: deleted tables and replaced tablets leave memory and METADATA once nothing of them is anywhere.

    deleted table, retained           kept: it may come back
    deleted table, retention over     put on record as expired: no master can bring it back any more
    expired table                     its replicas are deleted; when every server confirmed it: purged
    replaced tablet                   when every server confirmed it: forgotten but for its id

A server confirms by a report that does not have the replica any more. One that is not heard of does not confirm, so its
tables wait for it; what it brings back after people have declared it gone is deleted by its id, which stays for ever.

It runs in every round. (Where it does not, every start of a master loads all that was ever deleted.)
"""

from __future__ import annotations

from ebla.master.catalog import Catalog
from ebla.master.reports import DELETE
from ebla.master.servers import Servers
from ebla.master.table_info import TableInfo
from ebla.master.tasks import Tasks
from ebla.master.writes import ChangeTable
from ebla.metadata.values.assigning import ForgetReplaced
from ebla.metadata.values.late import ForgetSchemas
from ebla.metadata.values.table_metadata import TabletMetadata

__all__ = [
    "delete_replicas",
    "delete_strays",
    "is_in_other_hands",
    "purgeable",
    "replaced_to_forget",
    "schemas_to_forget",
]


def delete_replicas(info: TableInfo, servers: Servers, tasks: Tasks, now: float) -> None:
    """Ask all servers for the deletion of their replicas of an expired table."""
    for tablet in info.metadata.tablets:
        for replica in tablet.replicas:
            server = servers.get(replica.server)
            if server is not None and tablet.id in server.reported:
                tasks.ensure(server.uuid, tablet.id, DELETE, now, replica.assignment_id)


def is_in_other_hands(tablet: TabletMetadata, server: str, servers: Servers) -> bool:
    """Whether every other server that is to have a tablet has said that it serves it, as METADATA has it.

    Until then nothing is deleted on the strength of METADATA alone: what another server has may be the last of it. Of a
    tablet with several replicas its leader has to serve, and is asked by who is to delete what it has.
    """
    if tablet.is_replicated:
        leader = tablet.leader
        return leader is not None and leader != server and servers.runs(leader, tablet.id, tablet.epoch)
    return tablet.leader not in (None, server) and all(
        replica.server == server or servers.runs(replica.server, tablet.id, tablet.epoch) for replica in tablet.replicas
    )


def delete_strays(catalog: Catalog, servers: Servers, tasks: Tasks, retained: dict[str, bool], now: float) -> None:
    """Ask for the deletion of replicas that METADATA no longer names, once their tablets are in other hands."""
    for server in servers:
        for stray in server.strays.values():
            info = catalog.tablet(stray.tablet)
            if info is None:
                is_over = stray.table in catalog.tombstones
            else:
                is_over = not retained.get(info.table.id, True) or is_in_other_hands(info.tablet, server.uuid, servers)
            if is_over:
                tasks.ensure(server.uuid, stray.tablet, DELETE, now, stray.assignment_id)


def purgeable(info: TableInfo, servers: Servers) -> bool:
    """Whether no server has anything of a deleted table any more."""
    metadata = info.metadata
    return all(
        servers.confirms_absence(replica.server, tablet.id)
        for tablet in metadata.tablets
        for replica in tablet.replicas
    ) and all(_is_confirmed(one.tablet, one.servers, servers) for one in metadata.replaced)


def replaced_to_forget(catalog: Catalog, table_ids: dict[str, None], servers: Servers) -> tuple[ChangeTable, ...]:
    """Return the changes that forget the replaced tablets of which no server has anything any more."""
    changes = []
    for table_id in table_ids:
        info = catalog.tables.get(table_id)
        if info is None or not info.is_visible:
            continue
        confirmed = tuple(
            one.tablet
            for one in info.metadata.replaced
            if one.servers and _is_confirmed(one.tablet, one.servers, servers)
        )
        if confirmed:
            changes.append(ChangeTable(table_id, (ForgetReplaced(confirmed),)))
    return tuple(changes)


def schemas_to_forget(catalog: Catalog, servers: Servers) -> tuple[ChangeTable, ...]:
    """Return the changes that drop former schemas, for tables all of whose leaders have reported the one of today."""
    changes = []
    for table_id in catalog.altering:
        info = catalog.tables[table_id]
        if not info.is_visible:
            continue
        metadata = info.metadata
        version = metadata.schema.version
        if all(_uses(servers, tablet, version) for tablet in metadata.tablets):
            changes.append(ChangeTable(table_id, (ForgetSchemas(version),)))
    return tuple(changes)


def _uses(servers: Servers, tablet: TabletMetadata, version: int) -> bool:
    state = None if tablet.leader is None else servers.reported(tablet.leader, tablet.id)
    return state is not None and state.epoch == tablet.epoch and state.schema_version >= version


def _is_confirmed(tablet: str, at: tuple[str, ...], servers: Servers) -> bool:
    return all(servers.confirms_absence(server, tablet) for server in at)
