"""`ebla replay`: the log of a store that died, as people and as scripts ask for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ebla
from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli
from tests.pipeline.replaying.replay_world import UNFLUSHED
from tests.support.inside import abandon
from tests.support.logs import flipped, without_reserved

pytestmark = pytest.mark.usefixtures("spark")


def died(store: str) -> list[Path]:
    """Make a store that dies with its log unflushed; return the segments."""
    db = ebla.open(store, settings=UNFLUSHED)
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"text": "string"}))
    for n in range(30):
        table.put({"k": f"{n:02}", "text": "x" * 500})
    abandon(db)
    return sorted(Path(store).glob("log/*/*.log"))


def test_a_log_is_replayed_and_told_of(cli: Cli) -> None:
    last = died(cli.store)[-1]
    without_reserved(last)
    last.write_bytes(last.read_bytes() + b"\xebLE\x01torn")
    told = cli.fine("replay", "--portions", "2").out
    assert "30 record(s) of 1 table(s) into 2 file(s)" in told
    assert "8 byte(s) at its end were half written" in told
    assert len(cli.scan("t")) == 30
    again = json.loads(cli.fine("replay", "--json").out)
    assert (again["tables"], again["records"], again["refused"]) == ([], 0, {})
    assert "nothing to replay" in cli.fine("replay").out


def test_what_cannot_be_replayed_is_told_with_an_exit_code(cli: Cli) -> None:
    assert "there is no store" in cli.fails(ExitCode.STORE, "replay")
    middle = died(cli.store)[1]
    cli.fails(ExitCode.REQUEST, "replay", "--portions", "0")
    middle.write_bytes(flipped(middle.read_bytes(), 700))
    told = cli.fails(ExitCode.STORE, "replay")
    assert f"log/{middle.parent.name}/{middle.name} at offset" in told
    middle.write_bytes(flipped(middle.read_bytes(), 700))
    with ebla.open(cli.store, settings=UNFLUSHED):
        assert "open" in cli.fails(ExitCode.UNAVAILABLE, "replay")
