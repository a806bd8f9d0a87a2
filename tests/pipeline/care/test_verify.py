"""Verifying: a sound table has no findings, and every kind of damage is found, named, and has a repair."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

import ebla
from ebla.direct.fragments import pack_schema
from ebla.errors import UnknownTable
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.keys import KeyCodec
from ebla.pipeline import verify
from ebla.settings import Settings
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.tablet.check.inspection import inspect
from tests.pipeline.tables import EVERYTHING, fill
from tests.support.inside import engine_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = Settings(background_compaction=False)
verifying = sys.modules["ebla.pipeline.care.verify"]


def refs_of(db: ebla.Database, name: str = "t") -> list[FragmentRef]:
    tablets = engine_of(db).table(name).view.metadata.tablets
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
        schema = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})
        table = db.create_table("t", schema)
        for first in range(4):
            table.put([{"k": f"{first}{n:04}", "n": n} for n in range(2_000)])
            table.flush()
        lost, bent, short, other = sorted(ref.file for ref in refs_of(db))
        unread = db.create_table("unread", schema).stats()["id"]
    path = Path(root)
    for file in (path / "metadata" / unread).iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    # A sound file in the place of another: its end is not what METADATA says.
    with ebla.open(path.parent / "elsewhere", settings=QUIET) as elsewhere:
        table = elsewhere.create_table("t", schema)
        table.put([{"k": "x", "n": 1}])
        table.flush()
        (path / other).write_bytes((elsewhere.path / table.files()[0]).read_bytes())
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
        other: "damaged",
        "": "metadata",
    }
    assert report.tables == ("t", "unread")
    assert report.findings[-1].repair.startswith("see `ebla verify`")
    for finding in report.findings[:-1]:
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
        schema = engine_of(db).table("t").view.schema
        codec = KeyCodec(schema.key)
    assert inspect(fragment, ref, codec) == []
    changes, said = PROMISES[promise]
    wrong = msgspec.structs.replace(ref, **changes)
    problems = inspect(fragment, wrong, codec)
    assert any(said in problem for problem in problems), problems
    findings = list(verifying.look_at(root, verifying._Suspect("t", pack_schema(schema), wrong, ("tablet",))))
    assert [finding.problem for finding in findings] == problems
    assert {(finding.kind, finding.repair) for finding in findings} == {
        ("wrong", verifying.REPAIRS["wrong"].format(file=ref.file))
    }


def test_records_out_of_order_are_found(root: str) -> None:
    with ebla.open(root, settings=QUIET) as db:
        cells = ebla.Group("c", families=["f"])
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=[cells]))
        table.put([{"k": f"{k:03}", "f:a": b"1", "f:b": b"2"} for k in range(50)])
        table.flush()
        (ref,) = refs_of(db)
        codec = KeyCodec(engine_of(db).table("t").view.schema.key)
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
