"""verify and repair on the command line, of a store that lost a part of its log."""

from __future__ import annotations

import re
from pathlib import Path

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


def test_what_a_lost_log_costs_is_told_before_it_is_given_up(cli: Cli) -> None:
    cli.fine("create", "t", "--key", "k:int64", "--column", "v:int64")
    cli.fine("put", "t", '{"k": 1, "v": 1}')
    cli.fine("put", "t", '{"k": 2, "v": 2}')
    (segment,) = Path(cli.store).glob("log/*/*.log")
    data = segment.read_bytes()
    segment.write_bytes(data[: data.rindex(b"\xebLE\x01")])

    told = cli.fails(ExitCode.STORE, "scan", "t")
    assert f"{segment.name} at offset" in told
    assert "--accept-lost-log" in told
    found = cli("verify")
    assert found.code == ExitCode.STORE
    assert "bytes are on record as synced: restore it from a copy" in found.out
    found = cli("repair", "--apply")
    assert found.code == ExitCode.STORE
    assert "nothing was changed" in found.out
    shown = cli.fine("repair", "--accept-lost-log").out
    assert re.search(r"log: \d+ bytes at the end of log/.* are lost: all that was committed after txn \d+ \(20", shown)
    assert "-> go on without it" in shown
    assert "nothing was changed" in shown
    cli.fails(ExitCode.STORE, "scan", "t")
    assert "repaired" in cli.fine("repair", "--apply", "--accept-lost-log").out
    assert cli.scan("t") == [{"k": 1, "v": 1}]
    cli.fine("put", "t", '{"k": 3, "v": 3}')
    assert [row["k"] for row in cli.scan("t")] == [1, 3]
    cli.fine("verify")
