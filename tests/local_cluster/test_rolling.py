"""All processes of a cluster restarted one after the other under a load that remembers what it was told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.local_cluster.cluster_file import is_running, read_cluster
from ebla.local_cluster.rolling import in_sync_counts, pauses, unsettled
from tests.cluster.checked_load import CheckedLoad


def command(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ebla", *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("rolling") / "cluster"
    command("up", "--servers", "3", "--masters", "3", "--data", str(made))
    try:
        yield made
    finally:
        for process in read_cluster(made).processes:
            if is_running(process):
                os.kill(process.pid, signal.SIGKILL)


def test_every_process_is_restarted_and_no_request_of_a_client_fails(directory: Path) -> None:
    before = read_cluster(directory).processes
    with ebla.connect(directory) as db:
        loads = [
            CheckedLoad(db, name=f"of{replicas}", pause_seconds=0.03, replicas=replicas, seed=replicas)
            for replicas in (1, 3)
        ]
        for load in loads:
            load.start()
            load.wait_for(50)
        told = command("restart", "--rolling", "--data", str(directory))
        for load in loads:
            load.wait_for(50)
            load.stop()
            load.check()
            assert load.errors == []
    after = read_cluster(directory).processes
    assert [process.uuid for process in after] == [process.uuid for process in before]
    assert not {process.pid for process in after} & {process.pid for process in before}
    assert all(is_running(process) for process in after)
    steps = [line for line in told.splitlines() if line.endswith("stops")]
    assert ["tablet-server" in step for step in steps] == [True] * 3 + [False] * 3, "masters are last"


def test_what_could_not_be_written_meanwhile_is_refused_and_nothing_is_restarted(directory: Path) -> None:
    with ebla.connect(directory) as db:
        db.create_table("pair", ebla.Schema(key={"k": "int64"}, columns={"v": "string"}), replicas=2)
        told = command("restart", "--rolling", "--data", str(directory), code=2)
        db.drop_table("pair")
    assert "table pair cannot be written while a server is away" in told
    assert "nothing was restarted" in told


def tablet(**other: Any) -> dict[str, Any]:
    same = {"id": "t", "is_served": True, "state": "running", "target": None, "wanted": 3, "needed": 2}
    return {**same, "replicas": ["a", "b", "c"], "in_sync": ["a", "b", "c"], **other}


def cluster_of(*tablets: dict[str, Any], servers: int = 3) -> dict[str, Any]:
    alive = {"is_alive": True, "address": "host:1", "silent_seconds": 9.0}
    return {"servers": {f"s{number}": alive for number in range(servers)}, "tables": {"x": {"tablets": [*tablets]}}}


def test_a_cluster_that_is_whole_has_no_obstacle() -> None:
    found = cluster_of(tablet(), tablet(wanted=1, needed=1, replicas=["a"], in_sync=["a"]))
    assert [*pauses(found), *unsettled(found, in_sync_counts(found))] == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (cluster_of(tablet(wanted=1, needed=1, replicas=["a"], in_sync=["a"]), servers=1), "has one tablet server"),
        (cluster_of(tablet(wanted=2, replicas=["a", "b"], in_sync=["a", "b"])), "need 2 replicas in sync and have 2"),
    ],
)
def test_pauses_are_told_before_anything_is_stopped(found: dict[str, Any], told: str) -> None:
    (sentence,) = pauses(found)
    assert told in sentence


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"is_served": False}, "is not served"),
        ({"target": "s2"}, "is on its way"),
        ({"in_sync": ["a", "b"]}, "not in sync"),
        ({"in_sync": ["a", "b"], "replicas": ["a", "b"]}, "not in sync"),
    ],
)
def test_the_next_process_waits_until_all_is_as_it_was(changed: dict[str, Any], told: str) -> None:
    (sentence,) = unsettled(cluster_of(tablet(**changed)), {"t": 3})
    assert told in sentence


def test_a_tablet_that_people_took_offline_is_not_waited_for() -> None:
    assert [*unsettled(cluster_of(tablet(is_served=False, state="unloaded")), {})] == []
