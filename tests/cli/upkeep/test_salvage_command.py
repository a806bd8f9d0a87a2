"""`ebla salvage`: what it says, and by which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


@pytest.fixture
def users(cli: Cli) -> Cli:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    for name in ("Ada", "Emmy"):
        cli.fine("put", "users", json.dumps({"user": "ada", "name": name}))
        cli.fine("flush", "users")
    return cli


def test_a_lost_file_is_found_told_and_given_up_when_the_loss_is_accepted(users: Cli) -> None:
    assert users.fine("salvage").out == "no file is damaged\n"
    newer = max(Path("store").glob("fragments/*/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newer.unlink()
    file = newer.relative_to("store").as_posix()
    for found in (users("salvage"), users("salvage", file), users("salvage", str(newer.absolute()))):
        assert found.code == ExitCode.STORE
        problem, loss, end = found.out.splitlines()
        assert problem == f"{file}: the file is not there"
        assert loss.startswith("  would lose users, tablet ")
        assert "about 1 record(s) of keys from 'ada' to 'ada', txns " in loss
        assert loss.endswith("older versions become visible again: about 1 record(s) of these keys in 1 file(s)")
        assert end.endswith(f"nothing was changed: `ebla salvage {file} --accept-loss` does it")
    assert users("scan", "users").code == ExitCode.STORE
    done = users("salvage", file, "--accept-loss")
    assert done.code == 0
    _, lost, kept = done.out.splitlines()
    assert lost.startswith("  lost users, tablet ")
    assert kept == "  0 of 1 record(s) kept"
    assert "WARNING ebla.client.embedded.salvaging: gave up" in done.err  # for the record
    assert users.scan("users") == [{"user": "ada", "name": "Ada"}]
    users.fine("verify", "--full")
    assert users.fine("salvage", "--json").out == "[]\n"


def test_what_cannot_be_given_up_is_refused(users: Cli) -> None:
    file = next(Path("store").glob("fragments/*/*.parquet")).relative_to("store").as_posix()
    assert "is whole" in users.fails(ExitCode.REQUEST, "salvage", file, "--accept-loss")
    assert "no table refers to nothing" in users.fails(ExitCode.REQUEST, "salvage", "nothing")
    assert "--accept-loss is for one file" in users.fails(ExitCode.REQUEST, "salvage", "--accept-loss")
    users.fails(ExitCode.STORE, "salvage", "--store", "nowhere")
