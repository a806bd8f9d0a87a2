"""The commands that keep a store in shape."""

from __future__ import annotations

import json

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
