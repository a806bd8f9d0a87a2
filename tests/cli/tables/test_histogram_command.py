"""`ebla histogram` and `ebla presplit`: shown to people, told to scripts, refused where it is nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ebla
from ebla.cli.shared.command_failures import ExitCode
from ebla.cli.tables.histogram_command import size_of
from ebla.client.embedded.opening import open_alone
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("spark")


def filled(cli: Cli) -> None:
    with ebla.open(cli.store) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        table.put([{"k": f"{n:03}", "n": n} for n in range(300)])
        db.create_table("empty", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))


def test_a_histogram_is_shown_and_a_table_cut_by_it(cli: Cli) -> None:
    filled(cli)
    shown = cli.fine("histogram", "t", "--buckets", "3", "--tablets", "2").out
    assert "300 record(s)" in shown
    assert "2 more cut" not in shown
    assert '1 more cut(s) suggested: "150"' in shown
    told = json.loads(cli.fine("histogram", "t", "--buckets", "3", "--json").out)
    assert [bucket["records"] for bucket in told["buckets"]] == [100, 100, 100]
    assert '"100" "200"' in cli.fine("presplit", "t", "--tablets", "3", "--dry-run").out
    assert len(json.loads(cli.fine("tablets", "t", "--json").out)) == 1
    done = json.loads(cli.fine("presplit", "t", "--tablets", "3", "--json").out)
    assert (done["splits"], done["tablets"]) == (["100", "200"], 3)
    assert len(json.loads(cli.fine("tablets", "t", "--json").out)) == 3
    assert "stays as it is, in 3 tablet(s): it has more" in cli.fine("presplit", "t", "--tablets", "2").out
    assert "it has as many as asked for" in cli.fine("presplit", "t", "--tablets", "3").out


def test_an_empty_table_is_cut_by_files(cli: Cli, tmp_path: Path) -> None:
    filled(cli)
    lines = "".join(f"{n:03},{n}\n" for n in range(300))
    (tmp_path / "more.csv").write_text(f"k,n\n{lines}")
    assert "--from FILE" in cli.fine("presplit", "empty", "--tablets", "3").out
    assert "into 3 tablet(s), from 1" in cli.fine("presplit", "empty", "--tablets", "3", "--from", "more.csv").out
    assert "no table" in cli.fails(ExitCode.REQUEST, "presplit", "none", "--tablets", "3", "--from", "more.csv")
    cli.fails(ExitCode.REQUEST, "presplit", "empty", "--tablets", "3", "--from", "nothing.csv")


def test_nonsense_is_refused(cli: Cli) -> None:
    filled(cli)
    for wrong in ((), ("--tablets", "0"), ("--bytes", "much"), ("--bytes", "0"), ("--tablets", "2", "--bytes", "1MiB")):
        cli.fails(ExitCode.REQUEST, "presplit", "t", *wrong)
    cli.fails(ExitCode.REQUEST, "histogram", "t", "--buckets", "0")
    assert "no table 'nothing'" in cli.fails(ExitCode.REQUEST, "histogram", "nothing")
    with open_alone(cli.store):
        cli.fails(ExitCode.UNAVAILABLE, "presplit", "t", "--tablets", "2")


def test_sizes_are_read_as_people_write_them() -> None:
    assert [size_of(text) for text in (None, "100", "64MiB", "2 gib", "1KiB")] == [None, 100, 64 << 20, 2 << 30, 1024]
    for text in ("", "MiB", "-1", "1.5GiB", "1MB"):
        with pytest.raises(ebla.RequestError):
            size_of(text)
