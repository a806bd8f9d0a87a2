"""The commands that keep a store in shape."""

from __future__ import annotations

import json

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


def made(cli: Cli) -> None:
    assert cli("create", "t", "--key", "k:int64", "--column", "n:int64").code == 0
    for n in range(3):
        assert cli("put", "t", f'{{"k": {n}, "n": 1}}').code == 0
        assert cli("flush", "t").code == 0


def test_a_clone_is_a_table_of_its_own(cli: Cli) -> None:
    made(cli)
    assert cli("clone", "t", "u").out == "cloned t as u\n"
    assert cli("drop", "t", "--yes").code == 0
    assert len(cli("scan", "u", "--format", "jsonl").out.splitlines()) == 3
    assert "already" in cli("clone", "u", "u").err
    assert "there is no table" in cli("clone", "t", "v").err


def test_snapshots_are_taken_listed_and_released(cli: Cli) -> None:
    made(cli)
    assert cli("snapshots").out == "no snapshots are held\n"
    assert cli("snapshots", "--take", "monday").out.startswith("holding monday at txn ")
    assert cli("snapshots", "--take", "monday").code == 2
    (held,) = json.loads(cli("snapshots", "--json").out)
    assert held["snapshot"] == "monday"
    assert "monday" in cli("snapshots").out
    assert cli("snapshots", "--release", "tuesday").code == 2
    assert cli("snapshots", "--take", "a", "--release", "b").code == 2
    assert cli("snapshots", "--release", "monday").out == "released monday\n"
    assert cli("snapshots").out == "no snapshots are held\n"


def test_a_table_goes_offline_and_comes_back(cli: Cli) -> None:
    for name in ("a", "b", "c"):
        cli.fine("create", name, "--key", "n:int64", "--column", "v:int64")
        cli.fine("put", name, '{"n": 1, "v": 2}')
    assert cli.fine("offline", "b").out == "b is offline\n"
    for command in (("get", "b", "1"), ("scan", "b"), ("put", "b", '{"n": 2}'), ("compact", "b")):
        told = cli.fails(ExitCode.UNAVAILABLE, *command)
        assert told == "error: the table 'b' is not loaded; `ebla online TABLE` brings it back\n"
    assert cli.fine("online", "b").out == "b is online\n"
    assert cli.scan("b") == [{"n": 1, "v": 2}]
    assert "no table 'd'" in cli.fails(ExitCode.REQUEST, "offline", "d")
    assert "no table 'd'" in cli.fails(ExitCode.REQUEST, "online", "d")


def test_a_table_that_is_offline_does_not_keep_others_from_being_compacted(cli: Cli) -> None:
    for name in ("a", "b", "c"):
        cli.fine("create", name, "--key", "n:int64", "--column", "v:int64")
        cli.fine("put", name, '{"n": 1, "v": 2}')
    cli.fine("offline", "b")
    told = cli.fine("compact").out
    assert "left out b: it is offline, `ebla online b` brings it back" in told
    assert [line.split()[1] for line in told.splitlines() if line.startswith("compacted")] == ["a:", "c:"]
