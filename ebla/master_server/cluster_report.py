"""What a cluster has, as its leading master knows it: servers, tables with their tablets, and what is wrong."""

from __future__ import annotations

from typing import Any

from ebla.master_server.term import Term

__all__ = ["describe_cluster"]


def describe_cluster(term: Term) -> dict[str, Any]:
    """Return what a cluster has: servers, tables with their tablets, and what is wrong."""
    master = term.master
    now = master.now_seconds()
    servers = {
        server.uuid: {
            "address": server.registration.address,
            "host": server.registration.host,
            "starts": server.instance.seqno,
            "silent_seconds": round(now - server.heard_seconds, 1),
            "is_alive": now - server.heard_seconds <= master.settings.silent_after_seconds,
            "tablets": master.catalog.replicas_on(server.uuid),
            "leads": master.catalog.leaders_on(server.uuid),
            "unknown_tablets": len(server.unknown),
        }
        for server in master.servers
    }
    tables = {}
    for info in master.catalog.named():
        tablets = [
            {
                "id": tablet.id,
                "first": tablet.first,
                "state": tablet.state,
                "epoch": tablet.epoch,
                "leader": tablet.leader,
                "target": None if tablet.target is None else tablet.target.server,
                "is_served": tablet.leader is not None
                and tablet.is_served
                and master.servers.runs(tablet.leader, tablet.id, tablet.epoch),
            }
            for tablet in info.metadata.tablets
        ]
        tables[info.name] = {"id": info.id, "schema_version": info.metadata.schema.version, "tablets": tablets}
    return {"term": master.term, "servers": servers, "tables": tables, "problems": _problems(servers, tables)}


def _problems(servers: dict[str, dict[str, Any]], tables: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong, and what to do about it, a sentence each."""
    found = []
    if not servers:
        found.append("no tablet server has reported: start some with `ebla tablet-server`")
    for uuid, server in servers.items():
        if not server["is_alive"]:
            found.append(
                f"server {uuid} at {server['address']} was not heard for {server['silent_seconds']:.0f} s: "
                "see its log, and start it again"
            )
        if server["unknown_tablets"]:
            found.append(
                f"server {uuid} has {server['unknown_tablets']} tablets that nobody knows: they are left alone"
            )
    for name, table in tables.items():
        away = [tablet for tablet in table["tablets"] if not tablet["is_served"]]
        if away:
            found.append(
                f"table {name}: {len(away)} of {len(table['tablets'])} tablets are not served: this ends by itself "
                "while tablet servers are alive"
            )
    return found
