"""A cluster of real processes that wants tokens and speaks TLS: up, used, looked at, and up again as it was."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from ebla.errors import Denied, TlsError
from ebla.local_cluster.cluster_file import ClusterFile, read_cluster
from tests.local_cluster.test_local_cluster import command

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "string"})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("secured") / "cluster"
    command("up", "--data", str(directory), "--servers", "2", "--tls", "--auth")
    with ebla.connect(directory) as db:
        db.create_table("t", SCHEMA).put([{"k": k, "v": str(k)} for k in range(100)])
    yield directory
    command("down", "--data", str(directory))


def test_the_file_of_the_cluster_tells_the_authority_and_connect_goes_by_it(directory: Path) -> None:
    file: ClusterFile = read_cluster(directory)
    assert file.tls_ca == str(directory / "certs" / "ca.pem")
    token = (directory / "admin.token").read_text().strip()
    with ebla.connect(directory) as db, ebla.connect(file.address, token=token, tls_ca=file.tls_ca) as other:
        assert db.table("t").count() == other.table("t").count() == 100


def test_nobody_gets_in_without_tls_or_without_a_token(directory: Path) -> None:
    file = read_cluster(directory)
    with pytest.raises(TlsError):
        ebla.connect(file.masters)
    with pytest.raises(Denied):
        ebla.connect(file.masters, tls_ca=file.tls_ca)


def test_status_is_told_of_a_cluster_with_tls(directory: Path) -> None:
    told = json.loads(command("--store", str(directory), "status", "--json"))
    assert told["problems"] == []
    assert len(told["servers"]) == 2


def test_every_process_tells_its_metrics_where_the_file_of_the_cluster_says(directory: Path) -> None:
    for process in read_cluster(directory).processes:
        with urllib.request.urlopen(f"http://{process.metrics}/metrics", timeout=20) as reply:
            assert f'uuid="{process.uuid}"' in reply.read().decode()


def test_certificates_are_shown_with_the_processes_that_they_are_of(directory: Path) -> None:
    told = {row["name"]: row for row in json.loads(command("certs", "show", str(directory / "certs"), "--json"))}
    uuids = {Path(process.data).name: process.uuid for process in read_cluster(directory).processes}
    assert {name: row["of"] for name, row in told.items() if name != "ca"} == uuids
    assert all(row["days"] > 300 for row in told.values())


def test_the_next_up_has_tls_without_being_told(directory: Path) -> None:
    command("down", "--data", str(directory))
    command("certs", "renew", str(directory / "certs"), "--name", "server-1")
    command("up", "--data", str(directory))
    assert read_cluster(directory).tls_ca is not None
    with ebla.connect(directory) as db:
        assert db.table("t").get(7) == {"k": 7, "v": "7"}


def test_top_shows_the_processes_of_the_cluster(directory: Path) -> None:
    told = json.loads(command("top", "--data", str(directory), "--once", "--seconds", "0.1", "--json"))
    assert {row["uuid"] for row in told["processes"]} == {
        process.uuid[:8] for process in read_cluster(directory).processes
    }
    assert [row["table"] for row in told["tables"]] == ["t"]
