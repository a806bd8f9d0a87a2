"""Mirrors: what one that is there already lacks is told before a stream is begun, and cells of any family follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ebla
import ebla.pipeline
from ebla.direct.place import Place
from ebla.pipeline.streaming.mirror import _make

SCHEMA = ebla.Schema(
    key={"k": "int64"},
    groups=[ebla.Group("typed", columns={"v": "int64"}), ebla.Group("cells", families=["tag"])],
)


def test_columns_that_a_mirror_lacks_are_named(db: ebla.Database) -> None:
    db.create_table("t", SCHEMA)
    here = Place.of(db)
    _make(here, here, "t", "m")  # made like it
    _make(here, here, "t", "m")
    db.alter_table("t", rename={"v": "value"}, add_families={"cells": ["more"]})
    with pytest.raises(ebla.UnknownColumn, match="the mirror 'm' has no value, more, which 't' has: alter the mirror"):
        _make(here, here, "t", "m")
    db.alter_table("m", rename={"v": "value"}, add_families={"cells": ["more", "of", "its", "own"]})
    _make(here, here, "t", "m")


def test_a_mirror_that_takes_any_family_is_left_to_its_writer(db: ebla.Database) -> None:
    db.create_table("t", SCHEMA)
    db.create_table("m", ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("all", families=["*"])]))
    _make(Place.of(db), Place.of(db), "t", "m")
    assert [group.name for group in db.table("m").schema.groups] == ["all"]


def test_a_mirror_follows_cells_of_any_family(db: ebla.Database, tmp_path: Path, spark: SparkSession) -> None:
    groups = [ebla.Group("typed", columns={"v": "int64"}), ebla.Group("all", families=["*"])]
    origin = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=groups))
    origin.put([{"k": n, "v": n, "tag:new": b"1", f"of:{n}": b"2", "bare": b"3"} for n in range(5)])
    for _ in ("all rows", "what changed"):
        ebla.pipeline.mirror(db, "t", db, "m", checkpoint=tmp_path / "checkpoint", spark=spark)
        assert list(db.table("m").scan()) == list(origin.scan())
        origin.erase(1)
        origin.erase(2, ["bare", "tag"])
        origin.put([{"k": 3, "later:x": b"4"}, {"k": 9, ":v": b"5"}])
