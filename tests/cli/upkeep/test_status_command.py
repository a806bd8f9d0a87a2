"""`ebla status` and `ebla stats --prometheus`, beside a process that has the store open and without one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ebla
from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


def make(cli: Cli) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "age:int32")
    cli.fine("put", "users", '{"user": "ada", "age": 36}')


def test_status_of_a_closed_store(cli: Cli) -> None:
    make(cli)
    told = cli.fine("status").out
    assert "not open for writing" in told
    assert "users" in told
    assert "nothing is known to be wrong" in told
    assert "process" not in told


def test_status_of_a_store_that_is_open_names_the_process(cli: Cli) -> None:
    make(cli)
    with ebla.open(cli.store):
        told = cli.fine("status").out
        assert f"{os.getpid()} on " in told
        assert "open for writing" in told
        found = json.loads(cli.fine("status", "--json").out)
        assert (found["state"], found["owner"]["pid"]) == ("open", os.getpid())
        assert found["owner"]["counters"]["memory_limit_bytes"] > 0
        assert [table["name"] for table in found["tables"]] == ["users"]
        assert "# TYPE ebla_commits_total counter" in cli.fine("stats", "--prometheus").out
    assert "ebla_commits_total" not in cli.fine("stats", "--prometheus").out


def test_status_leaves_with_6_if_something_is_wrong_and_says_what(cli: Cli) -> None:
    make(cli)
    for file in Path(cli.store, "metadata").glob("*/*.meta"):
        file.write_bytes(b"nonsense")
    done = cli("status")
    assert done.code == ExitCode.STORE
    assert "problem: users: " in done.out
    assert "Traceback" not in done.err
    assert json.loads(cli("status", "--json").out)["problems"]


def test_status_of_no_store_is_one_line(cli: Cli) -> None:
    assert "there is no store" in cli.fails(ExitCode.STORE, "status")


def test_prometheus_is_for_the_whole_store(cli: Cli) -> None:
    make(cli)
    assert "leave out TABLE and --json" in cli.fails(ExitCode.REQUEST, "stats", "users", "--prometheus")
