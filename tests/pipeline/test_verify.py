"""Verifying: a sound table has no findings, and every kind of damage is found, named, and has a repair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

import ebla
from ebla.errors import UnknownTable
from ebla.keys import KeyCodec
from ebla.metadata.table_metadata import FragmentRef
from ebla.pipeline import verify
from ebla.settings import Settings
from ebla.storage.cache import BlockCache
from ebla.storage.files import LocalFiles
from ebla.storage.fragment_reader import Fragment
from ebla.tablet.inspection import inspect
from tests.pipeline.tables import EVERYTHING, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = Settings(background_compaction=False)


def refs_of(db: ebla.Database, name: str = "t") -> list[FragmentRef]:
    tablets = db._store.table(name).view.metadata.tablets
    return [ref for tablet in tablets for state in tablet.groups for ref in state.fragments]


def test_a_sound_store_has_no_findings(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=QUIET) as db:
        fill(db.create_table("t", EVERYTHING, splits=[("u020",)]))
        fill(db.create_table("other", EVERYTHING))
        for name in ("t", "other"):
            db.table(name).flush()
        report = verify(db, spark=spark)
        assert report.findings == ()
        assert sorted(report.tables) == ["other", "t"]
        files = {ref.file for name in report.tables for ref in refs_of(db, name)}
        assert report.files == len(files) > 5
        assert verify(root, ["t"], spark=spark).tables == ("t",)
        with pytest.raises(UnknownTable):
            verify(db, ["nothing"], spark=spark)


def test_damage_is_found_and_names_its_repair(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        for first in range(3):
            table.put([{"k": f"{first}{n:04}", "n": n} for n in range(2_000)])
            table.flush()
        lost, bent, short = sorted(ref.file for ref in refs_of(db))
    path = Path(root)
    (path / lost).unlink()
    raw = bytearray((path / bent).read_bytes())
    raw[len(raw) // 4] ^= 0xFF
    (path / bent).write_bytes(raw)
    (path / short).write_bytes((path / short).read_bytes()[:-100])
    report = verify(root, spark=spark)
    assert {finding.file: finding.kind for finding in report.findings} == {
        lost: "missing",
        bent: "damaged",
        short: "damaged",
    }
    for finding in report.findings:
        assert f"restore {finding.file} from a backup" in finding.repair
        assert len(finding.tablets) == 1


# --- what a reference promises -------------------------------------------------------------------

PROMISES = {
    "rows": ({"rows": 99}, "rows: its footer says 100, METADATA 99"),
    "first": ({"first": b"\x80\0\0\1"}, "its first row is"),
    "last": ({"last": b"\x80\0\0\1"}, "its last row is"),
    "txns": ({"txn_min": 1}, "its records have txns"),
    "unique": ({"unique": True}, "several records of one identity"),
    "erasures": ({"has_erasures": False}, "it has erasures"),
    "partial": ({"has_partial": False}, "it has partial records"),
}


@pytest.mark.parametrize("promise", PROMISES)
def test_a_reference_that_promises_what_its_file_does_not_hold_is_found(root: str, promise: str) -> None:
    with ebla.open(root, settings=Settings(background_compaction=False, history_seconds=900)) as db:
        group = ebla.Group("g", columns={"n": "int64", "s": "string"}, max_versions=5)
        table = db.create_table("t", ebla.Schema(key={"k": "int32"}, groups=[group]))
        table.put([{"k": k, "n": k, "s": "x"} for k in range(80)])
        table.put([{"k": k, "n": -k} for k in range(19)])
        table.erase(5)
        table.flush()
        (ref,) = refs_of(db)
        fragment = Fragment(LocalFiles(root), ref.file, BlockCache(0), ref.txn)
        codec = KeyCodec(db._store.table("t").view.schema.key)
    assert inspect(fragment, ref, codec) == []
    changes, said = PROMISES[promise]
    problems = inspect(fragment, msgspec.structs.replace(ref, **changes), codec)
    assert any(said in problem for problem in problems), problems


def test_records_out_of_order_are_found(root: str) -> None:
    with ebla.open(root, settings=QUIET) as db:
        cells = ebla.Group("c", families=["f"])
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=[cells]))
        table.put([{"k": f"{k:03}", "f:a": b"1", "f:b": b"2"} for k in range(50)])
        table.flush()
        (ref,) = refs_of(db)
        codec = KeyCodec(db._store.table("t").view.schema.key)
        fragment = Fragment(LocalFiles(root), ref.file, BlockCache(0), ref.txn)
    assert inspect(fragment, ref, codec) == []
    records = fragment.read_blocks(0, len(fragment.block_rows), sorted(fragment.names))
    swapped = {"rows": [2, 3, 0, 1], "cells": [1, 0, 2, 3]}

    class Shuffled(Fragment):
        order: list[int]

        def read_blocks(self, begin: int, end: int, names: object) -> pa.Table:
            return records.take(pa.array([*self.order, *range(4, records.num_rows)]))

    for kind, said in (("rows", "its rows are not"), ("cells", "cells of a row are not")):
        shuffled = Shuffled(LocalFiles(root), ref.file, BlockCache(0), ref.txn)
        shuffled.order = swapped[kind]
        assert any(said in problem for problem in inspect(shuffled, ref, codec))
