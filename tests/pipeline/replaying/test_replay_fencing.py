"""Replay of a store that hosts share: who owns its lease may replay it, and nobody who lost it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

import ebla
from ebla.client.embedded.ownership import OWNER_NODE
from ebla.client.embedded.owning import owning
from ebla.clock import SystemClock
from ebla.coordination.address import connect, parse_address
from ebla.direct.log_replay import LogReplay
from ebla.direct.log_sorting import ReplayTask
from ebla.tablet.recovery.log_sort import SortedPortion
from tests.pipeline.replaying.replay_world import UNFLUSHED, Here, log_of, replay_here
from tests.support.inside import abandon
from tests.support.zookeeper import ZooKeeperServer


@pytest.fixture
def address(zookeeper_server: ZooKeeperServer) -> str:
    return f"zk://{zookeeper_server.address}/stores/{uuid.uuid4()}"


def check_for_ever(check: Callable[[], None]) -> None:
    while True:
        check()
        time.sleep(0.05)


def test_only_the_owner_of_the_lease_replays(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = ebla.open(tmp_path, coordination=address, settings=UNFLUSHED)
    table = database.create_table("t", ebla.Schema(key={"k": "string"}, columns={"text": "string"}))
    for number in range(30):
        table.put({"k": f"{number:02}", "text": "x" * 500})
    abandon(database)
    log = log_of(tmp_path)
    with connect(parse_address(address), SystemClock()) as other:
        # Another host has it: refused before anything is looked at.
        own = msgspec.json.decode(other.read(OWNER_NODE).value)["owner"]
        mine = other.lease(OWNER_NODE, own, 0.5)
        mine.release()
        lease = other.lease(OWNER_NODE, "elsewhere:/data", 60)
        with pytest.raises(ebla.StoreLocked, match="elsewhere:/data"):
            replay_here(tmp_path, 2)
        lease.release()

        monkeypatch.setattr("ebla.client.embedded.owning.Settings", lambda: ebla.Settings(owner_lease_seconds=1.0))
        with owning(tmp_path) as owned:

            class Robbed(Here):
                """Loses the lease while it sorts."""

                def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
                    found = super().sort(task)
                    other.lease(OWNER_NODE, own, 60)
                    with pytest.raises(ebla.LogFailed):
                        check_for_ever(owned.check)
                    return found

            with pytest.raises(ebla.LogFailed, match="no longer owns the store"):
                LogReplay(owned, str(tmp_path)).run(Robbed, 2)
        assert log_of(tmp_path) == log, "nothing was changed"
        other.lease(OWNER_NODE, own, 60).release()
    monkeypatch.undo()
    assert replay_here(tmp_path, 2).records == 30
    with ebla.open(tmp_path) as again:
        assert again.table("t").scan().count() == 30
