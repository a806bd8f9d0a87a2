"""`ebla load`: files into tables by a command, with a summary, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ebla
from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli

# Commands that need Spark find the session of all tests, and start none that would be in the way of others.
pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "users.csv").write_text("user,day,age\nada,2026-01-31,36\nbob,2026-01-31,\nada,2026-01-31,37\n")
    (tmp_path / "bad.csv").write_text("user,day,age\nzoe,2026-01-31,many\n,2026-01-31,1\neve,2026-01-31,5\n")
    return tmp_path


@pytest.fixture
def store(cli: Cli) -> None:
    cli.fine("create", "other", "--key", "k:string", "--column", "n:int32")


def test_a_file_becomes_a_table_and_later_ones_change_it(cli: Cli, store: None, files: Path) -> None:
    told = cli.fine("load", "users", "users.csv", "--key", "user", "--key", "day").out
    assert told.startswith("loaded 3 row(s) into the new table users in ")
    assert "1 row(s) gave way to later ones of the same key" in told
    assert cli.scan("users") == [
        {"user": "ada", "day": "2026-01-31", "age": 37},
        {"user": "bob", "day": "2026-01-31", "age": None},
    ]
    told = cli.fine("load", "users", "bad.csv", "--rejects", "rejects", "--job", "second").out
    assert "2 row(s) rejected, in " in told
    (rejects,) = (files / "rejects").iterdir()
    assert len(rejects.read_text().splitlines()) == 2
    assert len(cli.scan("users")) == 3
    again = cli.fine("load", "users", "bad.csv", "--rejects", "rejects", "--job", "second").out
    assert again.startswith("job second was loaded before")


def test_the_summary_can_be_json_and_rows_are_replaced_or_overwritten(cli: Cli, store: None, files: Path) -> None:
    cli.fine("load", "users", "users.csv", "--key", "user")
    (files / "one.json").write_text('{"user": "ada"}\n')
    said = json.loads(cli.fine("load", "users", "one.json", "--mode", "overwrite", "--json").out)
    assert (said["rows"], said["repeated"], said["table"]) == (1, False, "users")
    assert cli.scan("users") == [{"user": "ada", "day": None, "age": None}]


def test_errors_are_one_line_with_the_next_step(cli: Cli, store: None, files: Path) -> None:
    assert "there is no file nowhere.csv" in cli.fails(
        ExitCode.REQUEST, "load", "users", "nowhere.csv", "--key", "user"
    )
    assert "name its key columns with --key" in cli.fails(ExitCode.REQUEST, "load", "users", "users.csv")
    assert "key column 'id' is missing" in cli.fails(ExitCode.REQUEST, "load", "users", "users.csv", "--key", "id")
    (files / "rows").write_text("")
    assert "give one of csv, json" in cli.fails(ExitCode.REQUEST, "load", "users", "rows", "--key", "user")
    (files / "k.csv").write_text("k,x\n1,1\n")
    assert "no column 'x'" in cli.fails(ExitCode.REQUEST, "load", "other", "k.csv")
    line = cli.fails(ExitCode.REQUEST, "load", "users", "users.csv", "--key", "user", "--on-duplicate", "error")
    assert "1 of 3 rows have the key of another row" in line
    cli.fine("load", "users", "users.csv", "--key", "user")
    assert "2 of 3 rows do not fit" in cli.fails(ExitCode.REQUEST, "load", "users", "bad.csv")


def test_a_store_that_is_not_there_is_not_made(cli: Cli, files: Path) -> None:
    line = cli.fails(ExitCode.STORE, "load", "users", "users.csv", "--key", "user")
    assert "there is no store at" in line
    assert not Path(cli.store).exists()


def test_a_store_that_is_open_elsewhere_is_loaded_through_its_owner(cli: Cli, store: None, files: Path) -> None:
    cli.fine("load", "users", "users.csv", "--key", "user")
    with ebla.open(cli.store) as db:
        assert "loaded 3 row(s)" in cli.fine("load", "users", "users.csv", "--mode", "replace").out
        assert len(list(db.table("users").scan())) == 2
        line = cli.fails(ExitCode.UNAVAILABLE, "load", "fresh", "users.csv", "--key", "user")
        assert "a new table is made by the process that has the store open" in line


def test_progress_goes_to_standard_error(cli: Cli, store: None, files: Path) -> None:
    done = cli("load", "users", "users.csv", "--key", "user", "--progress")
    assert done.code == 0
    assert "load users" in done.err
    assert "load users" not in done.out
