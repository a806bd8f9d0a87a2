"""The commands that run on Spark look at what can be wrong before they start it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import ebla.pipeline
from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli

COMMANDS = (
    "export TABLE out",
    "changes TABLE --since 1",
    "changes TABLE --since snapshot --follow",
    "verify --full --spark TABLE",
    "compact TABLE --spark",
    "histogram TABLE",
    "presplit TABLE --tablets 2",
    "backup backups TABLE",
    "mirror TABLE reflection --checkpoint seen",
)


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> NoReturn:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(ebla.pipeline, "session", start)


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize("command", [*COMMANDS, "gc --spark", "restore . TABLE"])
def test_a_store_that_is_not_there_is_told_before_spark_starts(cli: Cli, command: str) -> None:
    assert "there is no store at" in cli.fails(ExitCode.STORE, *command.split())


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_that_is_not_there_is_told_before_spark_starts(cli: Cli, command: str) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    told = cli.fails(ExitCode.REQUEST, *command.replace("TABLE", "nobody").split())
    assert "there is no table 'nobody': the store has users; `ebla tables`" in told
    told = cli.fails(ExitCode.REQUEST, *command.replace("TABLE", "sys.tables").split())
    assert "`ebla scan sys.tables` shows it" in told


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize("command", ["presplit users --tablets 2", "replay"])
def test_a_store_that_must_not_be_open_elsewhere_is_told_before_spark_starts(cli: Cli, command: str) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    # By another process: what this one has open, it may go on with.
    code = "import ebla, sys; db = ebla.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, cli.store], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process as owner:
        assert owner.stdout.readline() == b"open\n"
        assert "has the store open" in cli.fails(ExitCode.UNAVAILABLE, *command.split())


@pytest.mark.soak
@pytest.mark.usefixtures("spark")
def test_every_command_on_spark_shows_how_far_it_is(cli: Cli) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    for user in ("ada", "emmy", "kurt"):
        cli.fine("put", "users", f'{{"user": "{user}", "name": "x"}}')
        cli.fine("flush", "users")
    for command, phase in {
        "changes users --since 0": "comparing",
        "changes users --since snapshot --checkpoint printed": "3 rows",
        "verify --full --spark": "verifying",
        "compact users --spark": "committing",
        "gc --spark": "comparing",
        "histogram users": "looking",
        "presplit users --tablets 2": "looking",
        "backup backups users --spark": "counting",
        "backups backups --check last --spark": "counting",
        "restore backups again --of users --spark": "checking",
        "export users out --spark": "writing",
        "mirror users reflection --checkpoint seen": "3 rows",
        "replay": "replay",
    }.items():
        done = cli(*command.split(), "--progress")
        assert done.code == 0
        assert phase in done.err, command
        assert "starting Spark" not in done.out
        assert "ada" in done.out or not command.startswith("changes"), "what is printed is not for the bar"


@pytest.mark.usefixtures("unstarted")
def test_a_table_that_is_there_already_or_has_another_key_is_told_before_spark_starts(cli: Cli) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    Path("more.csv").write_text("user,name\n")
    assert "the key of 'users' is user, not name" in cli.fails(
        ExitCode.REQUEST, "load", "users", "more.csv", "--key", "name"
    )
    assert "there is a table 'users' already" in cli.fails(ExitCode.REQUEST, "restore", ".", "users")
    assert "there is no table 'nobody' to be replaced" in cli.fails(
        ExitCode.REQUEST, "restore", ".", "nobody", "--in-place"
    )


def test_a_database_tells_of_a_table_that_is_not_there_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ebla.pipeline, "scan", None)
    with ebla.open(tmp_path) as db, pytest.raises(ebla.UnknownTable):
        db.spark("nobody")
