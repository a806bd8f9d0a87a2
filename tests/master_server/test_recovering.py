"""A tablet goes on with what is left of it when its replicas in sync are gone, not when the master hears nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import ebla
from ebla.errors import Unavailable
from ebla.master.messages import Heartbeat, HeartbeatReply
from ebla.master.settings import MasterSettings
from ebla.master_server.term import Term
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.metadata_rpc.calls import AskMetadata
from ebla.metadata_rpc.kept_metadata import KeptMetadata
from tests.master_server.small_cluster import SmallCluster, wait_until

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"})])


class CutOff(SmallCluster):
    """A cluster of which some servers do not reach the masters; all else does."""

    def __init__(self, directory: Path) -> None:
        self.unheard: set[str] = set()  # by uuid
        super().__init__(directory, 1, 3, master_settings=MasterSettings(is_log_shared=True, silent_after_seconds=3.0))

    def _send(self, heartbeat: Heartbeat) -> HeartbeatReply:
        if heartbeat.instance.uuid in self.unheard:
            raise Unavailable("it cannot be reached")
        return super()._send(heartbeat)

    def cut_off(self, monkeypatch: pytest.MonkeyPatch, servers: list[str]) -> None:
        """Let no master hear these servers. They hear each other, and hold their leases."""
        asked = KeptMetadata.asked

        def refused(kept: KeptMetadata, request: AskMetadata) -> bytes:
            if request.sender in self.unheard:
                raise Unavailable("it cannot be reached")
            return asked(kept, request)

        monkeypatch.setattr(KeptMetadata, "asked", refused)
        self.unheard.update(servers)

    @property
    def term(self) -> Term:
        return self.masters[self.leader]._leading()

    def tablet(self) -> TabletMetadata:
        return self.term.master.catalog.table("t").metadata.tablets[0]

    def recover(self) -> str:
        return self.term.run(self.term.master.recover_tablet(self.tablet().id, None, accept_loss=True))


def test_replicas_in_sync_that_only_the_masters_do_not_hear_are_not_deposed_and_gone_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = CutOff(tmp_path)
    with cluster, cluster.connect() as db:
        master = cluster.term.master

        def live() -> set[str]:
            return {one.uuid for one in master.servers.live(master.now_seconds(), 3.0)}

        wait_until(lambda: len(live()) == 3)
        table = db.create_table("t", SCHEMA, replicas=3)
        table.put({"k": "a", "n": 1})
        table.flush()
        before = cluster.tablet()
        left = next(one.server for one in before.replicas if one.server != before.leader)
        names = {server.uuid: name for name, server in cluster.servers.items()}
        cluster.stop_server(names[left])
        wait_until(lambda: len(cluster.tablet().in_sync) == 2)
        in_sync = [one.server for one in cluster.tablet().in_sync]
        cluster.cut_off(monkeypatch, in_sync)
        cluster.start_server(names[left])
        wait_until(lambda: live() == {left} and master.servers.reported(left, before.id) is not None)
        with pytest.raises(Unavailable, match=rf"may be alive \({', '.join(in_sync)}\)"):
            cluster.recover()
        assert cluster.tablet().leader == before.leader
        table.put({"k": "b", "n": 2})  # its leader acknowledges
        for server in in_sync:
            cluster.stop_server(names[server])
        told: list[str] = []

        def is_recovered() -> bool:
            with contextlib.suppress(Unavailable):
                told.append(cluster.recover())
            return bool(told)

        wait_until(is_recovered)
        assert f"goes on from {left}" in told[0]
        assert table.get("a") == {"k": "a", "n": 1}
