"""What a cluster has, as its leading master knows it: servers, tables with their tablets, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ebla.master.servers import Servers
from ebla.master_server.term import Term
from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.service.prometheus import family

__all__ = ["cluster_metrics", "describe_cluster"]


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
            "keeps_replicas": bool(server.registration.log_id),
        }
        for server in master.servers
    }
    alive = {uuid for uuid, server in servers.items() if server["is_alive"]}
    lags: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for server in master.servers:
        for lag in server.lags if server.uuid in alive else ():  # of one that is silent it is long ago
            told = {"server": lag.server, "entries": lag.entries, "seconds": lag.seconds}
            lags.setdefault((server.uuid, lag.tablet), []).append(told)
    tables = {}
    for info in master.catalog.named():
        tablets = [_described(tablet, master.servers, alive, lags) for tablet in info.metadata.tablets]
        tables[info.name] = {
            "id": info.id,
            "schema_version": info.metadata.schema.version,
            "replicas": max(tablet.wanted for tablet in info.metadata.tablets),
            "tablets": tablets,
        }
    return {
        "term": master.term,
        "servers": servers,
        "tables": tables,
        "problems": _problems(servers, tables),
        "damaged": {},  # as a store tells it: what is wrong with files is found by `verify`
    }


def cluster_metrics(term: Term | None) -> Iterator[str]:
    """Yield what Prometheus is told of a cluster; of a master that does not lead, only that."""
    yield from family("master_leading", "1 if this master leads.", [({}, int(term is not None))])
    if term is None:
        return
    found = describe_cluster(term)
    servers, tables = found["servers"].values(), found["tables"]
    tablets = [tablet for table in tables.values() for tablet in table["tablets"]]
    states = Counter(tablet["state"] for tablet in tablets)
    alive = sum(server["is_alive"] for server in servers)
    yield from family("master_term", "How often a master has begun to lead.", [({}, found["term"])])
    yield from family("cluster_tables", "Tables that have a name.", [({}, len(tables))])
    yield from family(
        "cluster_tablets", "Tablets by state.", (({"state": state}, count) for state, count in sorted(states.items()))
    )
    served = sum(tablet["is_served"] for tablet in tablets)
    yield from family("cluster_tablets_served", "Tablets that a server leads and serves.", [({}, served)])
    few = sum(tablet.get("is_under_replicated", False) for tablet in tablets)
    down = sum(tablet.get("is_unavailable", False) for tablet in tablets)
    lags = [lag["seconds"] for tablet in tablets for lag in tablet.get("lags", ())]
    yield from family(
        "cluster_tablets_under_replicated", "Tablets with fewer replicas in sync than wanted.", [({}, few)]
    )
    yield from family("cluster_tablets_unavailable", "Tablets of which no in-sync replica is alive.", [({}, down)])
    yield from family(
        "cluster_replica_lag_seconds_max", "How long a replica was behind, at most.", [({}, max(lags, default=0))]
    )
    yield from family(
        "cluster_servers",
        "Tablet servers by whether they were heard of lately.",
        [({"alive": "yes"}, alive), ({"alive": "no"}, len(servers) - alive)],
    )
    yield from family("cluster_problems", "What `ebla status` would tell to be wrong.", [({}, len(found["problems"]))])


def _described(
    tablet: TabletMetadata, servers: Servers, alive: set[str], lags: dict[tuple[str, str], list[dict[str, Any]]]
) -> dict[str, Any]:
    is_served = tablet.leader is not None and tablet.is_served and servers.runs(tablet.leader, tablet.id, tablet.epoch)
    told: dict[str, Any] = {
        "id": tablet.id,
        "first": tablet.first,
        "state": tablet.state,
        "epoch": tablet.epoch,
        "leader": tablet.leader,
        "target": None if tablet.target is None else tablet.target.server,
        "is_served": is_served,
        "wanted": tablet.wanted,
        "needed": tablet.needed,
        "replicas": [replica.server for replica in tablet.replicas],
        "in_sync": [replica.server for replica in tablet.in_sync],
    }
    if tablet.is_replicated:
        # What its leader said last says nothing once it is gone, and no other could be chosen.
        told["is_served"] = is_served = is_served and tablet.leader in alive and not servers.is_over(tablet.leader)
        told["configuration"] = tablet.number
        told["is_under_replicated"] = len(tablet.in_sync) < tablet.wanted
        told["is_unavailable"] = not is_served and not any(
            one.server in alive and not servers.is_over(one.server) for one in tablet.in_sync
        )
        told["lags"] = lags.get((tablet.leader or "", tablet.id), [])
    return told


def _replica_problems(name: str, tablets: list[dict[str, Any]], servers: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    down = [tablet for tablet in tablets if tablet.get("is_unavailable")]
    if down:
        needed = ", ".join(sorted({server for tablet in down for server in tablet["in_sync"]}))
        found.append(
            f"table {name}: {len(down)} tablets are unavailable, for none of their in-sync replicas is alive: start "
            f"one of the servers {needed} again; if they are gone for good, `ebla recover {down[0]['id']}` tells what "
            "would be lost"
        )
    few = [tablet for tablet in tablets if tablet.get("is_under_replicated") and not tablet["is_unavailable"]]
    if few:
        able = sum(server["is_alive"] and server["keeps_replicas"] for server in servers.values())
        wanted = max(tablet["wanted"] for tablet in few)
        least = min(len(tablet["in_sync"]) for tablet in few)
        what = (
            f"{able} servers are alive, and {wanted} are needed: start more"
            if able < wanted
            else "others catch up, which ends by itself"
        )
        found.append(
            f"table {name}: {len(few)} tablets have fewer than {wanted} replicas in sync, {least} where they are "
            f"fewest: {what}"
        )
    return found


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
        found += _replica_problems(name, table["tablets"], servers)
        served = [one for one in table["tablets"] if one["state"] != UNLOADED and not one.get("is_unavailable")]
        away = [one for one in served if not one["is_served"]]
        if away:
            found.append(
                f"table {name}: {len(away)} of {len(table['tablets'])} tablets are not served: this ends by itself "
                "while tablet servers are alive"
            )
    return found
