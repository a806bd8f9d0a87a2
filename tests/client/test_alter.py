"""Changing the schema of a table: what reads, before and after a compaction, and after the store was opened again."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ebla
from ebla import Group, Schema, SchemaError, UnknownColumn
from tests.support.inside import abandon, state_of

Rows = dict[str, dict[str, Any]]

# History is gone at once, so that a compaction drops all that it may.
FORGETFUL = ebla.Settings(history_seconds=0.0, background_compaction=False)
TWO = Schema(
    key={"k": "string"},
    groups=[
        Group("x", columns={"a": "int32", "b": "string"}),
        Group("y", columns={"c": "int64", "d": "string"}, compression="zstd"),
    ],
)
CELLS = Schema(key={"k": "string"}, groups=[Group("x", families=["a", "b"]), Group("y", families=["c", "d"])])
LAYOUTS = pytest.mark.parametrize("layout", ["columns", "cells"])


class Store:
    """A store that can be opened again."""

    def __init__(self, path: Path, settings: ebla.Settings = FORGETFUL) -> None:
        self._path = path
        self._settings = settings
        self.db = ebla.open(path, settings=settings)

    def reopen(self, *, crash: bool = False) -> None:
        abandon(self.db) if crash else self.db.close()
        self.db = ebla.open(self._path, settings=self._settings)

    @property
    def table(self) -> ebla.Table:
        return self.db.table("t")

    def rows(self, **how: Any) -> Rows:
        """Return all rows by key, without what is null: the same however they are read."""
        scanned = [_bare(row) for row in self.table.scan(**how)]
        if not how:
            keys = [row["k"] for row in scanned]
            assert [_bare(self.table.get(key) or {}) for key in keys] == scanned
            found = self.table.get_many(keys)
            assert all(found.column("_found").to_pylist())
        return {row.pop("k"): row for row in scanned}

    def stays(self, expected: Rows) -> None:
        """See the same rows now, after a flush, after a compaction, after a crash and after another compaction."""
        assert self.rows() == expected
        self.table.flush()
        assert self.rows() == expected
        self.table.compact()
        assert self.rows() == expected
        self.reopen(crash=True)
        assert self.rows() == expected
        self.table.compact()
        assert self.rows() == expected

    def columns_on_disk(self) -> dict[str, set[str]]:
        """Return the value columns of the files of each group."""
        found: dict[str, set[str]] = {group.name: set() for group in self.table.schema.groups}
        for tablet in state_of(self.table).view.metadata.tablets:
            for group in self.table.schema.groups:
                for ref in tablet.group(group.id).fragments:
                    names = pq.read_schema(self._path / ref.file).names
                    found[group.name].update(n for n in names if not n.startswith("_") and n != "k")
        return found


def _bare(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "data")
    yield made
    made.db.close()


def two(store: Store, layout: str) -> Callable[..., dict[str, Any]]:
    """Make the table of note 002, with groups X:(a b) and Y:(c d); return what makes rows for it."""
    if layout == "columns":
        store.db.create_table(
            "t",
            Schema(
                key={"k": "string"},
                groups=[
                    Group("x", columns={"a": "int64", "b": "int64"}),
                    Group("y", columns={"c": "int64", "d": "int64"}),
                ],
            ),
        )
        return lambda **values: {"k": "row", **values}
    store.db.create_table("t", CELLS)
    return lambda **values: {"k": "row", **{f"{name}:q": b"%d" % value for name, value in values.items()}}


def shown(row: dict[str, Any]) -> Rows:
    return {"row": {name: value for name, value in row.items() if name != "k"}}


# --- the scenarios of note 002 -------------------------------------------------------------------


@LAYOUTS
def test_order_survives_columns_that_move_to_a_group_and_back(store: Store, layout: str) -> None:
    row = two(store, layout)
    for values in ({"a": 1, "c": 1}, {"a": 2, "b": 2}, {"c": 3, "d": 3}):
        store.table.put(row(**values))
        store.table.flush()
    store.db.alter_table("t", move={"c": "x"})
    assert store.rows() == shown(row(a=2, b=2, c=3, d=3))
    store.table.put(row(c=4))
    store.table.compact()  # X:4 Y:3, restricted to d
    store.db.alter_table("t", move={"b": "y", "c": "y"})
    store.stays(shown(row(a=2, b=2, c=4, d=3)))


@LAYOUTS
def test_order_survives_a_compaction_of_one_group_before_columns_move(store: Store, layout: str) -> None:
    row = two(store, layout)
    store.table.put(row(a=1, c=1))
    store.table.flush()
    store.table.put(row(a=2, b=2))
    store.table.flush()
    store.table.compact()  # 1 + 2 -> 4, which is older than 3 is
    store.table.put(row(c=3, d=3))
    store.table.flush()
    store.db.alter_table("t", move={"c": "x"})
    assert store.rows() == shown(row(a=2, b=2, c=3, d=3))
    store.db.alter_table("t", move={"b": "y", "c": "y"})
    store.stays(shown(row(a=2, b=2, c=3, d=3)))


@LAYOUTS
def test_what_was_erased_does_not_come_back_with_columns_that_move_to_a_group_and_back(
    store: Store, layout: str
) -> None:
    row = two(store, layout)
    for values in ({"a": 1, "c": 1}, {"a": 2, "b": 2}, {"c": 3, "d": 3}):
        store.table.put(row(**values))
        store.table.flush()
    store.table.erase("row", columns=["c"])  # all of 1[c] and 3[c]
    store.table.flush()
    store.db.alter_table("t", move={"c": "x"})
    assert store.rows() == shown(row(a=2, b=2, d=3))
    store.table.compact()  # rooted: the erasure is filtered out, X:5 has no c; Y:3 still has it in its file
    store.db.alter_table("t", move={"b": "y", "c": "y"})
    store.stays(shown(row(a=2, b=2, d=3)))


@LAYOUTS
def test_erasures_of_rows_and_ranges_follow_what_leaves_their_group(store: Store, layout: str) -> None:
    row = two(store, layout)
    store.table.put(row(a=1, c=1, d=1))
    store.table.flush()
    store.table.erase("row")
    store.table.flush()
    store.db.alter_table("t", move={"c": "x"})
    assert store.rows() == {}
    store.table.put(row(b=2))
    store.stays(shown(row(b=2)))
    store.table.put(row(c=3, d=3))
    store.table.flush()
    store.table.erase_range("r", "s")
    store.db.alter_table("t", move={"c": "y", "a": "y"})
    assert store.rows() == {}
    store.table.put(row(d=4))
    store.stays(shown(row(d=4)))


# --- columns -------------------------------------------------------------------------------------


def test_a_column_that_is_added_is_null_in_older_rows(store: Store) -> None:
    store.db.create_table("t", TWO)
    store.table.put([{"k": "1", "a": 1}, {"k": "2", "c": 2}])
    table = store.db.alter_table("t", add_columns={"x": {"e": "float64"}})
    assert table.schema.version == 2
    assert store.rows() == {"1": {"a": 1}, "2": {"c": 2}}
    store.table.put([{"k": "2", "e": 0.5}, {"k": "3", "a": 3, "e": 1.5}])
    store.stays({"1": {"a": 1}, "2": {"c": 2, "e": 0.5}, "3": {"a": 3, "e": 1.5}})


def test_a_column_is_added_to_the_only_group_without_naming_it(store: Store) -> None:
    store.db.create_table("t", Schema(key={"k": "string"}, columns={"a": "int64"}))
    store.db.alter_table("t", add_columns={"b": "string", "c": "list<int32>"})
    store.table.put({"k": "1", "b": "text", "c": [1, 2]})
    store.stays({"1": {"b": "text", "c": [1, 2]}})


def test_a_column_that_is_dropped_is_not_served_and_vanishes_when_it_is_compacted(store: Store) -> None:
    store.db.create_table("t", TWO)
    store.table.put([{"k": "1", "a": 1, "b": "one"}, {"k": "2", "b": "two"}, {"k": "3", "c": 3}])
    store.db.alter_table("t", drop_columns=["b"])
    with pytest.raises(UnknownColumn):
        store.table.get("1", columns=["b"])
    with pytest.raises(UnknownColumn):
        store.table.put({"k": "1", "b": "again"})
    assert "b" in store.columns_on_disk()["x"]
    store.stays({"1": {"a": 1}, "2": {}, "3": {"c": 3}})  # the row that had nothing else is there, as in SQL
    assert store.columns_on_disk() == {"x": {"a"}, "y": {"c"}}


def test_a_column_that_is_dropped_and_added_again_does_not_bring_old_values_back(store: Store) -> None:
    store.db.create_table("t", TWO)
    store.table.put([{"k": "1", "a": 1, "b": "one"}])
    store.table.flush()
    store.table.put([{"k": "2", "a": 2, "b": "two"}])
    store.db.alter_table("t", drop_columns=["a", "b"], add_columns={"x": {"b": "string"}, "y": {"a": "int32"}})
    assert store.rows() == {"1": {}, "2": {}}
    store.table.put({"k": "2", "b": "new"})
    store.stays({"1": {}, "2": {"b": "new"}})


def test_columns_keys_and_families_are_renamed(store: Store) -> None:
    store.db.create_table("t", Schema(key={"key": "string"}, groups=[*TWO.groups, Group("z", families=["f", "g"])]))
    store.table.put([{"key": "1", "a": 1, "b": "b", "f:q": b"f", "g:q": b"g"}])
    store.table.flush()
    store.db.alter_table("t", rename={"key": "k", "a": "b", "b": "a", "f": "g", "g": "h"})
    expected = {"1": {"b": 1, "a": "b", "g:q": b"f", "h:q": b"g"}}
    assert store.rows() == expected
    assert store.table.get({"k": "1"}) is not None
    store.table.put({"k": "2", "b": 2, "g:q": b"new"})
    store.stays({**expected, "2": {"b": 2, "g:q": b"new"}})


def test_a_column_is_widened_and_reads_as_the_wider_type_everywhere(store: Store) -> None:
    kinds = {"i": "int32", "f": "float32", "n": "int32", "t": "date32", "m": "decimal128(6, 2)", "l": "list<int32>"}
    wider = {
        "i": "int64",
        "f": "float64",
        "n": "float64",
        "t": "timestamp[ms]",
        "m": "decimal128(12, 4)",
        "l": "list<int64>",
    }
    store.db.create_table("t", Schema(key={"k": "string"}, columns=kinds))
    day = datetime.date(2026, 1, 1)
    store.table.put({"k": "1", "i": 7, "f": 0.5, "n": 3, "t": day, "m": "1.50", "l": [1]} | {"m": None})
    store.table.flush()
    assert store.table.get("1") is not None  # in the caches, under the old types
    store.db.alter_table("t", change_types=wider)
    store.table.put({"k": "2", "i": 2**40, "f": 0.1, "n": 0.25, "t": datetime.datetime(2026, 1, 1, 12), "l": [2**40]})
    moment = datetime.datetime(2026, 1, 1)
    expected: Rows = {
        "1": {"i": 7, "f": 0.5, "n": 3.0, "t": moment, "l": [1]},
        "2": {"i": 2**40, "f": 0.1, "n": 0.25, "t": moment.replace(hour=12), "l": [2**40]},
    }
    assert store.table.scan().to_arrow().schema.field("n").type == "double"
    assert [type(store.rows()[key]["n"]) for key in ("1", "2")] == [float, float]
    store.stays(expected)


def test_a_replaced_row_keeps_the_versions_of_a_column_that_moves_in(store: Store) -> None:
    """A replacement erases the row in one group and sets it in another: the erasure is not the other's."""
    store.db.create_table("t", TWO)
    store.table.put({"k": "1", "a": 1, "c": 1})
    store.table.put({"k": "1", "c": 2}, replace=True)  # erases the row in x, sets all of y
    store.table.flush()
    before = store.table.scan(columns=["c"], versions=5).to_arrow().column("c").to_pylist()
    store.db.alter_table("t", move={"c": "x"})
    assert store.rows() == {"1": {"c": 2}}
    assert store.table.scan(columns=["c"], versions=5).to_arrow().column("c").to_pylist() == before
    store.stays({"1": {"c": 2}})


def test_a_column_takes_the_rows_of_its_group_along_and_they_stay_when_it_goes(store: Store) -> None:
    store.db.create_table("t", TWO)
    store.table.put([{"k": "1", "a": 1}, {"k": "2", "c": 2}, {"k": "3", "d": "3"}])
    assert set(store.rows(columns=["c"])) == {"2", "3"}
    store.db.alter_table("t", move={"c": "x"})
    assert set(store.rows(columns=["c"])) == {"1", "2", "3"}
    store.db.alter_table("t", drop_columns=["c"])
    assert set(store.rows(columns=["a"])) == {"1", "2", "3"}
    store.stays({"1": {"a": 1}, "2": {}, "3": {"d": "3"}})
    assert set(store.rows(columns=["a"])) == {"1", "2", "3"}
    store.table.erase("2")
    store.stays({"1": {"a": 1}, "3": {"d": "3"}})


# --- groups and families -------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("left", ["some", "none"])
@pytest.mark.parametrize("names", ["xy", "yx"])
def test_a_row_that_was_replaced_is_there_when_nothing_is_left_to_tell_its_groups_by(
    tmp_path: Path, names: str, left: str, compacted: bool
) -> None:
    # In the group of c the row is erased by the commit that writes it to the group of a.
    columns = {"x": {"a": "int64", "b": "int64"}, "y": {"c": "int64"}}
    schema = Schema(key={"k": "string"}, groups=[Group(name, columns=columns[name]) for name in names])
    with ebla.open(tmp_path, settings=ebla.Settings(background_compaction=False)) as db:
        table = db.create_table("t", schema)
        table.put({"k": "k", "a": 1, "c": 1})
        table.put({"k": "k", "a": 2}, replace=True)
        db.alter_table("t", move={"a": "y"})
        if compacted:
            table.compact()
        if left == "none":
            db.alter_table("t", drop_columns=["a", "c"])
            db.alter_table("t", add_columns={"y": {"a": "int64"}})
        else:
            db.alter_table("t", drop_columns=["a"], add_columns={"y": {"a": "int64"}})
            db.alter_table("t", move={"c": "x"})
        for _ in range(2):
            assert list(table.scan(columns=["a"])) == [{"k": "k", "a": None}]
            assert table.get("k", ["a"]) == {"k": "k", "a": None}
            assert table.get_many(["k"], ["a"]).column("_found").to_pylist() == [True]
            table.compact()


def test_moved_columns_end_up_in_the_files_of_their_group_with_its_compression(store: Store, tmp_path: Path) -> None:
    store.db.create_table("t", TWO)
    store.table.put([{"k": f"{n:03}", "a": n, "b": "text" * 20, "c": n} for n in range(200)])
    before = store.rows()
    store.db.alter_table("t", groups=[Group("cold", columns={}, compression="zstd")], move={"b": "cold", "c": "x"})
    assert store.columns_on_disk()["cold"] == {"a", "b"}  # by reference, for now
    store.stays(before)
    assert store.columns_on_disk() == {"x": {"a", "c"}, "y": set(), "cold": {"b"}}
    cold = store.table.schema.groups[-1]
    (ref,) = state_of(store.table).view.metadata.tablets[0].group(cold.id).fragments
    assert not ref.is_restricted
    assert pq.read_metadata(tmp_path / "data" / ref.file).row_group(0).column(0).compression == "ZSTD"


def test_a_family_that_gets_a_group_of_its_own_takes_its_cells_out_of_the_wildcard(store: Store) -> None:
    store.db.create_table("t", Schema(key={"k": "string"}, groups=[Group("rest", families=["*"])]))
    store.table.put({"k": "1", "f:a": b"1", "g:a": b"1", "loose": b"1"})
    store.table.flush()
    store.db.alter_table("t", groups=[Group("own", families=["f"])])
    own, rest = store.table.scan(columns=["f"]), store.table.scan(columns=["g:a"])
    assert [list(own), list(rest)] == [[{"k": "1", "f:a": b"1"}], [{"k": "1", "g:a": b"1"}]]
    store.table.put({"k": "1", "f:b": b"2"})
    store.stays({"1": {"f:a": b"1", "f:b": b"2", "g:a": b"1", "loose": b"1"}})
    store.db.alter_table("t", move={"f": "rest"}, drop_groups=["own"])
    store.stays({"1": {"f:a": b"1", "f:b": b"2", "g:a": b"1", "loose": b"1"}})


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "under_the_wildcard"])
def test_a_dropped_family_stays_dropped_where_the_wildcard_covers_it(store: Store, declared: bool) -> None:
    groups = [Group("rest", families=["*"])] + ([Group("own", families=["f"])] if declared else [])
    store.db.create_table("t", Schema(key={"k": "string"}, groups=groups))
    store.table.put({"k": "1", "f:a": b"1", "g:a": b"1"})
    store.table.flush()
    store.table.put({"k": "1", "f:b": b"1"})
    store.db.alter_table("t", drop_families=["f"])
    assert store.rows() == {"1": {"g:a": b"1"}}
    store.table.put({"k": "1", "f:c": b"2"})
    assert store.rows() == {"1": {"g:a": b"1", "f:c": b"2"}}
    store.db.alter_table("t", groups=[Group("new", families=["f"])])
    store.stays({"1": {"g:a": b"1", "f:c": b"2"}})


def test_without_a_wildcard_unknown_families_are_refused(store: Store) -> None:
    store.db.create_table("t", Schema(key={"k": "string"}, groups=[Group("own", families=["f", "*"])]))
    store.table.put({"k": "1", "f:a": b"1", "other:a": b"1"})
    store.db.alter_table("t", drop_families=["*"])
    with pytest.raises(UnknownColumn):
        store.table.put({"k": "1", "other:b": b"2"})
    store.stays({"1": {"f:a": b"1"}})
    store.db.alter_table("t", add_families=["*"])
    store.stays({"1": {"f:a": b"1"}})


def test_the_wildcard_moves_to_another_group(store: Store) -> None:
    store.db.create_table("t", CELLS)
    store.db.alter_table("t", add_families={"y": ["*"]})
    store.table.put({"k": "1", "a:1": b"a", "c:1": b"c", "any:1": b"any"})
    store.table.flush()
    store.db.alter_table("t", move={"*": "x"})
    store.table.put({"k": "1", "any:2": b"more"})
    store.stays({"1": {"a:1": b"a", "c:1": b"c", "any:1": b"any", "any:2": b"more"}})


def test_a_purge_policy_that_is_changed_holds_at_once(store: Store) -> None:
    store.db.create_table("t", Schema(key={"k": "string"}, groups=[Group("e", families=["f"])]))
    for n in range(4):
        store.table.put({"k": "1", "f:a": b"%d" % n})
    store.db.alter_table("t", change_groups={"e": {"max_versions": 2, "name": "events"}})
    (row,) = store.table.scan(versions=9)
    assert [version.value for version in row["f:a"]] == [b"3", b"2"]
    assert [group.name for group in store.table.schema.groups] == ["events"]


def test_a_dropped_group_is_gone_with_its_columns(store: Store) -> None:
    store.db.create_table("t", TWO)
    store.table.put([{"k": "1", "a": 1, "c": 1}, {"k": "2", "c": 2}])
    store.db.alter_table("t", drop_groups=["y"])
    store.stays({"1": {"a": 1}})
    store.db.alter_table("t", groups=[Group("y", columns={"c": "int64"})])
    store.stays({"1": {"a": 1}})


# --- time, and objects that are held -------------------------------------------------------------


def test_as_of_before_the_change_answers_in_the_schema_of_today(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", ebla.Settings(background_compaction=False))
    store.db.create_table("t", TWO)
    first = store.table.put({"k": "1", "a": 1, "b": "old", "c": 1})
    store.table.put({"k": "1", "a": 2, "c": 2})
    with store.db.snapshot() as snapshot:
        store.db.alter_table(
            "t", rename={"a": "n"}, drop_columns=["b"], move={"c": "x"}, add_columns={"y": {"e": "int8"}}
        )
        assert store.rows(as_of=first) == {"1": {"n": 1, "c": 1}}
        store.table.put({"k": "1", "c": 3})
        assert store.rows(as_of=snapshot) == {"1": {"n": 2, "c": 2}}
        store.table.compact()
        assert store.rows(as_of=snapshot) == {"1": {"n": 2, "c": 2}}
    store.db.close()


def test_a_table_that_is_held_sees_the_new_schema(store: Store) -> None:
    held = store.db.create_table("t", TWO)
    held.put({"k": "1", "a": 1})
    assert [held.get("1"), held.get("1"), held.get("1")] == [{"k": "1", "a": 1, "b": None, "c": None, "d": None}] * 3
    cache = state_of(held).row_cache
    assert cache.stats()["rows"] == 1
    store.db.alter_table("t", rename={"a": "n"}, drop_columns=["d"])
    assert cache.stats()["rows"] == 0
    assert held.get("1") == {"k": "1", "n": 1, "b": None, "c": None}
    held.put({"k": "1", "n": 2})
    assert held.get_many(["1"]).to_pylist() == [{"k": "1", "n": 2, "b": None, "c": None, "_found": True}]


def test_a_scan_under_way_goes_on_in_the_schema_it_began_with(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", ebla.Settings(background_compaction=False, scan_batch_rows=100))
    store.db.create_table("t", TWO)
    store.table.put([{"k": f"{n:05}", "a": n, "c": n} for n in range(5_000)])
    scan = store.table.scan()
    begun = iter(scan)
    rows = [next(begun)]
    store.db.alter_table("t", rename={"a": "n"}, move={"c": "x"}, drop_columns=["b", "d"])
    store.table.put([{"k": f"{n:05}", "n": -n} for n in range(5_000)])
    store.table.compact()
    rows += begun
    assert rows == [{"k": f"{n:05}", "a": n, "b": None, "c": n, "d": None} for n in range(5_000)]
    assert [row["n"] for row in store.table.scan(limit=3)] == [0, -1, -2]
    store.db.close()


def test_a_scan_that_follows_newer_commits_says_that_the_schema_changed(store: Store) -> None:
    store.db.create_table("t", TWO)
    store.table.put([{"k": f"{n:05}", "a": n} for n in range(5_000)])
    begun = iter(store.table.scan(latest=True))
    next(begun)
    store.db.alter_table("t", rename={"a": "n"})
    with pytest.raises(ebla.SchemaChanged):
        list(begun)


# --- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({}, SchemaError),
        ({"add_columns": {"e": "int64"}}, SchemaError),  # to which of the two groups?
        ({"add_columns": {"x": {"c": "int64"}}}, SchemaError),
        ({"add_columns": {"x": {"e": "no type"}}}, SchemaError),
        ({"add_columns": {"x": {"_e": "int64"}}}, SchemaError),
        ({"add_columns": {"nowhere": {"e": "int64"}}}, SchemaError),
        ({"drop_columns": ["no"]}, UnknownColumn),
        ({"drop_columns": ["k"]}, SchemaError),
        ({"drop_columns": "a"}, SchemaError),
        ({"drop_families": ["f"]}, UnknownColumn),
        ({"rename": {"a": "b"}}, SchemaError),
        ({"rename": {"no": "b"}}, UnknownColumn),
        ({"move": {"k": "x"}}, SchemaError),
        ({"move": {"a": "nowhere"}}, SchemaError),
        ({"change_types": {"a": "int16"}}, SchemaError),
        ({"change_types": {"c": "float64"}}, SchemaError),
        ({"change_types": {"k": "binary"}}, SchemaError),
        ({"groups": [Group("x", columns={"e": "int64"})]}, SchemaError),
        ({"groups": [Group("z", columns={"a": "int64"})]}, SchemaError),
        ({"change_groups": {"x": {"compression": "best"}}}, SchemaError),
        ({"change_groups": {"x": {"colour": "red"}}}, SchemaError),
        ({"drop_groups": ["x", "y"]}, SchemaError),
        ({"add_families": {"x": ["f"]}}, SchemaError),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_schema_that_cannot_be_is_refused_and_nothing_changes(
    store: Store, request_: dict[str, Any], error: type[Exception]
) -> None:
    store.db.create_table("t", TWO)
    store.table.put({"k": "1", "a": 1})
    before = store.table.schema
    with pytest.raises(error):
        store.db.alter_table("t", **request_)
    assert store.table.schema == before
    assert store.rows() == {"1": {"a": 1}}


def test_a_family_is_not_renamed_onto_cells_that_the_wildcard_may_hold(store: Store) -> None:
    groups = [Group("own", families=["f"]), Group("rest", families=["*"])]
    store.db.create_table("t", Schema(key={"k": "string"}, groups=groups))
    store.table.put({"k": "1", "f:a": b"f", "g:a": b"g"})
    with pytest.raises(SchemaError, match="may hold cells of 'g'"):
        store.db.alter_table("t", rename={"f": "g"})
    store.db.alter_table("t", rename={"f": "g"}, drop_families=["g"])
    store.stays({"1": {"g:a": b"f"}})
