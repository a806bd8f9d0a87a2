"""`ebla backup`, `ebla restore`, `ebla backups`: what they say and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli

# Commands that need Spark find the session of all tests, and start none that would be in the way of others.
pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def users(cli: Cli) -> Cli:
    cli.fine("create", "users", "--key", "user:string", "--column", "name:string")
    cli.fine("put", "users", *(json.dumps({"user": user, "name": user.title()}) for user in ("ada", "bob", "eve")))
    return cli


def test_a_table_is_backed_up_listed_and_restored(users: Cli) -> None:
    users.fine("flush", "users")
    told = users.fine("backup", "there", "users").out
    assert told.startswith("backed up users, 3 row(s) as 2")
    assert "(full)" in told
    users.fine("erase", "users", "bob")
    second = json.loads(users.fine("backup", "there", "--since", "last", "--json").out)
    assert (second["kind"], second["rows"], second["tables"]) == ("incremental", 2, ["users"])
    listed = json.loads(users.fine("backups", "there", "--json").out)
    first = listed["backups"][0]
    assert [one["rows"] for one in listed["backups"]] == [[3], [2]]
    assert listed["backups"][1]["builds_on"] == [first["id"]]
    assert (listed["unfinished"], listed["removed"], listed["problems"]) == ([], [], {})
    assert "2 backup(s)" in users.fine("backups", "there").out

    assert users.fine("restore", "there", "before", "--of", "users", "--at", first["id"][:-3]).out.startswith(
        f"restored before, 3 row(s) from {first['id']} in "
    )
    assert len(users.scan("before")) == 3
    told = users.fails(ExitCode.REQUEST, "restore", "there", "users")
    assert "--in-place" in told
    done = json.loads(users.fine("restore", "there", "users", "--at", first["id"], "--in-place", "--json").out)
    assert (done["in_place"], done["rows"], len(users.scan("users"))) == (True, 3, 3)


def test_a_table_that_lost_a_file_is_told_by_repair_and_comes_back_from_a_backup(users: Cli) -> None:
    users.fine("flush", "users")
    users.fine("backup", "there")
    (file,) = Path("store").glob("fragments/*/*.parquet")
    file.unlink()
    assert f"{file.name} is gone: bring it back; the table is damaged" in users.fails(ExitCode.STORE, "backup", "there")
    told = users("repair", "--apply")
    assert told.code == ExitCode.STORE
    assert "1 finding(s) without a repair" in told.out
    users.fine("restore", "there", "users", "--in-place")
    assert len(users.scan("users")) == 3
    users.fine("verify")


def test_what_is_missing_damaged_or_unfinished_is_told(users: Cli) -> None:
    first = json.loads(users.fine("backup", "there", "--json", "--no-checksum").out)
    assert first["rows"] is None
    unfinished = Path("there") / "20200101T000000000-00000000"
    unfinished.mkdir()
    assert f"{unfinished.name} is not complete" in users.fine("backups", "there").out
    assert f"{unfinished.name} was not complete, and was removed" in users.fine("backups", "there", "--clean").out
    assert not unfinished.exists()
    assert f"{first['id']} is whole: 1 file(s)" in users.fine("backups", "there", "--check", "last").out
    (file,) = (Path("there") / first["id"]).glob("fragments/*/*")
    content = file.read_bytes()
    file.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    assert f"{file.name} is damaged: its SHA-256" in users.fails(
        ExitCode.STORE, "backups", "there", "--check", first["id"]
    )
    file.unlink()
    listed = users("backups", "there")
    assert listed.code == ExitCode.STORE
    assert f"{file.name} is gone" in listed.out
    assert f"{file.name} is gone" in users.fails(ExitCode.STORE, "restore", "there", "copy", "--of", "users")
    told = users.fails(ExitCode.STORE, "backups", "nowhere")
    assert told.rstrip().endswith("give the one that backups were made in")
    assert "one in the other" in users.fails(ExitCode.REQUEST, "backup", "store/backups")
    assert "there is no backup 2 in" in users.fails(ExitCode.REQUEST, "restore", "there", "copy", "--at", "2")
    assert "there is no table 'nobody'" in users.fails(ExitCode.REQUEST, "backup", "there", "nobody")


def test_backups_are_pruned_when_it_is_asked_for_twice(users: Cli) -> None:
    first, second = (json.loads(users.fine("backup", "there", "--json").out)["id"] for _ in range(2))
    told = users.fine("backups", "there", "--prune", "--keep", "1").out
    assert f"would remove {first} (full, " in told
    assert "1 of 2 backup(s) would go, 1 file(s) of " in told
    assert told.endswith("; --delete removes them\n")
    done = json.loads(users.fine("backups", "there", "--prune", "--keep", "1", "--delete", "--json").out)
    assert ([one["id"] for one in done["doomed"]], done["kept"], done["is_applied"]) == ([first], [second], True)
    assert [entry.name for entry in Path("there").iterdir()] == [second]
    users.fine("restore", "there", "again", "--of", "users")
    assert (
        users.fine("backups", "there", "--prune", "--older-than", "1s").out
        == "0 of 1 backup(s) would go, 0 file(s) of 0 bytes\n"
    )


def test_what_prune_cannot_do_is_refused(users: Cli) -> None:
    Path("there").mkdir()
    assert "add --prune" in users.fails(ExitCode.REQUEST, "backups", "there", "--keep", "1")
    assert "add --prune" in users.fails(ExitCode.REQUEST, "backups", "there", "--delete")
    assert "say what stays" in users.fails(ExitCode.REQUEST, "backups", "there", "--prune")
    assert "not older than 'soon'" in users.fails(
        ExitCode.REQUEST, "backups", "there", "--prune", "--older-than", "soon"
    )
    assert "one after the other" in users.fails(
        ExitCode.REQUEST, "backups", "there", "--prune", "--keep", "1", "--clean"
    )
