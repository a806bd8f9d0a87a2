"""Tables that jobs have made, widened and taken away: each order can be repeated, and none touches what others use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from ebla.direct.fragments import pack_schema
from ebla.errors import SchemaError, TableExists, UnknownTable
from ebla.service.job_orders import AddColumns, MakeTable, UnmakeTable
from tests.support.inside import carry_out, state_of

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "string"})
MAKE = MakeTable("job", "t", "table-1", pack_schema(SCHEMA.number()), ("tablet-1",))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store") as opened:
        yield opened


def test_a_table_is_made_once(db: ebla.Database) -> None:
    assert carry_out(db, MAKE).table_id == "table-1"
    db.table("t").put({"k": 1, "v": "a"})
    assert carry_out(db, MAKE).table_id == "table-1"
    assert db.table("t").get(1) == {"k": 1, "v": "a"}


def test_a_name_that_another_table_has_is_not_taken(db: ebla.Database) -> None:
    db.create_table("t", SCHEMA)
    with pytest.raises(TableExists, match="save again"):
        carry_out(db, MAKE)


def test_columns_are_added_once(db: ebla.Database) -> None:
    table = db.create_table("t", SCHEMA)
    order = AddColumns("job", state_of(table).id, (("v", "string"), ("n", "int32")))
    first = carry_out(db, order)
    assert carry_out(db, order) == first
    table.put({"k": 1, "n": 7})
    assert table.get(1) == {"k": 1, "v": None, "n": 7}


def test_a_column_of_another_type_is_refused(db: ebla.Database) -> None:
    table = db.create_table("t", SCHEMA)
    with pytest.raises(SchemaError, match="'v' of 't' is string, not int64"):
        carry_out(db, AddColumns("job", state_of(table).id, (("n", "int64"), ("v", "int64"))))
    assert table.schema.version == 1
    with pytest.raises(UnknownTable):
        carry_out(db, AddColumns("job", "nowhere", (("n", "int64"),)))


def test_only_a_table_that_nobody_used_is_taken_away(db: ebla.Database) -> None:
    carry_out(db, MAKE)
    db.table("t").put({"k": 1})
    carry_out(db, UnmakeTable("job", "table-1"))
    assert db.tables() == ["t"]
    db.table("t").flush()
    carry_out(db, UnmakeTable("job", "table-1"))
    assert db.tables() == ["t"]
    db.drop_table("t")
    carry_out(db, MakeTable("job", "t", "table-2", MAKE.schema, ("tablet-2",)))
    for _ in range(2):
        carry_out(db, UnmakeTable("job", "table-2"))
    assert db.tables() == []
