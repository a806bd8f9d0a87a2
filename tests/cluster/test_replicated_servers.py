"""Tables that three servers keep, as real processes: killed, stopped, wiped and started under a load that remembers."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.checked_load import CheckedLoad
from tests.cluster.processes import RealCluster

SOAK_SECONDS = 600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("replicated"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def load(cluster: RealCluster) -> Iterator[CheckedLoad]:
    made = CheckedLoad(cluster.db, pause_seconds=0.01, replicas=3)
    made.start()
    made.wait_for(100)
    yield made
    made.stop()


def a_leader(cluster: RealCluster) -> str:
    """Return the name of a server that leads something."""
    leading = set(cluster.leaders().values())
    return next(name for name, server in cluster.servers.items() if server.uuid in leading)


def wait_for_others(cluster: RealCluster, uuid: str) -> None:
    cluster.wait_until(lambda: all(leader not in (None, uuid) for leader in cluster.leaders().values()))


def test_others_lead_what_a_killed_server_led(cluster: RealCluster, load: CheckedLoad) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    victim.kill()
    wait_for_others(cluster, victim.uuid)
    load.wait_for(100)
    cluster.start_again(name)
    load.wait_for(100)


def test_a_leader_that_stood_still_harms_nothing_when_it_returns(cluster: RealCluster, load: CheckedLoad) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    victim.signal(signal.SIGSTOP)
    wait_for_others(cluster, victim.uuid)
    load.wait_for(100)
    victim.signal(signal.SIGCONT)
    cluster.wait_until(lambda: victim.uuid in cluster.living())
    load.wait_for(100)


def test_a_server_that_lost_its_log_learns_anew(cluster: RealCluster, load: CheckedLoad) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    victim.kill()
    shutil.rmtree(cluster.path / "root" / "log" / victim.uuid)
    wait_for_others(cluster, victim.uuid)
    cluster.start_again(name)
    load.wait_for(100)


def test_a_server_that_is_stopped_cleanly_hands_over(cluster: RealCluster, load: CheckedLoad) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    assert victim.stop() == 0, cluster.told()
    wait_for_others(cluster, victim.uuid)
    cluster.start_again(name)
    load.wait_for(100)


def test_schemas_are_changed_while_a_leader_is_killed(cluster: RealCluster, load: CheckedLoad) -> None:
    name = a_leader(cluster)
    victim = cluster.servers[name]
    tables = [load.registers.name, load.counters.name, load.chains.name]
    for table in tables:
        cluster.db.alter_table(table, add_columns={"more": "int64"})
    load.wait_for(100)
    victim.kill()
    for table in tables:
        cluster.db.alter_table(table, rename={"more": "other"})
    wait_for_others(cluster, victim.uuid)
    load.wait_for(100)
    for table in tables:
        cluster.db.alter_table(table, drop_columns=["other"])
    cluster.start_again(name)
    load.wait_for(100)


def test_all_servers_killed_at_once_come_back_with_everything(cluster: RealCluster, load: CheckedLoad) -> None:
    for server in cluster.servers.values():
        server.kill()
    for name in [*cluster.servers]:
        cluster.start_again(name)
    load.wait_for(100)


def test_after_all_that_everything_is_as_clients_were_told(cluster: RealCluster, load: CheckedLoad) -> None:
    load.stop()
    load.check()
    assert not load.errors, "clients that try again as they do by default are told of none of it"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_stopped_and_started_nothing_acknowledged_is_lost(seed: int, tmp_path: Path) -> None:
    """Ten minutes of it, by a seed: one or all servers, or masters, killed, stopped for a while, or told to leave."""
    dice = random.Random(seed)
    cluster = RealCluster(tmp_path, masters=3)
    try:
        load = CheckedLoad(cluster.db, seed=seed, pause_seconds=0.005, replicas=3)
        load.start()
        ends_at = time.monotonic() + SOAK_SECONDS
        while time.monotonic() < ends_at:
            every = dice.random() < 0.1
            names = (
                [*cluster.servers] if every else [dice.choice([*cluster.servers, *cluster.servers, *cluster.masters])]
            )
            what = dice.choice(["kill", "stop", "leave"])
            for name in names:
                process = (cluster.masters if name in cluster.masters else cluster.servers)[name]
                if what == "stop":
                    process.signal(signal.SIGSTOP)
                else:
                    process.kill() if what == "kill" or every else process.stop()
            time.sleep(dice.random() * 6)
            for name in names:
                process = (cluster.masters if name in cluster.masters else cluster.servers)[name]
                process.signal(signal.SIGCONT) if what == "stop" else cluster.start_again(name)
            cluster.wait_until(lambda: all(cluster.leaders().values()), 60)
            load.wait_for(50)
        load.stop()
        load.check()
    finally:
        cluster.close()
