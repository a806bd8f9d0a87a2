"""ZooKeeper: lost connections, lost sessions, lost replies, late requests, and a server less."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from ebla.clock import ManualClock, SystemClock
from ebla.coordination.address import ZooKeeperAddress, connect, parse_address
from ebla.coordination.service import (
    Create,
    InvalidNode,
    LeaseHeld,
    LeaseLost,
    NodeExists,
    NodeMissing,
    VersionConflict,
)
from ebla.coordination.zookeeper import ZooKeeperCoordination
from ebla.errors import OutcomeUnknown, Unavailable
from tests.support.proxy import Proxy
from tests.support.zookeeper import Ensemble, ZooKeeperServer, free_ports

PATIENCE_SECONDS = 30


class Bell:
    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, path: str) -> None:
        self.event.set()

    def wait(self) -> None:
        assert self.event.wait(PATIENCE_SECONDS), "the watch did not fire"
        self.event.clear()


Connect = Callable[..., ZooKeeperCoordination]


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Makes clients that are closed after the test; all see the same tree."""
    clients = []
    root = f"/{uuid.uuid4()}"

    def make(address: str, **options: object) -> ZooKeeperCoordination:
        clients.append(ZooKeeperCoordination(address, SystemClock(), root=root, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperServer) -> Iterator[Proxy]:
    proxy = Proxy(zookeeper_server.port)
    yield proxy
    proxy.close()


# --- connections and sessions --------------------------------------------------------------------


def test_after_a_lost_connection_everything_goes_on_and_no_change_is_missed(
    zookeeper_server: ZooKeeperServer, proxy: Proxy, connected: Connect
) -> None:
    cut, other = connected(proxy.address), connected(zookeeper_server.address)
    other.create("tables/a", b"1")
    bell = Bell()
    cut.watch("tables", bell)
    proxy.refusing = True
    proxy.cut()
    other.compare_and_set("tables/a", b"2", 1)  # while nobody listens
    proxy.refusing = False
    bell.wait()
    assert cut.read("tables/a").value == b"2"
    assert cut.compare_and_set("tables/a", b"3", 2) == 3
    bell.wait()
    other.create("tables/b/c", b"")
    bell.wait()


def test_after_a_lost_session_watches_fire_and_fire_again(
    zookeeper_server: ZooKeeperServer, connected: Connect
) -> None:
    lost, other = connected(zookeeper_server.address), connected(zookeeper_server.address)
    bell = Bell()
    lost.watch("a", bell)
    session = lost._client.client_id
    usurper = KazooClient(zookeeper_server.address, client_id=session)
    usurper.start()
    usurper.stop()  # ends the session for both
    usurper.close()
    bell.wait()
    assert lost.create("mine", b"") == 1
    assert lost._client.client_id != session
    bell.event.clear()
    other.create("a/b", b"")
    bell.wait()


def test_a_watch_fires_for_every_one_of_many_nodes_made_at_once(
    zookeeper_server: ZooKeeperServer, connected: Connect
) -> None:
    watching, other = connected(zookeeper_server.address), connected(zookeeper_server.address)
    seen: set[str] = set()
    complete = threading.Event()

    def look(path: str) -> None:
        seen.update(watching.list("many"))
        if len(seen) == 50:
            complete.set()

    watching.watch("many", look)
    for number in range(5):
        other.multi([Create(f"many/{number}{below}", b"") for below in range(10)])
    assert complete.wait(PATIENCE_SECONDS)
    bell = Bell()
    watching.watch("many", bell)
    other.compare_and_set("many/00", b"", 1)
    bell.wait()


def test_without_a_server_nothing_is_sent(proxy: Proxy, connected: Connect) -> None:
    client = connected(proxy.address)
    version = client.create("a", b"")
    client._request_seconds = 0.2
    proxy.refusing = True
    proxy.cut()
    while client._connected.is_set():
        threading.Event().wait(0.005)
    for use in (lambda: client.read("a"), lambda: client.compare_and_set("a", b"2", version), lambda: client.list("")):
        with pytest.raises(Unavailable):
            use()
    proxy.refusing = False
    with pytest.raises(Unavailable, match="no ZooKeeper server answers"):
        ZooKeeperCoordination(f"127.0.0.1:{free_ports(1)[0]}", SystemClock(), connect_seconds=0.2)


# --- unknown outcomes ----------------------------------------------------------------------------


def test_a_lost_reply_is_an_unknown_outcome_that_the_same_request_settles(proxy: Proxy, connected: Connect) -> None:
    client = connected(proxy.address)
    version = client.create("a", b"1")
    proxy.replies.close()
    with pytest.raises(OutcomeUnknown):
        _cut_when_held(proxy, proxy.replies, lambda: client.compare_and_set("a", b"2", version))
    with pytest.raises(VersionConflict):
        client.compare_and_set("a", b"2", version)
    assert client.read("a").value == b"2"


def test_a_lost_request_is_an_unknown_outcome_that_the_same_request_settles(proxy: Proxy, connected: Connect) -> None:
    client = connected(proxy.address)
    version = client.create("a", b"1")
    proxy.requests.close()
    with pytest.raises(OutcomeUnknown):
        _cut_when_held(proxy, proxy.requests, lambda: client.compare_and_set("a", b"2", version))
    assert client.compare_and_set("a", b"2", version) == version + 1


def test_a_request_that_is_late_may_still_land_but_not_once_its_version_is_gone(
    zookeeper_server: ZooKeeperServer, proxy: Proxy, connected: Connect
) -> None:
    client, other = connected(proxy.address), connected(zookeeper_server.address)
    for late in (False, True):
        path = f"late/{late}"
        version = other.create(path, b"1")
        proxy.requests.close()
        client._request_seconds = 0.2
        with pytest.raises(OutcomeUnknown):
            client.compare_and_set(path, b"late", version)
        client._request_seconds = PATIENCE_SECONDS
        if late:
            other.compare_and_set(path, b"2", version)
        proxy.requests.open()
        client.read(path)  # after the late one, in the same connection
        assert other.read(path).value == (b"2" if late else b"late")


def _cut_when_held(proxy: Proxy, gate: Any, request: Callable[[], object]) -> None:
    def cut() -> None:
        assert gate.held.wait(PATIENCE_SECONDS)
        proxy.cut()
        gate.open()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        request()
    finally:
        cutter.join()


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_is_judged_by_the_servers_clock_not_by_that_of_the_taker(zookeeper_server: ZooKeeperServer) -> None:
    root = f"/{uuid.uuid4()}"
    ahead = ManualClock(SystemClock().microseconds() + 3_600_000_000)
    with (
        ZooKeeperCoordination(zookeeper_server.address, SystemClock(), root=root) as one,
        ZooKeeperCoordination(zookeeper_server.address, ahead, root=root) as two,
    ):
        lease = one.lease("master", "one", 60)
        with pytest.raises(LeaseHeld, match="one"):
            two.lease("master", "two", 60)
        lease.renew()
        short = one.lease("master", "one", 0.3)
        stolen = None
        while stolen is None:
            try:
                stolen = two.lease("master", "two", 60)
            except LeaseHeld:
                continue
        assert not short.is_held
        assert stolen.epoch > short.epoch > lease.epoch
        with pytest.raises(LeaseLost):
            short.renew()


def test_a_lease_outlives_a_lost_connection(proxy: Proxy, connected: Connect) -> None:
    client = connected(proxy.address)
    lease = client.lease("master", "one", 60)
    proxy.cut()
    lease.renew()
    assert lease.is_held


# --- an ensemble ---------------------------------------------------------------------------------


def test_an_ensemble_goes_on_without_one_of_three_and_refuses_without_two(tmp_path: Path, connected: Connect) -> None:
    ensemble = Ensemble(tmp_path)
    try:
        ensemble.start()
        clients = [connected(server.address, request_seconds=PATIENCE_SECONDS) for server in ensemble.servers]
        everywhere = connected(ensemble.hosts, request_seconds=PATIENCE_SECONDS)
        version = everywhere.create("counter", b"0")
        # What one wrote, all read at once, whichever server they ask.
        for number in range(1, 10):
            version = everywhere.compare_and_set("counter", str(number).encode(), version)
            assert {client.read("counter").value for client in clients} == {str(number).encode()}
        bell = Bell()
        everywhere.watch("counter", bell)
        lease = everywhere.lease("master", "one", 600)
        killed = ensemble.leader()
        killed.kill()
        acknowledged = 9
        for number in range(10, 16):
            while True:
                try:
                    version = everywhere.compare_and_set("counter", str(number).encode(), version)
                except (OutcomeUnknown, Unavailable):
                    continue
                except VersionConflict:
                    node = everywhere.read("counter")
                    assert node.value == str(number).encode(), "an acknowledged change was lost"
                    version = node.version
                acknowledged = number
                break
        bell.wait()
        assert everywhere.read("counter").value == str(acknowledged).encode()
        lease.renew()
        second = ensemble.leader()
        second.kill()
        (last,) = [c for c, s in zip(clients, ensemble.servers, strict=True) if s not in (killed, second)]
        last._request_seconds = 1
        with pytest.raises((Unavailable, OutcomeUnknown)):
            last.compare_and_set("counter", b"alone", version)
    finally:
        ensemble.stop()


# --- the tree ------------------------------------------------------------------------------------


def test_znodes_are_named_and_filled_as_people_expect(zookeeper_server: ZooKeeperServer, connected: Connect) -> None:
    client = connected(zookeeper_server.address)
    client.create("tables/7f3a", b"value")
    raw = client._client
    assert raw.get(f"{client._root}/tables/7f3a")[0] == b"value"
    assert raw.get(f"{client._root}/tables")[0] == b""


def test_a_directory_is_no_node_until_it_is_created(zookeeper_server: ZooKeeperServer, connected: Connect) -> None:
    client = connected(zookeeper_server.address)
    client.create("a/b/c", b"")
    for expected in (0, 1, -1):
        with pytest.raises(NodeMissing):
            client.compare_and_set("a/b", b"x", expected)
        with pytest.raises(NodeMissing):
            client.delete("a/b", expected)
    assert client.create("a/b", b"now") == 1
    with pytest.raises(NodeExists):
        client.create("a/b", b"again")
    assert client.list("a") == ["a/b"]


def test_a_multi_too_large_for_zookeeper_is_refused_before_it_is_sent(
    zookeeper_server: ZooKeeperServer, connected: Connect
) -> None:
    client = connected(zookeeper_server.address)
    with pytest.raises(InvalidNode, match="divide it"):
        client.multi([Create(f"large/{number}", bytes(500_000)) for number in range(3)])
    assert client.list("large") == []


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hosts", "root"),
    [
        ("zk://one:2181,two:2182/ebla/test", ("one:2181", "two:2182"), "/ebla/test"),
        ("zk://one", ("one:2181",), "/ebla"),
        ("zk://[::1]:2182/", ("[::1]:2182",), "/ebla"),
        ("zk://[::1]/x", ("[::1]:2181",), "/x"),
    ],
)
def test_an_address_names_servers_and_a_root(text: str, hosts: tuple[str, ...], root: str) -> None:
    assert parse_address(text) == ZooKeeperAddress(hosts, root)
    assert parse_address(str(parse_address(text))) == ZooKeeperAddress(hosts, root)


@pytest.mark.parametrize(
    "text",
    ["", "zk://", "zk:///ebla", "zk://one,,two", "one:2181", "http://one/ebla", "zk://one:port/x", "zk://one//x",
     "zk://one/../x", "zk://one/zookeeper/x", "zk://one two/x", None],
)  # fmt: skip
def test_an_address_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidNode):
        parse_address(text)


def test_connecting_to_an_address_reaches_the_same_tree(zookeeper_server: ZooKeeperServer) -> None:
    address = parse_address(f"zk://{zookeeper_server.address}/{uuid.uuid4()}/deep")
    with connect(address, SystemClock()) as one, connect(address, SystemClock(), read_only=True) as two:
        one.create("a", b"1")
        assert two.read("a").value == b"1"


def test_closing_does_not_wait_for_a_server_that_is_gone(proxy: Proxy, connected: Connect) -> None:
    client = connected(proxy.address)
    bell = Bell()
    client.watch("a", bell)
    proxy.refusing = True
    proxy.cut()
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
