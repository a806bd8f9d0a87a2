"""A master and a tablet server that show each other certificates, and a client that verifies both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import ebla
import ebla.aio
from ebla.access.credentials import Credentials, server_credentials
from ebla.access.rights import ServersOnly
from ebla.access.tls import Tls
from ebla.access.tokens import Claim, signed
from ebla.clock import SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.errors import Denied, RequestError, TlsError
from ebla.master.calls import HEARTBEAT_METHODS, SendHeartbeat
from ebla.master.messages import Heartbeat, Instance
from ebla.master_server.process import MasterProcess
from ebla.rpc.channel import Channel
from ebla.rpc.methods import Methods
from ebla.service.prometheus import parsed
from ebla.tablet_server.data_directory import DataDirectory
from ebla.tablet_server.process import TabletServerProcess
from tests.access.guarded import requests_of
from tests.access.made_certificates import Made
from tests.access.secured import Secured, secured_cluster


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster


def test_a_new_process_is_who_its_certificate_says(secured: Secured) -> None:
    assert secured.server.uuid == secured.made.unchecked("server").uuid
    assert secured.master.uuid == secured.made.unchecked("master").uuid


def test_rows_are_written_and_read_by_a_client_that_verifies_the_servers(secured: Secured) -> None:
    with ebla.connect(secured.master.address, token=secured.admin, tls_ca=str(secured.ca)) as db:
        db.table("words").put({"word": "b", "n": 2})
        assert db.table("words").get("b") == {"word": "b", "n": 2}


def test_the_client_for_asyncio_verifies_them_too(secured: Secured) -> None:
    async def told() -> list[str]:
        async with ebla.aio.connect(secured.master.address, token=secured.admin, tls_ca=secured.ca) as db:
            return await db.tables()

    assert asyncio.run(told()) == ["words"]


def test_a_client_without_a_token_is_denied_and_one_without_tls_is_told(secured: Secured) -> None:
    with pytest.raises(Denied):
        ebla.connect(secured.master.address, tls_ca=secured.ca)
    with pytest.raises(TlsError, match="speaks TLS"):
        ebla.connect(secured.master.address, token=secured.admin)


def test_tls_that_comes_to_nothing_is_told_at_once_and_not_tried_until_the_time_is_over(
    secured: Secured, tmp_path: Path
) -> None:
    other = Made(tmp_path / "other")
    with pytest.raises(TlsError, match="was not signed by"):
        # The test would not end in time if it were tried again.
        ebla.connect(secured.master.address, tls_ca=other.directory / "ca.pem", timeout_seconds=1e6)


def test_one_master_that_is_not_to_be_trusted_does_not_keep_clients_from_the_others(secured: Secured) -> None:
    from tests.rpc.echo import serve

    with (
        serve(tls=secured.made.expired("expired")) as bad,
        ebla.connect([bad.address, secured.master.address], token=secured.admin, tls_ca=secured.ca) as db,
    ):
        assert db.tables() == ["words"]


def beat(secured: Secured, sender: str, name: str, tls: Tls) -> object:
    credentials = server_credentials(lambda: name, secured.secret, tls=tls)
    with Channel(HEARTBEAT_METHODS, secured.master.address, credentials=credentials) as channel:
        return channel.call(SendHeartbeat(Heartbeat("cluster", Instance(sender, 1))), timeout_seconds=20)


def test_a_heartbeat_is_taken_of_whom_its_token_and_its_certificate_name(secured: Secured) -> None:
    tls = secured.made.process("fine")
    beat(secured, str(tls.uuid), str(tls.uuid), tls)
    for sender, name in (
        (secured.server.uuid, str(tls.uuid)),  # it says that it is another
        (secured.server.uuid, secured.server.uuid),  # it signs for another, too: it may know the secret
        (str(tls.uuid), secured.server.uuid),
    ):
        with pytest.raises(Denied):
            beat(secured, sender, name, tls)


def test_the_secret_of_the_cluster_is_not_enough_to_be_one_of_its_processes(secured: Secured) -> None:
    token = signed(Claim("server", secured.server.uuid, 4e9), secured.secret)
    with pytest.raises(Denied, match="the certificate is not"):
        ebla.connect(secured.master.address, token=token, tls_ca=secured.ca)


def test_a_process_does_not_begin_with_the_certificate_of_another(secured: Secured, tmp_path: Path) -> None:
    coordination, made = MemoryCoordination(secured.nodes, SystemClock()), secured.made
    had = str(uuid4())
    data = DataDirectory(tmp_path / "data", secured.master.cluster, had)
    data.next_start()
    data.release()
    with pytest.raises(RequestError, match=f"is of the process .*{had}: give the one that belongs"):
        TabletServerProcess(coordination, tmp_path / "data", tmp_path / "root", auth=True, tls=made.process("new"))
    alone = MemoryCoordination(MemoryStore(), SystemClock())
    first = MasterProcess(alone, tmp_path / "master", tmp_path / "root", tls=made.process("first"))
    first.close()
    with pytest.raises(RequestError, match=f"is of the process .*{first.uuid}: give the one that belongs"):
        MasterProcess(alone, tmp_path / "master", tmp_path / "root", tls=made.process("second"))


def test_nothing_that_is_for_processes_is_answered_to_who_shows_no_certificate(secured: Secured) -> None:
    samples = requests_of("no table")
    asked = [
        (rpc.address, method)
        for rpc in (secured.master._server, secured.server.server._rpc)
        for method in rpc._methods
        if method.request in rpc._handlers and isinstance(method.needs(samples[method.request])[0], ServersOnly)
    ]
    assert len(asked) > 5
    token = signed(Claim("server", "somebody", 4e9), secured.secret)
    tls = secured.made.client
    let_in = []
    for address, method in asked:
        for shown in (token, secured.admin):
            credentials = Credentials(lambda shown=shown: shown, tls=tls)
            with Channel(Methods([method]), address, credentials=credentials) as channel:
                try:
                    channel.call(samples[method.request], timeout_seconds=20)
                    let_in.append(method.name)
                except Denied:
                    pass
    assert let_in == []


def test_processes_tell_prometheus_of_the_cluster_their_lease_and_their_certificate(secured: Secured) -> None:
    master, server = parsed(secured.master.metrics()), parsed(secured.server.metrics())
    assert master["ebla_master_leading"] == {(): 1}
    assert master["ebla_cluster_tables"][()] >= 1
    assert master["ebla_cluster_tablets"][("state", "running"),] >= 1
    assert master["ebla_cluster_servers"][("alive", "yes"),] >= 1
    assert master["ebla_metadata_transactions_total"][()] >= 1
    assert master["ebla_rpc_seconds_count"][("method", "SendHeartbeat"),] >= 1
    assert 0 < server["ebla_lease_left_seconds"][()] <= 3
    assert server["ebla_tablets_led"][()] >= 1
    assert server["ebla_commits_total"][()] >= 1
    assert ("table", "words") in next(iter(server["ebla_table_tablets"]))
    for found in (master, server):
        assert found["ebla_certificate_expires_timestamp_seconds"][()] > time.time()
