"""`ebla export`: what it writes, says and refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli

# Commands that need Spark find the session of all tests, and start none that would be in the way of others.
pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def users(cli: Cli) -> Cli:
    cli.fine("create", "users", "--key", "user:string", "--key", "n:int32", "--column", "name:string")
    rows = [json.dumps({"user": user, "n": n, "name": f"{user}{n}"}) for user in ("ada", "bob") for n in range(3)]
    cli.fine("put", "users", *rows)
    return cli


def test_a_part_of_a_table_is_exported_as_csv(users: Cli) -> None:
    told = users.fine("export", "users", "out", "--format", "csv", "--start", '["ada", 1]', "--stop", '["bob", 1]')
    assert told.out.startswith(f"exported 3 row(s) of users to {Path('out').resolve()} in ")
    texts = [file.read_text() for file in Path("out").glob("part-*.csv")]
    rows = [row for text in texts for row in csv.DictReader(text.splitlines())]
    assert sorted(row["name"] for row in rows) == ["ada1", "ada2", "bob0"]


def test_only_rows_that_pass_a_filter_are_exported(users: Cli) -> None:
    told = users.fine("export", "users", "out", "--format", "json", "--where", "name = 'bob2'")
    assert told.out.startswith("exported 1 row(s) of users")
    (line,) = [line for file in Path("out").glob("part-*.json") for line in file.read_text().splitlines()]
    assert json.loads(line) == {"user": "bob", "n": 2, "name": "bob2"}
    assert "nobody" in users.fails(ExitCode.REQUEST, "export", "users", "more", "--where", "nobody = 1")


def test_the_summary_can_be_json_and_the_past_can_be_exported(users: Cli) -> None:
    txn = int(users.fine("erase", "users", "ada", "0").out.split()[-1])
    users.fine("snapshots", "--take", "erased")
    before = users.fine("export", "users", "before", "--as-of", str(txn - 1), "--prefix", "ada", "--json")
    after = users.fine(
        "export", "users", "after", "--as-of", "erased", "--columns", "name", "--prefix", "ada", "--json"
    )
    summaries = [json.loads(done.out) for done in (before, after)]
    assert [(one["rows"], one["format"], one["table"]) for one in summaries] == [
        (3, "parquet", "users"),
        (2, "parquet", "users"),
    ]
    manifest = json.loads((Path("before") / "_ebla_export.json").read_text())
    assert manifest["txn"] == summaries[0]["txn"] <= txn - 1


def test_progress_is_drawn_when_asked_for(users: Cli) -> None:
    done = users("export", "users", "out", "--progress")
    assert done.code == 0
    assert "export users: " in done.err
    assert "exported 6 row(s)" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nobody", "out"), ExitCode.REQUEST, "there is no table 'nobody'"),
        (("users", "mine"), ExitCode.REQUEST, "mine is not empty"),
        (("users", "mine", "--overwrite"), ExitCode.REQUEST, "holds something else than an export"),
        (("users", "store/out"), ExitCode.REQUEST, "export to another place"),
        (("users", "out", "--as-of", "soon"), ExitCode.REQUEST, "--as-of 'soon' is neither"),
        (("users", "out", "--start", '["ada", "x"]'), ExitCode.REQUEST, "'x' is not int32"),
        (("users", "out", "--columns", "no"), ExitCode.REQUEST, "no column 'no'"),
        (("users", "out", "--store", "nowhere"), ExitCode.STORE, "there is no store at nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(users: Cli, arguments: tuple[str, ...], code: ExitCode, said: str) -> None:
    Path("mine").mkdir()
    (Path("mine") / "letter.txt").write_text("dear")
    assert said in users.fails(code, "export", *arguments)
    assert not Path("out").exists()
