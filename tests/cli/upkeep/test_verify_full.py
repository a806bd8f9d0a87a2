"""`ebla verify --full`: what it says, and by which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


@pytest.fixture
def users(cli: Cli) -> Cli:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    cli.fine("put", "users", json.dumps({"user": "ada", "name": "Ada"}))
    cli.fine("flush", "users")
    return cli


def test_every_byte_is_read_if_it_is_asked_for(users: Cli) -> None:
    (file,) = Path().rglob("fragments/*/*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:8] + bytes([whole[8] ^ 1]) + whole[9:])
    assert users.fine("verify").out == "1 table(s), 1 file(s), 0 finding(s)\n"  # its end is as it was
    told = users("verify", "--full")
    assert told.code == ExitCode.STORE
    damage, quick, full = told.out.splitlines()
    assert damage.startswith("damaged: users: fragments/")
    assert quick == "1 table(s), 1 file(s), 0 finding(s)"
    assert full.startswith("read 1 file(s) of ")
    assert full.endswith(": 1 finding(s)")
    file.write_bytes(whole)
    assert users.fine("verify", "--full", "users").out.endswith(": 0 finding(s)\n")


def test_a_lost_file_is_told_once(users: Cli) -> None:
    (file,) = Path().rglob("fragments/*/*.parquet")
    file.unlink()
    told = users("verify", "--full", "--json")
    assert told.code == ExitCode.STORE
    found = json.loads(told.out)
    assert found["findings"] == []
    (finding,) = found["full"]["findings"]
    assert (finding["table"], finding["kind"]) == ("users", "missing")
    assert finding["file"] in finding["repair"]


def test_what_only_a_full_look_takes_is_refused_without_it(users: Cli) -> None:
    for more in (["users"], ["--spark"], ["--master", "local[2]"]):
        assert "add --full" in users.fails(ExitCode.REQUEST, "verify", *more)
    users.fails(ExitCode.REQUEST, "verify", "--full", "nothing")


def test_spark_does_it_if_it_is_chosen(users: Cli, spark: object) -> None:
    assert users.fine("verify", "--full", "--spark").out.endswith(": 0 finding(s)\n")
