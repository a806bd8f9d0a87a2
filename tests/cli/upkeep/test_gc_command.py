"""`ebla gc`: in this process and on Spark."""

from __future__ import annotations

import json

import pytest

import ebla
from tests.cli.conftest import Cli


def made(cli: Cli) -> None:
    cli.fine("create", "t", "--key", "k:int64", "--column", "n:int64")
    for n in range(3):
        cli.fine("put", "t", f'{{"k": {n}, "n": 1}}')
        cli.fine("flush", "t")


def test_gc_only_looks_unless_it_is_told_to_delete(cli: Cli) -> None:
    made(cli)
    cli.fine("compact", "t")
    assert "gc: looking" in cli("gc", "--progress").err
    looked = json.loads(cli.fine("gc", "--json").out)
    assert (looked["files"], looked["named"], looked["candidates"], looked["removed"]) == (4, 1, 3, [])
    assert json.loads(cli.fine("gc", "--delete", "--json").out)["removed"] == [], "they have not been unused for long"
    assert "two rounds of `ebla gc --delete`, 900 s apart" in cli.fine("gc").out
    told = cli.fine("verify").out.splitlines()
    assert told[0].startswith("orphan: 3 file(s) that no table names")
    assert told[1:] == ["1 table(s), 1 file(s), 0 finding(s)"]
    assert len(json.loads(cli.fine("verify", "--json").out)["findings"]) == 3


@pytest.mark.usefixtures("spark")
def test_gc_on_spark_works_beside_a_process_that_writes(cli: Cli) -> None:
    made(cli)
    with ebla.open(cli.store, settings=ebla.Settings(garbage_age_seconds=0.0, background_compaction=False)) as db:
        db.table("t").compact()
        assert db.gc(dry_run=False).candidates == 3
        assert len(json.loads(cli.fine("gc", "--spark", "--delete", "--json").out)["removed"]) == 3
        assert db.table("t").scan().count() == 3
