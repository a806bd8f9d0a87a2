"""`ebla compact`: in this process and on Spark."""

from __future__ import annotations

import json

import pytest

import ebla
from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


def made(cli: Cli) -> None:
    cli.fine("create", "t", "--key", "k:string", "--column", "n:int64", "--split", "m")
    for n in range(3):
        cli.fine("put", "t", "--file", "-", stdin="".join(f'{{"k": "{key}", "n": {n}}}\n' for key in "az").encode())
        cli.fine("flush", "t")


def test_compact_merges_files_and_says_so(cli: Cli) -> None:
    made(cli)
    (done,) = json.loads(cli.fine("compact", "t", "--json").out)
    assert (done["table"], done["files_before"], done["files_after"], done["history_files_after"]) == ("t", 3, 4, 2)
    assert cli.fine("compact").out.startswith("compacted t: 4 to 4 file(s), 2 of them history, ")
    cli.fails(ExitCode.REQUEST, "compact", "nothing")
    told = cli("compact", "t", "--progress")
    assert told.code == ExitCode.FINE
    assert "compact t" in told.err


@pytest.mark.usefixtures("spark")
def test_compact_on_spark_works_beside_a_process_that_writes(cli: Cli) -> None:
    made(cli)
    with ebla.open(cli.store) as db:
        (done,) = json.loads(cli.fine("compact", "t", "--spark", "--prefix", "a", "--json").out)
        assert (done["files_read"], done["files_written"], done["tablets"]) == (3, 2, 1)
        assert cli.fine("compact", "--spark").out.startswith("compacted t: 4 to 3 file(s) in 2 tablet(s), ")
        assert [row["n"] for row in db.table("t").scan()] == [2, 2]
        assert cli.fine("compact", "--spark", "--due").out == "nothing is due in t\n"


def test_what_goes_with_spark_alone_is_refused_without_it(cli: Cli) -> None:
    made(cli)
    assert "--spark" in cli.fails(ExitCode.REQUEST, "compact", "t", "--prefix", "a")
    assert "name it" in cli.fails(ExitCode.REQUEST, "compact", "--spark", "--prefix", "a")
