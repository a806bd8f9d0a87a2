"""Tables made from what people have: an Arrow schema, a frame, and a table that is there already."""

from __future__ import annotations

import threading
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ebla
from tests.support.inside import state_of

ARROW = pa.schema(
    {"id": pa.int64(), "name": pa.large_string(), "kind": pa.dictionary(pa.int8(), pa.string()), "day": pa.date32()}
)
DATA = {"id": [1, 2], "name": ["a", None], "score": [1.5, 2.5]}


def types_of(table: ebla.Table) -> dict[str, str]:
    schema = table.schema
    columns = [*schema.key, *(column for group in schema.groups for column in group.columns)]
    return {column.name: str(column.type) for column in columns}


def test_a_table_is_made_from_an_arrow_schema_and_a_key(db: ebla.Database) -> None:
    table = db.create_table("t", ARROW, key=["day", "id"])
    assert table.key_names == ("day", "id")
    assert types_of(table) == {"day": "date32[day]", "id": "int64", "name": "string", "kind": "string"}
    assert [group.name for group in table.schema.groups] == ["default"]


@pytest.mark.parametrize(
    "frame",
    [
        pa.table(DATA),
        pa.RecordBatch.from_pydict(DATA),
        pd.DataFrame(DATA),
        pd.DataFrame(DATA).set_index("id"),
        pl.DataFrame(DATA),
    ],
    ids=["table", "batch", "pandas", "index", "polars"],
)
def test_a_table_is_made_from_a_frame_and_takes_its_rows_when_they_are_put(db: ebla.Database, frame: Any) -> None:
    table = db.create_table("t", frame, key=["id"])
    assert types_of(table) == {"id": "int64", "name": "string", "score": "double"}
    assert table.count() == 0
    table.put(frame)
    assert [row["score"] for row in table.scan()] == [1.5, 2.5]


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        (ARROW, None, r"which columns are the key\? Give key=\[...\], a list of some of 'id', 'name'"),
        (ARROW, "id", r"Give key=\[...\]"),
        (ARROW, [], r"Give key=\[...\]"),
        (ARROW, ["ident"], "the key column 'ident' is none of the columns, which are 'id'"),
        (ARROW, ["id", "id"], "twice in the key"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), ["a"], "two columns are called 'a'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), ["a"], "two columns are called 'a'"),
        (pa.table({"a": [1], "b": [None]}), ["a"], "column 'b' has nothing but nulls"),
        (pd.DataFrame({"a": [1], "b": [object()]}), ["a"], "the columns of the DataFrame cannot be read as Arrow"),
        (pl.LazyFrame({"a": [1]}), ["a"], "a LazyFrame has no types yet"),
        (ebla.Schema(columns={"a": "int64"}), ["row"], "an ebla.Schema has the key"),
        ({"a": "int64"}, ["a"], "a table needs an ebla.Schema, or an Arrow schema or a frame"),
        (pa.schema({"a": pa.list_(pa.int64())}), ["a"], "key column 'a' cannot be list"),
    ],
)
def test_what_is_no_schema_is_refused_and_makes_no_table(db: ebla.Database, given: Any, key: Any, said: str) -> None:
    with pytest.raises(ebla.SchemaError, match=said):
        db.create_table("t", given, key=key)
    assert db.tables() == []


SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[
        ebla.Group("g", columns={"a": "int64", "b": "string"}),
        ebla.Group("c", families=["f"], max_versions=3),
    ],
)


def test_a_table_that_is_there_is_returned_if_its_schema_is_the_same(db: ebla.Database) -> None:
    first = db.create_table("t", SCHEMA, if_not_exists=True)
    first.put({"k": "x", "a": 1})
    assert db.create_table("t", SCHEMA, splits=["m"], if_not_exists=True).count() == 1
    db.alter_table("t", add_columns={"g": {"c": "int8"}}, rename={"b": "d"})
    db.alter_table("t", drop_columns=["c"], rename={"d": "b"})
    assert db.create_table("t", SCHEMA, if_not_exists=True).count() == 1
    with pytest.raises(ebla.TableExists):
        db.create_table("t", SCHEMA)


@pytest.mark.parametrize(
    ("key", "groups", "said"),
    [
        ({"k": "binary"}, SCHEMA.groups, r"its key is \(k string\), not \(k binary\)"),
        ({"k": "string"}, SCHEMA.groups[:1], "it has a group 'c'"),
        ({"k": "string"}, [*SCHEMA.groups, ebla.Group("h", columns={})], "it has no group 'h'"),
        ({"k": "string"}, [ebla.Group("g", columns={"a": "int64"}), SCHEMA.groups[1]], "it has a column 'b' in group"),
        (
            {"k": "string"},
            [ebla.Group("g", columns={"a": "int32", "b": "string"}), SCHEMA.groups[1]],
            "its column 'a' is int64, not int32",
        ),
        ({"k": "string"}, [SCHEMA.groups[0], ebla.Group("c", families=["f"])], "has max_versions 3, not None"),
        ({"k": "string"}, [SCHEMA.groups[0], ebla.Group("c", families=["f", "g"], max_versions=3)], "has the families"),
    ],
)
def test_a_table_that_is_there_with_another_schema_is_an_error_that_says_how_it_differs(
    db: ebla.Database, key: Any, groups: Any, said: str
) -> None:
    db.create_table("t", SCHEMA)
    with pytest.raises(ebla.TableExists, match=f"there is a table 't' already, and .*{said}.*alter_table"):
        db.create_table("t", ebla.Schema(key=key, groups=groups), if_not_exists=True)


def test_of_threads_that_make_the_same_table_all_get_it(db: ebla.Database) -> None:
    begin, ids = threading.Barrier(8), []

    def make() -> None:
        begin.wait()
        ids.append(state_of(db.create_table("t", SCHEMA, if_not_exists=True)).id)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1


def test_flags_are_true_or_false(db: ebla.Database) -> None:
    for flag in ("fixed", "if_not_exists"):
        with pytest.raises(ebla.RequestError, match=f"{flag} is True or False"):
            db.create_table("t", SCHEMA, **{flag: "yes"})
