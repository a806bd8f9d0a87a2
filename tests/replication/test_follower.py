"""A follower takes what its leader has, however both logs are cut into groups."""

from __future__ import annotations

import pytest

from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication.configuration import Configuration, Position
from ebla.replication.messages import Entry, Push
from ebla.replication.replica import TabletReplica
from ebla.replication.server_log import Replayed
from ebla.replication.settings import ReplicationSettings
from ebla.tablet_server.replicas.live_host import LiveHost

FLUSHED = Position(2, 10)
Group = tuple[int, int, int]  # epoch, first and last index


def entry(group: Group) -> Entry:
    epoch, first, last = group
    return Entry(epoch, last, last * 10, "write", index_min=first)


def follower(*groups: Group) -> TabletReplica:
    """Return a replica that follows in epoch 9, and has these groups behind index 10."""
    host = LiveHost("b", 1, "log-b", lambda: True, ReplicationSettings())
    replayed = Replayed(8)
    for group in groups:
        replayed.take(entry(group))
    replica = TabletReplica(host, ("t/t0", "as-b"), replayed)
    replicas = (Replica("a", "as-a", "log-a", True), Replica("b", "as-b", "log-b", True))
    replica.learn(Configuration("t/t0", b"", b"", 9, 1, "a", 1, replicas, 2, 2, 0, FLUSHED))
    return replica


@pytest.mark.parametrize(
    "had",
    [
        [(3, 11, 11), (4, 12, 12), (5, 13, 13)],  # ends within the group that is pushed
        [(3, 11, 12), (4, 13, 16)],  # a group reaches beyond it
        [(3, 11, 18)],
        [(3, 9, 13)],  # the flushed point is within it
        [],
    ],
)
@pytest.mark.parametrize("pushed", [[(7, 11, 14), (9, 15, 15)], [(7, 8, 14), (9, 15, 15)]])
def test_what_the_leader_does_not_have_gives_way_to_what_it_has(had: list[Group], pushed: list[Group]) -> None:
    replica = follower(*had)
    entries = tuple(entry(group) for group in pushed)
    replica.follower.push("a", Push("t/t0", "as-b", 9, 0, FLUSHED, entries, 10, 0, -1.0))
    assert replica.log.entries == [*entries]
    assert replica.follower.matched == 15
    assert replica.durable == 10  # nothing of it is on disk yet
