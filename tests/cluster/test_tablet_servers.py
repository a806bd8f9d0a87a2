"""Tablet servers as real processes, killed, stopped and started under a load that remembers what it was told."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.chaos import Chaos
from tests.cluster.checked_load import CheckedLoad
from tests.cluster.processes import ROOT, RealCluster
from tests.support.zookeeper import ZooKeeperServer, free_ports

SOAK_SECONDS = 600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("cluster"), masters=3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def load(cluster: RealCluster) -> Iterator[CheckedLoad]:
    made = CheckedLoad(cluster.db, pause_seconds=0.01)
    made.start()
    made.wait_for(200)
    yield made
    made.stop()


def a_leader(cluster: RealCluster) -> str:
    """Return the name of a server that leads something."""
    leading = set(cluster.leaders().values())
    return next(name for name, server in cluster.servers.items() if server.uuid in leading)


def test_tablets_of_a_killed_server_are_served_by_others_and_nothing_acknowledged_is_lost(
    cluster: RealCluster, load: CheckedLoad
) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    victim.kill()
    cluster.wait_until(lambda: all(leader not in (None, victim.uuid) for leader in cluster.leaders().values()))
    load.wait_for(200)
    cluster.start_again(name)
    assert cluster.servers[name].uuid == victim.uuid
    load.wait_for(100)


def test_a_server_that_was_stopped_for_longer_than_its_lease_harms_nothing_when_it_returns(
    cluster: RealCluster, load: CheckedLoad
) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    victim.signal(signal.SIGSTOP)
    cluster.wait_until(lambda: all(leader not in (None, victim.uuid) for leader in cluster.leaders().values()))
    load.wait_for(100)
    victim.signal(signal.SIGCONT)
    cluster.wait_until(lambda: victim.uuid in cluster.living())
    load.wait_for(200)
    assert victim.is_running


def test_a_server_that_is_stopped_cleanly_hands_over_what_it_leads(cluster: RealCluster, load: CheckedLoad) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    assert victim.stop() == 0, cluster.told()
    cluster.wait_until(lambda: all(leader not in (None, victim.uuid) for leader in cluster.leaders().values()))
    cluster.start_again(name)
    load.wait_for(100)


def test_the_leading_master_is_killed_and_another_one_leads(cluster: RealCluster, load: CheckedLoad) -> None:
    name = cluster.leading_master()
    cluster.masters[name].kill()
    load.wait_for(100)  # rows are read and written meanwhile
    cluster.wait_until(lambda: cluster.leading_master() != name and all(cluster.leaders().values()))
    server = a_leader(cluster)
    victim = cluster.servers[server]
    victim.kill()
    cluster.wait_until(lambda: all(leader not in (None, victim.uuid) for leader in cluster.leaders().values()))
    cluster.start_again(name)
    cluster.start_again(server)
    load.wait_for(100)


def test_tables_are_moved_cut_altered_compacted_and_cloned_under_the_load(
    cluster: RealCluster, load: CheckedLoad
) -> None:
    chaos = Chaos(cluster, random.Random(7))
    for what in ("move", "split", "alter", "compact", "join", "clone", "flush"):
        cluster.wait_until(lambda: all(cluster.leaders().values()))
        wanted, seen = chaos.done[what] + 1, len(chaos.refused)
        while chaos.done[what] < wanted:
            chaos.to_table(what)
            assert sum(chaos.refused.values()) < 50 + seen, chaos.refused
        load.wait_for(20)


def test_after_all_that_everything_is_as_clients_were_told(cluster: RealCluster, load: CheckedLoad) -> None:
    load.stop()
    load.check()


def test_a_server_with_another_clusters_data_says_so_and_leaves(cluster: RealCluster, tmp_path: Path) -> None:
    name = next(iter(cluster.servers))
    options = ["--coordination", str(tmp_path / "other.sqlite"), "--root", str(tmp_path / "root")]
    data = tmp_path / "data"
    data.mkdir()
    (data / "server.json").write_bytes((cluster.path / name / "server.json").read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "ebla", "tablet-server", *options, "--data", str(data)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "belongs to the cluster" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_processes_and_tables_everything_is_as_clients_were_told(seed: int, tmp_path: Path) -> None:
    """Ten minutes of it, by a seed, with ZooKeeper."""
    zookeeper = ZooKeeperServer(tmp_path / "zookeeper", free_ports(1)[0])
    zookeeper.start()
    try:
        zookeeper.wait()
        run_chaos(tmp_path / "cluster", seed, SOAK_SECONDS, f"zk://{zookeeper.address}/ebla")
    finally:
        zookeeper.kill()


def run_chaos(path: Path, seed: int, seconds: float, coordination: str | None = None) -> Chaos:
    """Do things to a cluster for so long, by a seed, and hold it to what its clients were told."""
    path.mkdir()
    cluster = RealCluster(path, masters=3, coordination=coordination)
    try:
        load = CheckedLoad(cluster.db, seed=seed, pause_seconds=0.005)
        load.start()
        chaos = Chaos(cluster, random.Random(seed))
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            chaos.step()
            load.wait_for(50)
        load.stop()
        load.check()
        return chaos
    finally:
        cluster.close()
