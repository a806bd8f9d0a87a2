"""`ebla changes`: what was inserted, updated and erased, as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


def test_changes_are_printed_as_json_lines(cli: Cli) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    since = cli.fine("put", "users", *(json.dumps({"user": u, "name": u}) for u in ("ada", "bob", "cy"))).out.split()[
        -1
    ]
    cli.fine("put", "users", json.dumps({"user": "ada", "name": "Ada"}), json.dumps({"user": "dan", "name": None}))
    cli.fine("erase", "users", "bob")
    # A bar that is drawn on standard error keeps no row from standard output.
    printed = cli("changes", "users", "--since", since, "--before", "--progress")
    assert "comparing" in printed.err
    rows = {row["user"]: row for row in printed.rows}
    assert rows == {
        "ada": {"user": "ada", "name": "Ada", "_change": "update", "_before": {"name": "ada"}},
        "bob": {"user": "bob", "name": None, "_change": "erase", "_before": {"name": "bob"}},
        "dan": {"user": "dan", "name": None, "_change": "insert", "_before": None},
    }
    assert "--since 'yesterday' is neither" in cli.fails(ExitCode.REQUEST, "changes", "users", "--since", "yesterday")
    assert "--until 'later'" in cli.fails(ExitCode.REQUEST, "changes", "users", "--since", since, "--until", "later")
    assert "give one of them" in cli.fails(ExitCode.REQUEST, "changes", "users", "--since", "now")


@pytest.mark.parametrize("where", ["--no-spark", pytest.param("--spark", marks=pytest.mark.soak)])
def test_each_call_goes_on_where_the_one_before_ended(
    cli: Cli, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    if where == "--spark":
        request.getfixturevalue("spark")
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    cli.fine("put", "users", *(json.dumps({"user": u, "name": u}) for u in ("ada", "bob")))
    seen = ("--checkpoint", str(tmp_path / "seen"))
    assert "no checkpoint yet" in cli.fails(ExitCode.REQUEST, "changes", "users", where, *seen)
    first = cli.fine("changes", "users", where, "--since", "snapshot", *seen).rows
    assert sorted(row["user"] for row in first) == ["ada", "bob"]
    cli.fine("erase", "users", "bob")
    assert cli.fine("changes", "users", *seen).rows == [{"user": "bob", "name": None, "_change": "erase"}]
    assert cli.fine("changes", "users", *seen).rows == []
    elsewhere = "--spark" if where == "--no-spark" else "--no-spark"
    assert "another checkpoint" in cli.fails(ExitCode.REQUEST, "changes", "users", elsewhere, *seen)
    assert "since when" in cli.fails(ExitCode.REQUEST, "changes", "users")
    assert "--until" in cli.fails(ExitCode.REQUEST, "changes", "users", "--until", "5", "--follow")
    cli.fails(ExitCode.REQUEST, "changes", "users", where, "--since", "yesterday", "--follow")


def test_changes_since_a_snapshot_by_its_name(cli: Cli) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "seen:timestamp[us, tz=UTC]")
    cli.fine("put", "users", json.dumps({"user": "ada", "seen": None}))
    cli.fine("snapshots", "--take", "monday")
    bob = {"user": "bob", "seen": "2026-01-31T12:00:00.123456Z"}  # to the microsecond, as `scan` prints it
    cli.fine("put", "users", json.dumps(bob))
    assert cli.fine("changes", "users", "--since", "monday").rows == [{**bob, "_change": "insert"}]
    assert cli.scan("users", "--prefix", "bob") == [bob]
