"""Commands whose place is a cluster: each one works on it, or refuses it with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebla.cli.shared.command_failures import ExitCode
from tests.access.made_certificates import Made
from tests.cli.conftest import Cli, Result
from tests.cli.test_help_examples import COMMANDS
from tests.master_server.small_cluster import SmallCluster
from tests.rpc.echo import serve

# Of processes and of files: they have no place, or one of their own.
ELSEWHERE = {
    "up",
    "down",
    "restart",
    "master",
    "tablet-server",
    "user",
    "grant",
    "backups",
    "status",
    "certs",
    "top",
    "recover",
}
REFUSED = {"replay": (), "salvage": (), "repair": (), "gc": ("--spark",)}
# Tried with Spark, in tests/pipeline/test_cluster_jobs.py.
ON_SPARK = {"histogram", "presplit", "mirror"}
TRIED = {
    "create", "tables", "describe", "put", "get", "scan", "erase", "alter", "load", "export", "backup", "restore",
    "changes", "flush", "compact", "tablets", "split", "join", "snapshots", "stats", "verify", "offline", "online",
    "rename", "clone", "drop", "undelete", "move", "gc",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path_factory.mktemp("cluster"), masters=1, servers=2) as made:
        processes = [{"role": "master", "address": master.address} for master in made.masters.values()]
        (made.directory / "cluster.json").write_text(json.dumps({"processes": processes}))
        yield made


class ClusterCli(Cli):
    """Commands on a cluster whose processes are in this one: what they log does not count."""

    def fine(self, *arguments: str, stdin: bytes = b"") -> Result:
        result = self(*arguments, stdin=stdin)
        assert result.code == 0, result
        return result


@pytest.fixture
def cli(cluster: SmallCluster) -> Cli:
    return ClusterCli(next(iter(cluster.masters.values())).address)


def test_of_every_command_it_is_known_what_it_does_with_a_cluster() -> None:
    assert set(COMMANDS) - ELSEWHERE - ON_SPARK - REFUSED.keys() - TRIED == set()


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_done_to_the_files_of_a_store_is_refused_with_a_sentence(cli: Cli, command: str) -> None:
    assert "is a cluster: " in cli.fails(ExitCode.REQUEST, command, *REFUSED[command])


def test_rows_and_tables_of_a_cluster_are_worked_with_by_its_address(cli: Cli, tmp_path: Path) -> None:
    cli.fine("create", "users", "--key", "name:string", "--column", "age:int32")
    cli.fine("put", "users", '{"name": "ada", "age": 36}', '{"name": "kurt", "age": 71}')
    assert json.loads(cli.fine("get", "users", "ada", "--json").out) == {"name": "ada", "age": 36}
    assert [row["name"] for row in cli.fine("scan", "users", "--format", "jsonl").rows] == ["ada", "kurt"]
    assert "users" in cli.fine("tables").out
    cli.fine("describe", "users")
    cli.fine("alter", "users", "--add-column", "city:string")
    cli.fine("split", "users", "k")
    tablets = json.loads(cli.fine("tablets", "users", "--json").out)
    assert len(tablets) == 2
    cli.fine("flush", "users")
    cli.fine("compact", "users")
    (tmp_path / "more.csv").write_text("name,age\nzeno,60\n")
    cli.fine("load", "users", str(tmp_path / "more.csv"), "--no-spark")
    cli.fine("export", "users", str(tmp_path / "out"), "--format", "csv", "--no-spark")
    cli.fine("snapshots", "--take", "monday")
    cli.fine("erase", "users", "kurt")
    changed = cli.fine("changes", "users", "--since", "monday", "--no-spark").rows
    assert [(row["name"], row["_change"]) for row in changed] == [("kurt", "erase")]
    cli.fine("changes", "users", "--since", "now", "--checkpoint", str(tmp_path / "seen"), "--no-spark")
    cli.fine("snapshots", "--release", "monday")
    cli.fine("backup", str(tmp_path / "backups"), "users", "--no-spark")
    cli.fine("restore", str(tmp_path / "backups"), "again", "--of", "users", "--no-spark")
    cli.fine("verify", "--full", "--no-spark")
    cli.fine("offline", "users")
    offline = cli("get", "users", "ada")
    assert offline.code == ExitCode.UNAVAILABLE
    assert "load" in offline.err
    cli.fine("online", "users")
    cli.fine("clone", "users", "trial")
    cli.fine("rename", "again", "twice")
    cli.fine("drop", "twice", "--yes")
    assert "twice" in cli.fine("tables", "--dropped").out
    cli.fine("undelete", "twice")
    cli.fine("join", "users", "ada", "zeno")
    cli.fine("stats")
    cli.fine("gc")


def test_the_directory_that_up_made_is_a_place_as_well(cluster: SmallCluster) -> None:
    assert (
        Cli(str(cluster.directory)).fine("tables").out
        == Cli(str(cluster.directory / "cluster.json")).fine("tables").out
    )


def test_a_cluster_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.client.remote.connecting.TIMEOUT_SECONDS", 1.0)
    assert "127.0.0.1:1" in Cli("127.0.0.1:1").fails(ExitCode.UNAVAILABLE, "tables")


def test_status_by_the_address_of_a_master_is_what_it_knows(cli: Cli) -> None:
    told = json.loads(cli.fine("status", "--json").out)
    assert len(told["servers"]) == 2
    assert told["problems"] == []
    assert "is heard of" in cli.fine("status").out


def test_a_cluster_that_is_not_to_be_trusted_is_told_in_one_line(tmp_path: Path) -> None:
    authority, other = Made(tmp_path / "authority"), Made(tmp_path / "other")
    with serve(tls=authority.process("server")) as server:
        done = subprocess.run(
            [sys.executable, "-m", "ebla", "--store", server.address, "tables"],
            env={**os.environ, "EBLA_TLS_CA": str(other.directory / "ca.pem")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == ExitCode.REQUEST
    (line,) = done.stderr.splitlines()
    assert "is not to be trusted" in line
    assert "EBLA_TLS_CA" in line
