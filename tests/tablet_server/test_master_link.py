"""Heartbeats find the master that leads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebla.errors import Unavailable
from ebla.master.calls import HEARTBEAT_METHODS, SendHeartbeat
from ebla.master.messages import Heartbeat, HeartbeatReply, Instance
from ebla.rpc.server import RpcServer
from ebla.tablet_server.master_link import MasterLink

BEAT = Heartbeat("cluster", Instance("server", 1))


class LittleMaster:
    """Answers heartbeats while it leads."""

    def __init__(self, term: int) -> None:
        self.leads = False
        self.asked = 0
        self.term = term
        self.rpc = RpcServer(HEARTBEAT_METHODS, {SendHeartbeat: self._take})

    def _take(self, request: SendHeartbeat, caller: object) -> HeartbeatReply:
        self.asked += 1
        if not self.leads:
            raise Unavailable("another one leads")
        return HeartbeatReply(self.term)


@pytest.fixture
def masters() -> Iterator[list[LittleMaster]]:
    made = [LittleMaster(1), LittleMaster(2)]
    yield made
    for one in made:
        one.rpc.close()


def test_they_go_to_the_one_that_leads_and_stay_with_it(masters: list[LittleMaster]) -> None:
    link = MasterLink("server", lambda: [one.rpc.address for one in masters])
    masters[1].leads = True
    assert [link.send(BEAT).term for _ in range(3)] == [2, 2, 2]
    assert masters[0].asked <= 1
    masters[1].rpc.close()
    masters[0].leads = True
    assert link.send(BEAT).term == 1
    link.close()


def test_without_a_master_that_leads_it_is_told_why(masters: list[LittleMaster]) -> None:
    link = MasterLink("server", lambda: [one.rpc.address for one in masters])
    with pytest.raises(Unavailable, match="another one leads"):
        link.send(BEAT)
    with pytest.raises(Unavailable, match="none is known"):
        MasterLink("server", list).send(BEAT)
    link.close()
