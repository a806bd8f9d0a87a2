"""What is told of tablets with replicas: how many lack one, how far those are behind, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.master.settings import MasterSettings
from ebla.service.requests import DescribeStore
from tests.master_server.small_cluster import SmallCluster, wait_until

SCHEMA = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"n": "int64"})])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with SmallCluster(
        tmp_path, masters=1, servers=3, master_settings=MasterSettings(is_log_shared=True, silent_after_seconds=3.0)
    ) as made:
        yield made


def metrics(cluster: SmallCluster) -> dict[str, float]:
    """Return what Prometheus is told, without what has labels."""
    text = cluster.masters[cluster.leader].metrics()
    return {name: float(value) for name, value in re.findall(r"^ebla_cluster_(\w+) (\S+)$", text, re.MULTILINE)}


def described(db: ebla.Database) -> dict[str, Any]:
    found: dict[str, Any] = db._service.carry_out(DescribeStore())
    return found


def test_what_replicas_lack_is_told_in_metrics_and_sentences_while_servers_are_away(cluster: SmallCluster) -> None:
    with cluster.connect() as db:
        wait_until(lambda: len(described(db)["servers"]) == 3)
        table = db.create_table("t", SCHEMA, splits=[100], replicas=3)
        table.put([{"k": 1, "n": 1}, {"k": 101, "n": 1}])
        wait_until(lambda: not described(db)["problems"])
        told = metrics(cluster)
        names = ("tablets_under_replicated", "tablets_unavailable", "replica_lag_seconds_max")
        assert [told[name] for name in names] == [0, 0, 0]

        away = cluster.servers["server-3"].uuid
        cluster.stop_server("server-3")
        table.put([{"k": 1, "n": 2}, {"k": 101, "n": 2}])
        wait_until(lambda: metrics(cluster)["tablets_under_replicated"] == 2)
        wait_until(lambda: metrics(cluster)["replica_lag_seconds_max"] > 2)
        assert metrics(cluster)["tablets_unavailable"] == 0
        few = (
            "table t: 2 tablets have fewer than 3 replicas in sync, 2 where they are fewest: "
            "2 servers are alive, and 3 are needed: start more"
        )
        wait_until(lambda: few in described(db)["problems"])
        for tablet in described(db)["tables"]["t"]["tablets"]:
            (lag,) = tablet["lags"]
            assert lag["server"] == away
            assert lag["entries"] >= 1
            assert lag["seconds"] > 2

        uuids = [server.uuid for server in cluster.servers.values()]
        for name in ("server-1", "server-2"):
            cluster.stop_server(name)
        wait_until(lambda: metrics(cluster)["tablets_unavailable"] == 2)
        (down,) = (one for one in described(db)["problems"] if "unavailable" in one)
        assert "table t: 2 tablets are unavailable, for none of their in-sync replicas is alive: start one of" in down
        assert all(uuid in down for uuid in uuids)
        assert away not in down
        # Nobody tells how far replicas are behind: what was told last is true no more.
        wait_until(lambda: metrics(cluster)["replica_lag_seconds_max"] == 0)

        for name in ("server-1", "server-2", "server-3"):
            cluster.start_server(name)
        wait_until(lambda: not described(db)["problems"], seconds=60)
        wait_until(lambda: all(metrics(cluster)[name] == 0 for name in names))
        assert [row["n"] for row in table.scan()] == [2, 2]
