"""Tablets on the command line: listed, split, joined, and refused with a reason."""

from __future__ import annotations

import json

from tests.cli.conftest import Cli


def filled(cli: Cli) -> None:
    assert cli("create", "t", "--key", "k:string", "--key", "d:date32", "--column", "n:int64").code == 0
    rows = "".join(json.dumps({"k": f"{n:03}", "d": "2026-01-01", "n": n}) + "\n" for n in range(100))
    assert cli("put", "t", "--file", "-", stdin=rows.encode()).code == 0


def bounds(cli: Cli) -> list[object]:
    return [tablet["first"] for tablet in json.loads(cli("tablets", "t", "--json").out)]


def test_tablets_are_listed_split_and_joined(cli: Cli) -> None:
    filled(cli)
    assert bounds(cli) == [None]
    assert cli("split", "t", "050").out.startswith("split t: ")
    assert cli("split", "t", '["070", "2026-01-01"]').code == 0
    assert bounds(cli) == [None, "050", ["070", "2026-01-01"]]
    shown = cli("tablets", "t")
    assert "3 tablet(s)" in shown.out
    assert "running" in shown.out
    assert "life" not in shown.out  # it would be this process's, which has loaded nothing
    assert [tablet["rows"] for tablet in json.loads(cli("tablets", "t", "--json").out)] == [50, 20, 30]
    assert "about" not in shown.out
    assert cli("put", "t", '{"k": "003", "d": "2026-01-01", "n": 0}').code == 0
    assert "about 51" in cli("tablets", "t").out
    assert cli("join", "t", "000", "060").out.startswith("joined t: ")
    assert bounds(cli) == [None, ["070", "2026-01-01"]]
    assert cli("split", "t").code == 0
    assert len(bounds(cli)) == 3


def test_what_cannot_be_is_refused_with_a_reason(cli: Cli) -> None:
    filled(cli)
    cli("split", "t", "050")
    for command, words in [
        (("split", "t", "050"), "begins at"),
        (("join", "t", "060", "010"), "not neighbours"),
        (("tablets", "nothing"), "no table"),
        (("split", "t", "[1"), "JSON"),
    ]:
        done = cli(*command)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
