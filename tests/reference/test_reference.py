"""The sentences of the data model, each as a small case worked out by hand.

The model is the judge of the store, so nothing here touches the store: what is tested is that the judge knows the law.
Moments are written as whole microseconds: `at(5)` is the first txn of microsecond 5.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from ebla.errors import Conflict, RequestError, TableExists, UnknownColumn, UnknownTable
from ebla.model.declaration import Group, Schema

from .reference import (
    Cell,
    ReferenceStore,
    ReferenceTable,
    Version,
    decode_counter,
    encode_counter,
    time_of,
)

A, B, C = (b"a",), (b"b",), (b"c",)


def at(microsecond: int, counter: int = 0) -> int:
    return microsecond << 10 | counter


def table(*groups: Group, key: dict[str, str] | None = None) -> ReferenceTable:
    schema = Schema(key=key or {"row": "binary"}, groups=groups)
    return ReferenceStore().create_table("t", schema)


def columns_table(**options: Any) -> ReferenceTable:
    return table(Group("main", columns={"x": "int64", "y": "string"}, **options))


def cells_table(**options: Any) -> ReferenceTable:
    return table(Group("events", families=["click", "view"], **options))


def mixed_table() -> ReferenceTable:
    return table(
        Group("events", families=["click"]),
        Group("left", columns={"x": "int64", "y": "string"}),
        Group("right", columns={"z": "int64"}),
    )


def click(key: tuple[Any, ...], value: bytes, timestamp: int | None = None, qualifier: str = "q") -> Cell:
    return Cell(key, "click", qualifier, value, timestamp)


# --- the store -----------------------------------------------------------------------------------


def test_a_dropped_table_leaves_nothing_to_its_successor() -> None:
    store = ReferenceStore()
    schema = Schema(columns={"x": "int64"})
    store.create_table("t", schema).put({"row": b"a", "x": 1}, at(1))
    with pytest.raises(TableExists):
        store.create_table("t", schema)
    store.drop_table("t")
    assert store.tables() == []
    with pytest.raises(UnknownTable):
        store.table("t")
    assert store.create_table("t", schema).scan() == []


# --- columns groups ------------------------------------------------------------------------------


def test_a_reader_sees_what_was_committed_up_to_its_moment() -> None:
    t = columns_table()
    t.put({"row": b"a", "x": 1, "y": "one"}, at(1))
    t.put({"row": b"a", "x": 2}, at(2))
    assert t.get(A, as_of=at(1) - 1) is None
    assert t.get(A, as_of=at(1)) == {"row": b"a", "x": 1, "y": "one"}
    assert t.get(A, as_of=at(2)) == {"row": b"a", "x": 2, "y": "one"}
    assert t.get(A) == t.get(A, as_of=at(9))


def test_a_missing_column_is_untouched_and_a_null_sets_null() -> None:
    t = columns_table()
    t.put({"row": b"a", "x": 1, "y": "one"}, at(1))
    t.put({"row": b"a", "y": None}, at(2))
    assert t.get(A) == {"row": b"a", "x": 1, "y": None}


def test_a_row_of_nulls_exists() -> None:
    t = columns_table()
    t.put({"row": b"a", "x": None}, at(1))
    assert t.get(A) == {"row": b"a", "x": None, "y": None}


def test_an_erased_row_is_gone_and_a_later_put_starts_afresh() -> None:
    t = columns_table()
    t.put({"row": b"a", "x": 1, "y": "one"}, at(1))
    t.erase(A, at(2))
    assert t.get(A) is None
    t.put({"row": b"a", "x": 3}, at(3))
    assert t.get(A) == {"row": b"a", "x": 3, "y": None}
    assert t.get(A, as_of=at(1)) == {"row": b"a", "x": 1, "y": "one"}


def test_a_range_erasure_takes_its_start_and_leaves_its_stop() -> None:
    t = columns_table()
    t.put([{"row": key, "x": 1} for key in (b"a", b"b", b"c")], at(1))
    t.erase_range(A, B, at(2))
    t.put({"row": b"a", "x": 2}, at(3))
    assert [row["row"] for row in t.scan(as_of=at(2))] == [b"b", b"c"]
    assert t.get(A) == {"row": b"a", "x": 2, "y": None}
    t.erase_range(None, None, at(4))
    assert t.scan() == []
    assert len(t.scan(as_of=at(3))) == 3


def test_versions_are_commits_newest_first_and_end_at_an_erasure() -> None:
    t = columns_table(max_versions="all")
    t.put({"row": b"a", "x": 1}, at(1))
    t.erase(A, at(2))
    t.put({"row": b"a", "x": 2, "y": "two"}, at(3))
    t.put({"row": b"a", "x": None}, at(4))
    (row,) = t.scan(versions=5)
    assert row == {
        "row": b"a",
        "x": [Version(None, at(4), 4), Version(2, at(3), 3)],
        "y": [Version("two", at(3), 3)],
    }
    assert t.scan(versions=2) == t.scan(versions=5)
    t.put({"row": b"a", "x": 5}, at(5))
    assert [version.value for version in t.scan(versions=2)[0]["x"]] == [5, None]
    assert t.scan(versions=2, as_of=at(1)) == [{"row": b"a", "x": [Version(1, at(1), 1)], "y": []}]


def test_erasing_a_column_sets_it_to_null() -> None:
    t = mixed_table()
    t.put({"row": b"a", "x": 1, "z": 1}, at(1))
    t.erase(A, at(2), columns=["x"])
    assert t.get(A) == {"row": b"a", "x": None, "y": None, "z": 1}


def test_erasing_a_column_never_makes_a_row_exist() -> None:
    t = mixed_table()
    t.put({"row": b"a", "z": 1}, at(1))
    t.erase(A, at(2), columns=["x"])
    t.erase(B, at(2), columns=["x"])
    assert t.get(A, columns=["x"]) is None
    assert t.get(B) is None
    assert t.latest_txn(B) == 0


def test_rows_of_one_batch_count_one_after_the_other() -> None:
    t = columns_table()
    t.put([{"row": b"a", "x": 1, "y": "one"}, {"row": b"b"}, {"row": b"a", "x": 2}], at(1))
    assert t.get(A) == {"row": b"a", "x": 2, "y": "one"}
    assert t.scan(versions=3)[0]["x"] == [Version(2, at(1), 1)]


# --- cells groups --------------------------------------------------------------------------------


def test_cells_are_ordered_by_timestamp_then_by_txn() -> None:
    t = cells_table()
    t.put_cells([click(A, b"new", 9), click(A, b"old", 3)], at(100))
    t.put_cells([click(A, b"older", 2), click(A, b"old again", 3)], at(101))
    (row,) = t.scan(versions=9)
    assert row["click:q"] == [
        Version(b"new", at(100), 9),
        Version(b"old again", at(101), 3),
        Version(b"older", at(101), 2),
    ]
    assert t.get(A) == {"row": b"a", "click:q": b"new"}
    assert t.scan(versions=9, as_of=at(100))[0]["click:q"] == [Version(b"new", at(100), 9), Version(b"old", at(100), 3)]


def test_the_commit_time_is_the_timestamp_unless_one_is_given() -> None:
    t = cells_table()
    t.put({"row": b"a", "click:q": b"1"}, at(7, counter=3))
    t.put_cells([click(B, b"1")], at(8))
    rows = t.scan(versions=2)
    assert [row["click:q"] for row in rows] == [[Version(b"1", at(7, 3), 7)], [Version(b"1", at(8), 8)]]


def test_cells_of_one_microsecond_replace_each_other() -> None:
    t = cells_table()
    t.put({"row": b"a", "click:q": b"1"}, at(7, counter=0))
    t.put({"row": b"a", "click:q": b"2"}, at(7, counter=1))
    assert t.scan(versions=2)[0]["click:q"] == [Version(b"2", at(7, 1), 7)]


def test_an_erasure_hides_all_older_txns_whatever_their_timestamp() -> None:
    t = cells_table()
    t.put_cells([click(A, b"future", 1_000_000)], at(1))
    t.erase(A, at(2), columns=["click:q"])
    assert t.get(A) is None


def test_a_put_after_an_erasure_is_seen_whatever_its_timestamp() -> None:
    t = cells_table()
    t.erase(A, at(5))
    t.put_cells([click(A, b"past", 1)], at(6))
    assert t.get(A) == {"row": b"a", "click:q": b"past"}


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        (["click:q"], {"click:r", "view:q"}),
        (["click"], {"view:q"}),
        (["click:"], {"view:q"}),
        (["click:r", "view:"], {"click:q"}),
        (None, None),
    ],
)
def test_erasures_reach_a_cell_a_family_or_the_row(columns: list[str] | None, left: set[str] | None) -> None:
    t = cells_table()
    t.put({"row": b"a", "click:q": b"1", "click:r": b"2", "view:q": b"3"}, at(1))
    t.erase(A, at(2), columns=columns)
    row = t.get(A)
    assert (None if row is None else set(row) - {"row"}) == left


def test_a_range_erasure_hides_cells_of_any_timestamp() -> None:
    t = cells_table()
    t.put_cells([click(A, b"future", 1_000_000)], at(1))
    t.erase_range(None, None, at(2))
    t.put_cells([click(B, b"past", 0)], at(3))
    assert [row["row"] for row in t.scan()] == [b"b"]


def test_a_row_of_cells_exists_while_a_cell_is_seen() -> None:
    t = cells_table()
    t.put({"row": b"a", "click:q": b"1"}, at(1))
    t.erase(A, at(2), columns=["click"])
    assert t.get(A) is None
    assert not t.exists(A, at(2))


def test_the_last_of_two_equal_cells_of_one_batch_wins() -> None:
    t = cells_table()
    t.put_cells([click(A, b"1", 5), click(A, b"2", 5), click(A, b"3", 4)], at(9))
    assert [version.value for version in t.scan(versions=3)[0]["click:q"]] == [b"2", b"3"]


def test_a_bare_name_is_a_cell_of_the_unnamed_family_in_a_wildcard_table() -> None:
    t = table(Group("main", columns={"x": "int64"}), Group("rest", families=["*"]))
    t.put({"row": b"a", "loose": b"1", "any:thing": b"2"}, at(1))
    assert t.get(A) == {"row": b"a", "x": None, "loose": b"1", "any:thing": b"2"}
    assert t.get(A, columns=["loose"]) == {"row": b"a", "loose": b"1"}
    t.erase(A, at(2), columns=["any:"])
    assert t.get(A) == {"row": b"a", "x": None, "loose": b"1"}


def test_an_undeclared_family_is_refused_without_a_wildcard() -> None:
    with pytest.raises(UnknownColumn):
        cells_table().put({"row": b"a", "other:q": b"1"}, at(1))


# --- several groups ------------------------------------------------------------------------------


def test_reading_several_groups_is_an_outer_join() -> None:
    t = mixed_table()
    t.put({"row": b"a", "x": 1}, at(1))
    t.put({"row": b"b", "z": 2}, at(2))
    t.put({"row": b"c", "click:q": b"3"}, at(3))
    assert t.scan() == [
        {"row": b"a", "x": 1, "y": None, "z": None},
        {"row": b"b", "x": None, "y": None, "z": 2},
        {"row": b"c", "x": None, "y": None, "z": None, "click:q": b"3"},
    ]


def test_only_the_groups_read_decide_whether_a_row_is_there() -> None:
    t = mixed_table()
    t.put({"row": b"a", "x": 1}, at(1))
    t.put({"row": b"b", "z": 2}, at(2))
    assert t.scan(columns=["y"]) == [{"row": b"a", "y": None}]
    assert t.scan(columns=["z"]) == [{"row": b"b", "z": 2}]
    assert t.get(A, columns=["z"]) is None
    assert t.get(A, columns=["click:q"]) is None


def test_only_the_cells_asked_for_decide_in_a_cells_group() -> None:
    t = cells_table()
    t.put({"row": b"a", "click:q": b"1"}, at(1))
    assert t.get(A, columns=["click:q"]) == t.get(A, columns=["click", "view"]) == {"row": b"a", "click:q": b"1"}
    assert t.get(A, columns=["click:r"]) is None
    assert t.get(A, columns=["view"]) is None


def test_asked_for_the_key_alone_any_group_shows_the_row() -> None:
    t = mixed_table()
    t.put([{"row": b"a", "x": 1}, {"row": b"b", "click:q": b"2"}], at(1))
    assert t.scan(columns=[]) == t.scan(columns=["row"]) == [{"row": b"a"}, {"row": b"b"}]
    assert t.scan(columns=["row", "x"]) == [{"row": b"a", "x": 1}]


def test_a_put_touches_the_groups_it_gives_columns_of() -> None:
    t = mixed_table()
    t.put({"row": b"a", "z": 1}, at(1))
    t.put({"row": b"b", "click:q": b"1"}, at(1))
    assert {record.group for record in t.history[A]} == {"right"}
    assert {record.group for record in t.history[B]} == {"events"}


def test_a_bare_key_makes_the_row_exist_in_the_first_columns_group() -> None:
    t = mixed_table()
    t.put({"row": b"a"}, at(1))
    assert t.get(A, columns=["x"]) == {"row": b"a", "x": None}
    assert t.get(A, columns=["z"]) is None
    t.erase(A, at(2))
    assert t.get(A) is None


def test_a_bare_key_changes_no_column() -> None:
    t = mixed_table()
    t.put({"row": b"a", "x": 1}, at(1))
    t.put({"row": b"a"}, at(2))
    assert t.get(A) == {"row": b"a", "x": 1, "y": None, "z": None}


def test_a_table_of_cells_alone_takes_no_bare_key() -> None:
    with pytest.raises(RequestError):
        cells_table().put({"row": b"a"}, at(1))


# --- replace -------------------------------------------------------------------------------------


def test_replace_fills_the_groups_given_and_erases_the_others() -> None:
    t = mixed_table()
    t.put({"row": b"a", "x": 1, "y": "one", "z": 1, "click:q": b"1"}, at(1))
    t.put({"row": b"a", "x": 2}, at(2), replace=True)
    assert t.get(A) == {"row": b"a", "x": 2, "y": None, "z": None}
    assert t.get(A, columns=["z"]) is None
    assert t.get(A, columns=["click"]) is None


def test_replace_keeps_the_cells_it_brings() -> None:
    t = mixed_table()
    t.put({"row": b"a", "x": 1, "click:q": b"1", "click:r": b"1"}, at(1))
    t.put({"row": b"a", "click:q": b"2"}, at(2), replace=True)
    assert t.get(A) == {"row": b"a", "x": None, "y": None, "z": None, "click:q": b"2"}
    assert t.get(A, columns=["x"]) is None


def test_replace_by_a_bare_key_leaves_a_row_of_nulls() -> None:
    t = mixed_table()
    t.put({"row": b"a", "x": 1, "z": 1, "click:q": b"1"}, at(1))
    t.put({"row": b"a"}, at(2), replace=True)
    assert t.get(A, columns=["x", "y"]) == {"row": b"a", "x": None, "y": None}
    assert t.get(A, columns=["z", "click"]) is None


def test_of_two_replacements_in_one_batch_the_last_is_all_that_is_left() -> None:
    t = mixed_table()
    t.put([{"row": b"a", "x": 1, "click:q": b"1"}, {"row": b"a", "z": 2}], at(1), replace=True)
    assert t.get(A) == {"row": b"a", "x": None, "y": None, "z": 2}


# --- conditions ----------------------------------------------------------------------------------


def test_if_absent_refuses_the_whole_batch_when_any_row_exists_in_any_group() -> None:
    t = mixed_table()
    t.put({"row": b"b", "click:q": b"1"}, at(1))
    with pytest.raises(Conflict):
        t.put([{"row": b"a", "x": 1}, {"row": b"b", "x": 1}], at(2), if_absent=True)
    assert t.get(A) is None
    t.erase(B, at(3))
    t.put([{"row": b"a", "x": 1}, {"row": b"b", "x": 1}], at(4), if_absent=True)
    assert len(t.scan()) == 2


def test_if_unchanged_since_counts_puts_erasures_and_range_erasures() -> None:
    t = columns_table()
    t.put({"row": b"a", "x": 1}, at(1))
    t.put({"row": b"a", "x": 2}, at(2), if_unchanged_since=at(1))
    with pytest.raises(Conflict):
        t.put({"row": b"a", "x": 3}, at(3), if_unchanged_since=at(1))
    t.erase(A, at(4))
    with pytest.raises(Conflict):
        t.put({"row": b"a", "x": 3}, at(5), if_unchanged_since=at(3))
    t.put({"row": b"a", "x": 3}, at(5), if_unchanged_since=at(4))
    t.erase_range(A, None, at(6))
    with pytest.raises(Conflict):
        t.put([{"row": b"0", "x": 4}, {"row": b"c", "x": 4}], at(7), if_unchanged_since=at(5))
    assert t.scan() == []


# --- read, change and write in one ---------------------------------------------------------------


def test_increment_counts_what_is_missing_as_zero() -> None:
    t = mixed_table()
    assert t.increment(A, "x", 2, at(1)) == 2
    assert t.increment(A, "x", -5, at(2)) == -3
    t.put({"row": b"a", "x": None}, at(3))
    assert t.increment(A, "x", 1, at(4)) == 1
    assert t.increment(A, "click:n", 7, at(5)) == 7
    assert t.increment(A, "click:n", -8, at(6)) == -1
    assert t.get(A) == {"row": b"a", "x": 1, "y": None, "z": None, "click:n": b"\xff" * 8}


def test_a_counter_has_eight_bytes() -> None:
    t = cells_table()
    t.put({"row": b"a", "click:n": b"12"}, at(1))
    with pytest.raises(RequestError):
        t.increment(A, "click:n", 1, at(2))
    assert decode_counter(encode_counter(-(2**63))) == -(2**63)


def test_append_counts_what_is_missing_as_empty() -> None:
    t = mixed_table()
    assert t.append(A, "y", "ab", at(1)) == "ab"
    assert t.append(A, "y", "c", at(2)) == "abc"
    assert t.append(A, "click:log", b"1", at(3)) == b"1"
    assert t.append(A, "click:log", b"2", at(4)) == b"12"


def test_transact_puts_what_the_function_makes_of_the_row() -> None:
    t = columns_table()
    t.transact(A, lambda row: None, at(1))
    assert t.latest_txn(A) == 0
    t.transact(A, lambda row: {"x": 1 if row is None else 0}, at(2))
    t.transact(A, lambda row: {"x": (row or {})["x"] + 1}, at(3))
    assert t.get(A) == {"row": b"a", "x": 2, "y": None}


# --- purge ---------------------------------------------------------------------------------------


def test_max_versions_counts_per_column() -> None:
    t = columns_table(max_versions=2)
    t.put({"row": b"a", "x": 1, "y": "one"}, at(1))
    for value in (2, 3):
        t.put({"row": b"a", "x": value}, at(value))
    (row,) = t.scan(versions=9)
    assert [version.value for version in row["x"]] == [3, 2]
    assert [version.value for version in row["y"]] == ["one"]


def test_max_versions_counts_cells_that_are_seen_only() -> None:
    t = cells_table(max_versions=2)
    t.put_cells([click(A, b"1", 1), click(A, b"2", 2), click(A, b"3", 3)], at(10))
    assert [version.value for version in t.scan(versions=9)[0]["click:q"]] == [b"3", b"2"]
    t.erase(A, at(11), columns=["click:q"])
    t.put_cells([click(A, b"0", 0)], at(12))
    assert [version.value for version in t.scan(versions=9)[0]["click:q"]] == [b"0"]


def test_max_age_is_measured_at_the_readers_moment() -> None:
    t = cells_table(max_age="10us")
    t.put_cells([click(A, b"1", 5)], at(6))
    assert t.get(A, as_of=at(15)) == {"row": b"a", "click:q": b"1"}
    assert t.get(A, as_of=at(16)) is None
    assert t.get(A, as_of=at(15)) is not None


def test_max_age_takes_columns_and_then_the_row() -> None:
    t = columns_table(max_age="10us")
    t.put({"row": b"a", "x": 1}, at(1))
    t.put({"row": b"a", "y": "one"}, at(5))
    assert t.get(A, as_of=at(11)) == {"row": b"a", "x": 1, "y": "one"}
    assert t.get(A, as_of=at(12)) == {"row": b"a", "x": None, "y": "one"}
    assert t.get(A, as_of=at(16)) is None


def test_joined_by_or_either_limit_is_enough() -> None:
    t = cells_table(max_versions=2, max_age="10us")
    t.put_cells([click(A, b"1", 1), click(A, b"2", 18), click(A, b"3", 19), click(A, b"4", 20)], at(20))
    assert [version.value for version in t.scan(versions=9)[0]["click:q"]] == [b"4", b"3"]
    assert [version.value for version in t.scan(versions=9, as_of=at(30))[0]["click:q"]] == [b"4"]


def test_joined_by_and_only_both_limits_together_purge() -> None:
    t = cells_table(max_versions=2, max_age="10us", purge_join="and")
    t.put_cells([click(A, b"1", 1), click(A, b"2", 18), click(A, b"3", 19), click(A, b"4", 20)], at(20))
    assert [version.value for version in t.scan(versions=9)[0]["click:q"]] == [b"4", b"3", b"2"]
    assert [version.value for version in t.scan(versions=9, as_of=at(99))[0]["click:q"]] == [b"4", b"3"]


def test_a_single_limit_decides_under_either_join() -> None:
    for join in ("and", "or"):
        t = cells_table(max_versions=1, purge_join=join)
        t.put_cells([click(A, b"1", 1), click(A, b"2", 2)], at(20))
        assert [version.value for version in t.scan(versions=9)[0]["click:q"]] == [b"2"]


def test_a_purged_row_counts_as_absent() -> None:
    t = cells_table(max_age="10us")
    t.put_cells([click(A, b"1", 5)], at(6))
    t.put({"row": b"a", "click:q": b"2"}, at(30), if_absent=True)
    assert t.get(A) == {"row": b"a", "click:q": b"2"}


# --- scans ---------------------------------------------------------------------------------------


def test_start_is_included_stop_is_not_and_reverse_turns_the_same_rows_around() -> None:
    t = columns_table()
    t.put([{"row": key, "x": 1} for key in (b"c", b"a", b"b", b"ab")], at(1))
    assert [row["row"] for row in t.scan()] == [b"a", b"ab", b"b", b"c"]
    assert [row["row"] for row in t.scan(A, C)] == [b"a", b"ab", b"b"]
    assert [row["row"] for row in t.scan(A, C, reverse=True)] == [b"b", b"ab", b"a"]
    assert [row["row"] for row in t.scan(A, C, reverse=True, limit=1)] == [b"b"]
    assert [row["row"] for row in t.scan(prefix=b"a")] == [b"a", b"ab"]
    assert t.scan(C, A) == []


def test_ends_may_be_prefixes_of_the_key() -> None:
    t = table(Group("main", columns={"x": "int64"}), key={"name": "string", "n": "int32"})
    t.put([{"name": name, "n": n, "x": 0} for name in ("a", "ab", "b") for n in (-1, 1)], at(1))
    assert [(row["name"], row["n"]) for row in t.scan(("ab",))] == [("ab", -1), ("ab", 1), ("b", -1), ("b", 1)]
    assert [(row["name"], row["n"]) for row in t.scan(None, ("ab",))] == [("a", -1), ("a", 1)]
    assert [(row["name"], row["n"]) for row in t.scan(prefix=("a",))] == [("a", -1), ("a", 1)]
    assert [(row["name"], row["n"]) for row in t.scan(("a", 0), ("b", 1))] == [
        ("a", 1),
        ("ab", -1),
        ("ab", 1),
        ("b", -1),
    ]


def test_limit_counts_after_the_filter_and_unknown_is_not_true() -> None:
    t = columns_table()
    t.put([{"row": bytes([65 + n]), "x": None if n == 2 else n} for n in range(5)], at(1))
    rows = t.scan(where=lambda row: None if row["x"] is None else row["x"] >= 1, limit=2)
    assert [row["x"] for row in rows] == [1, 3]


def test_get_many_answers_in_the_order_asked() -> None:
    t = columns_table()
    t.put([{"row": b"a", "x": 1}, {"row": b"b", "x": 2}], at(1))
    rows = t.get_many([B, C, A, B], columns=["x"])
    assert rows == [{"row": b"b", "x": 2}, None, {"row": b"a", "x": 1}, {"row": b"b", "x": 2}]


# --- the invariant -------------------------------------------------------------------------------


def test_an_answer_at_a_moment_never_changes() -> None:
    dice = random.Random(7)
    t = mixed_table()
    answers: dict[int, list[dict[str, Any]]] = {}
    for step in range(1, 120):
        txn = at(step)
        key = dice.choice([A, B, C])
        row = {"row": key[0]} | {name: dice.choice([None, 1]) for name in dice.sample(["x", "z"], dice.randint(0, 2))}
        match dice.randint(0, 5):
            case 0:
                t.erase(key, txn)
            case 1:
                t.erase(key, txn, columns=["x", "click:q"])
            case 2:
                t.erase_range(key, None, txn)
            case 3:
                t.put_cells([click(key, b"%d" % step, dice.randint(0, 5))], txn)
            case _:
                t.put(row, txn, replace=dice.random() < 0.3)
        answers[txn] = t.scan(versions=3, as_of=txn)
    assert len({str(answer) for answer in answers.values()}) > 50
    assert all(t.scan(versions=3, as_of=txn) == answer for txn, answer in answers.items())
    assert time_of(max(answers)) == 119
