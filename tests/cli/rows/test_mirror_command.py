"""`ebla mirror`: a table that is made like another one, and kept so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.soak
def test_a_mirror_is_made_and_brought_up_to_date(cli: Cli, tmp_path: Path) -> None:
    other = Cli(str(tmp_path / "other"))
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string", "--group", "e:families=seen")
    cli.fine("put", "users", *(json.dumps({"user": u, "name": u, "seen:x": "1"}) for u in ("ada", "bob", "cy")))
    to = ("--to", other.store, "--checkpoint", str(tmp_path / "checkpoint"))
    assert "3 rows in 2 batches" in cli.fine("mirror", "users", *to, "--max-rows", "2").out
    assert other.fine("scan", "users", "--format", "jsonl").rows == cli.fine("scan", "users", "--format", "jsonl").rows
    cli.fine("erase", "users", "bob")
    done = json.loads(cli.fine("mirror", "users", *to, "--json").out)
    assert done == {"table": "users", "mirror": "users", "batches": 1, "rows": 1}
    assert other.fine("scan", "users", "--format", "jsonl").rows == cli.fine("scan", "users", "--format", "jsonl").rows
    again = ("--checkpoint", str(tmp_path / "another"))
    assert "its own mirror" in cli.fails(ExitCode.REQUEST, "mirror", "users", *again)
    assert "no table" in cli.fails(ExitCode.REQUEST, "mirror", "people", "x", *again)
    assert "at least one row" in cli.fails(ExitCode.REQUEST, "mirror", "users", "x", *again, "--max-rows", "0")
