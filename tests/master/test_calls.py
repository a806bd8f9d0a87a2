"""Messages between masters and tablet servers, over the wire."""

from __future__ import annotations

from ebla.master.calls import HEARTBEAT_METHODS, REQUEST_METHODS, SendHeartbeat, SendRequests
from ebla.master.messages import (
    DeleteTablet,
    FullChunk,
    Heartbeat,
    HeartbeatReply,
    Instance,
    Registration,
    RemovedTablet,
    ReportedTablet,
    Requests,
    TabletReport,
    UpdateTablet,
)
from ebla.metadata.values.table_metadata import Replica
from ebla.rpc.channel import Channel
from ebla.rpc.server import RpcServer


def test_a_heartbeat_and_its_reply_pass_the_wire_unchanged() -> None:
    report = TabletReport(
        7, (ReportedTablet("t", "table", "a", "running", 3, 4),), (RemovedTablet("u", "b"),), FullChunk(7, 0, True)
    )
    beat = Heartbeat("cluster", Instance("uuid", 3), Registration("host", "127.0.0.1:7071"), report)
    reply = HeartbeatReply(4, needs_full_report=True, acknowledged=7)
    taken: list[SendHeartbeat] = []

    def answer(request: SendHeartbeat, caller: object) -> HeartbeatReply:
        taken.append(request)
        return reply

    with (
        RpcServer(HEARTBEAT_METHODS, {SendHeartbeat: answer}) as server,
        Channel(HEARTBEAT_METHODS, server.address) as channel,
    ):
        assert channel.call(SendHeartbeat(beat), timeout_seconds=5) == reply
    assert taken == [SendHeartbeat(beat)]


def test_requests_pass_the_wire_unchanged() -> None:
    update = UpdateTablet("t", "a", 1, "leader", (Replica("leader", "a"),), is_stopped=False)
    sent = SendRequests(Requests(2, "server", (update, DeleteTablet("u", "b"))))
    taken: list[SendRequests] = []

    def take(request: SendRequests, caller: object) -> None:
        taken.append(request)

    with (
        RpcServer(REQUEST_METHODS, {SendRequests: take}) as server,
        Channel(REQUEST_METHODS, server.address) as channel,
    ):
        channel.call(sent, timeout_seconds=5)
    assert taken == [sent]
