"""`ebla inspect`: what it says, and by which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebla.cli.failures import ExitCode
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("spark")


def test_a_store_is_inspected_and_a_lost_file_is_named(cli: Cli) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    cli.fine("put", "users", json.dumps({"user": "ada", "name": "Ada"}))
    cli.fine("flush", "users")
    assert cli.fine("inspect").out.startswith("0 finding(s) in 1 file(s) of ")
    (file,) = Path().rglob("fragments/*/*.parquet")
    file.unlink()
    told = cli("inspect", "users", "--json")
    assert told.code == ExitCode.STORE
    (finding,) = json.loads(told.out)["findings"]
    assert (finding["table"], finding["kind"]) == ("users", "missing")
    assert finding["file"] in finding["repair"]
    cli.fails(ExitCode.REQUEST, "inspect", "nothing")
