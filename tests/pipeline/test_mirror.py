"""A mirror that is there already: what it lacks is told before a stream is begun."""

from __future__ import annotations

import pytest

import ebla
from ebla.pipeline.mirror import _make
from ebla.pipeline.place import Place

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
