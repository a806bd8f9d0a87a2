"""Admission: what a client sends becomes sorted records per group, two entries for one thing becoming one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.errors import InvalidBatch
from ebla.model.batch import PutBatch
from ebla.model.declaration import Group, Schema
from ebla.model.keys import KeyCodec
from ebla.model.ranges import ALL, KeyRange
from ebla.storage.record.records import TIMESTAMP_MAX
from ebla.tablet.write.admission import Admission
from ebla.tablet.write.cell_records import AT_COMMIT, distinct_few_cells, distinct_many_cells
from ebla.tablet.write.mutation import GroupRecords, Mutation, erase_range

SCHEMA = Schema(
    key={"user": "string"},
    groups=[
        Group("profile", columns={"name": "string", "age": "int64"}),
        Group("score", columns={"points": "int64"}),
        Group("events", families=["click", "view"]),
        Group("rest", families=["*"]),
    ],
).number()
PROFILE, SCORE, EVENTS, REST = (group.id for group in SCHEMA.groups)
NAME, AGE = (column.id for column in SCHEMA.groups[0].columns)
POINTS = SCHEMA.groups[1].columns[0].id
ADMISSION = Admission(SCHEMA, KeyCodec(SCHEMA.key))
NOW = 1_000


def columns(**given: Any) -> PutBatch:
    types = {"user": pa.string(), "name": pa.string(), "age": pa.int64(), "points": pa.int64(), "_set": pa.string()}
    return PutBatch(columns=pa.record_batch({name: pa.array(values, types[name]) for name, values in given.items()}))


def cells(*lines: tuple[Any, ...]) -> PutBatch:
    names = {"user": pa.string(), "family": pa.string(), "qualifier": pa.string(), "value": pa.binary()}
    arrays = {name: pa.array([line[at] for line in lines], kind) for at, (name, kind) in enumerate(names.items())}
    if any(len(line) > 4 for line in lines):
        arrays["timestamp"] = pa.array([line[4] if len(line) > 4 else None for line in lines], pa.int64())
    return PutBatch(cells=pa.record_batch(arrays))


def records(mutation: Mutation, group: int) -> list[dict[str, Any]]:
    part = mutation.groups[group]
    stamped = part.stamped(NOW)
    assert part.schema_bytes == part.records.schema.serialize().to_pybytes()
    assert stamped.schema.equals(part.records.schema)
    return stamped.to_pylist()


def listed_cells(mutation: Mutation, group: int) -> list[tuple[Any, ...]]:
    return [
        (r["_row"], r["family"], r["qualifier"], r["_ts"], bool(r.get("_erased")), r["value"])
        for r in records(mutation, group)
    ]


class TestColumns:
    def test_rows_are_sorted_and_columns_divided_among_groups_by_id(self) -> None:
        mutation = ADMISSION.put(columns(user=["b", "a"], name=["B", "A"], points=[2, 1]))
        assert mutation.rows.to_pylist() == [b"a", b"b"]
        assert set(mutation.groups) == {PROFILE, SCORE}
        assert records(mutation, PROFILE) == [{"_row": b"a", str(NAME): "A"}, {"_row": b"b", str(NAME): "B"}]
        assert records(mutation, SCORE) == [{"_row": b"a", str(POINTS): 1}, {"_row": b"b", str(POINTS): 2}]

    def test_of_two_rows_with_one_key_the_last_wins(self) -> None:
        mutation = ADMISSION.put(columns(user=["a", "b", "a"], age=[1, 2, 3]))
        assert mutation.rows.to_pylist() == [b"a", b"b"]
        assert records(mutation, PROFILE) == [{"_row": b"a", str(AGE): 3}, {"_row": b"b", str(AGE): 2}]
        assert mutation.groups[PROFILE].unique

    def test_rows_that_set_different_columns_say_which(self) -> None:
        mutation = ADMISSION.put(
            columns(user=["a", "b"], name=["A", None], age=[None, 2], _set=[str(NAME), f"{NAME} {AGE}"])
        )
        assert records(mutation, PROFILE) == [
            {"_row": b"a", "_set": str(NAME), str(NAME): "A", str(AGE): None},
            {"_row": b"b", "_set": None, str(NAME): None, str(AGE): 2},
        ]

    def test_two_partial_rows_with_one_key_become_one_column_by_column(self) -> None:
        mutation = ADMISSION.put(
            columns(
                user=["a", "a", "a"],
                name=["one", None, None],
                age=[1, 2, None],
                points=[None, None, 9],
                _set=[f"{NAME} {AGE}", str(AGE), str(POINTS)],
            )
        )
        assert records(mutation, PROFILE) == [{"_row": b"a", "_set": None, str(NAME): "one", str(AGE): 2}]
        assert records(mutation, SCORE) == [{"_row": b"a", str(POINTS): 9}]

    def test_a_group_gets_only_the_rows_that_set_something_in_it(self) -> None:
        mutation = ADMISSION.put(
            columns(user=["a", "b"], age=[1, None], points=[None, 2], _set=[str(AGE), str(POINTS)])
        )
        assert records(mutation, PROFILE) == [{"_row": b"a", str(AGE): 1}]
        assert records(mutation, SCORE) == [{"_row": b"b", str(POINTS): 2}]

    def test_a_row_that_sets_nothing_is_made_to_exist_in_the_first_columns_group(self) -> None:
        mutation = ADMISSION.put(columns(user=["a"], _set=[""]))
        assert records(mutation, PROFILE) == [{"_row": b"a", "_set": ""}]
        assert set(mutation.groups) == {PROFILE}

    def test_nothing_is_an_empty_mutation(self) -> None:
        assert ADMISSION.put(PutBatch()).is_empty
        assert ADMISSION.put(columns(user=[], age=[])).is_empty


# Rows of (key, {column: value or None}); a missing column is not set.
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.dictionaries(st.sampled_from(["name", "age", "points"]), st.none() | st.integers(0, 5), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@given(ROWS)
@settings(deadline=None)
def test_any_batch_of_partial_rows_becomes_the_columns_that_a_loop_would_set(
    rows: list[tuple[str, dict[str, Any]]],
) -> None:
    ids = {"name": NAME, "age": AGE, "points": POINTS}
    value = lambda name, v: str(v) if name == "name" and v is not None else v  # noqa: E731
    batch = columns(
        user=[key for key, _ in rows],
        **{name: [value(name, row.get(name)) for _, row in rows] for name in ids},
        _set=[" ".join(str(ids[name]) for name in row) for _, row in rows],
    )
    mutation = ADMISSION.put(batch)
    expected: dict[tuple[str, int], Any] = {}
    for key, row in rows:
        expected.update({(key, ids[name]): value(name, v) for name, v in row.items()})
    found: dict[tuple[str, int], Any] = {}
    shown: set[str] = set()
    for part in mutation.groups.values():
        keys = part.records.column("_row").to_pylist()
        assert keys == sorted(set(keys))
        for record in part.records.to_pylist():
            key = record.pop("_row").decode()
            shown.add(key)
            named = record.pop("_set", None)
            sets = set(record) if named is None else set(named.split())
            found.update({(key, int(i)): record[i] for i in sets})
    assert found == expected
    assert mutation.rows.to_pylist() == sorted({key.encode() for key, _ in rows})
    assert shown == {key for key, _ in rows}


class TestCells:
    def test_cells_go_to_the_group_of_their_family(self) -> None:
        mutation = ADMISSION.put(cells(("a", "click", "x", b"1"), ("a", "other", "y", b"2"), ("a", "", "z", b"3")))
        assert listed_cells(mutation, EVENTS) == [(b"a", "click", "x", NOW, False, b"1")]
        assert listed_cells(mutation, REST) == [
            (b"a", "", "z", NOW, False, b"3"),
            (b"a", "other", "y", NOW, False, b"2"),
        ]
        assert mutation.rows.to_pylist() == [b"a"]

    def test_a_family_that_no_group_takes_is_refused(self) -> None:
        narrow = Schema(key={"user": "string"}, groups=[Group("events", families=["click"])]).number()
        with pytest.raises(InvalidBatch, match="no group takes the family 'view'"):
            Admission(narrow, KeyCodec(narrow.key)).put(cells(("a", "view", "x", b"1")))

    def test_of_two_cells_for_one_place_and_time_the_last_wins(self) -> None:
        mutation = ADMISSION.put(
            cells(("a", "click", "x", b"1", 5), ("a", "click", "x", b"2", 5), ("a", "click", "x", b"3", 4))
        )
        assert listed_cells(mutation, EVENTS) == [
            (b"a", "click", "x", 5, False, b"2"),
            (b"a", "click", "x", 4, False, b"3"),
        ]
        assert not mutation.groups[EVENTS].unique

    def test_a_cell_without_a_timestamp_gets_that_of_the_commit(self) -> None:
        mutation = ADMISSION.put(cells(("a", "click", "x", b"1"), ("a", "click", "x", b"2")))
        assert mutation.groups[EVENTS].stamps_at_commit
        assert AT_COMMIT in mutation.groups[EVENTS].records.column("_ts").to_pylist()
        assert listed_cells(mutation, EVENTS) == [(b"a", "click", "x", NOW, False, b"2")]

    def test_versions_are_sorted_again_once_the_time_of_the_commit_is_known(self) -> None:
        mutation = ADMISSION.put(
            cells(("a", "click", "x", b"old", 1), ("a", "click", "x", b"now"), ("a", "click", "x", b"future", NOW + 1))
        )
        assert [cell[5] for cell in listed_cells(mutation, EVENTS)] == [b"future", b"now", b"old"]

    def test_a_batch_with_all_timestamps_is_left_as_it_is(self) -> None:
        part = ADMISSION.put(cells(("a", "click", "x", b"1", 7))).groups[EVENTS]
        assert not part.stamps_at_commit
        assert part.stamped(NOW) is part.records

    def test_columns_and_cells_of_one_put_touch_each_row_once(self) -> None:
        both = PutBatch(
            columns(user=["b", "a"], age=[1, 2]).columns,
            cells(("c", "click", "x", b"1"), ("b", "click", "x", b"1")).cells,
        )
        assert ADMISSION.put(both).rows.to_pylist() == [b"a", b"b", b"c"]


class TestReplace:
    def test_what_a_replaced_row_does_not_give_is_set_to_null_or_erased(self) -> None:
        mutation = ADMISSION.put(columns(user=["a"], age=[1]), replace=True)
        assert records(mutation, PROFILE) == [{"_row": b"a", str(NAME): None, str(AGE): 1}]
        assert records(mutation, SCORE) == [{"_row": b"a", "_erased": True}]
        for group in (EVENTS, REST):
            assert listed_cells(mutation, group) == [(b"a", None, None, TIMESTAMP_MAX, True, None)]

    def test_the_cells_that_a_replaced_row_gives_stand_behind_the_erasure_of_the_others(self) -> None:
        both = PutBatch(columns(user=["a"], age=[1]).columns, cells(("a", "click", "x", b"1")).cells)
        mutation = ADMISSION.put(both, replace=True)
        assert listed_cells(mutation, EVENTS) == [
            (b"a", None, None, TIMESTAMP_MAX, True, None),
            (b"a", "click", "x", NOW, False, b"1"),
        ]

    def test_a_row_with_nothing_but_cells_has_its_columns_erased(self) -> None:
        mutation = ADMISSION.put(cells(("a", "click", "x", b"1")), replace=True)
        assert records(mutation, PROFILE) == [{"_row": b"a", "_erased": True}]

    def test_rows_with_and_without_columns_may_be_replaced_together(self) -> None:
        both = PutBatch(columns(user=["b"], age=[1]).columns, cells(("a", "click", "x", b"1")).cells)
        mutation = ADMISSION.put(both, replace=True)
        assert [(r["_row"], bool(r.get("_erased")), r[str(AGE)]) for r in records(mutation, PROFILE)] == [
            (b"a", True, None),
            (b"b", False, 1),
        ]


class TestErase:
    def erase(self, *names: str, rows: tuple[bytes, ...] = (b"b", b"a", b"b")) -> Mutation:
        targets = [SCHEMA.resolve(name) for name in names] if names else None
        return ADMISSION.erase(pa.array(rows, pa.binary()), targets)

    def test_a_whole_row_is_erased_in_every_group(self) -> None:
        mutation = self.erase()
        assert mutation.rows.to_pylist() == [b"a", b"b"]
        for group in (PROFILE, SCORE):
            assert records(mutation, group) == [{"_row": b"a", "_erased": True}, {"_row": b"b", "_erased": True}]
        assert listed_cells(mutation, EVENTS) == [
            (b"a", None, None, TIMESTAMP_MAX, True, None),
            (b"b", None, None, TIMESTAMP_MAX, True, None),
        ]

    def test_an_erased_column_is_set_to_null_and_no_other_group_is_touched(self) -> None:
        mutation = self.erase("age", "name", rows=(b"a",))
        assert set(mutation.groups) == {PROFILE}
        assert records(mutation, PROFILE) == [{"_row": b"a", str(NAME): None, str(AGE): None}]

    def test_cells_and_families_are_erased_by_marks(self) -> None:
        mutation = self.erase("click:home", "view", rows=(b"a",))
        assert set(mutation.groups) == {EVENTS}
        assert listed_cells(mutation, EVENTS) == [
            (b"a", "click", "home", TIMESTAMP_MAX, True, None),
            (b"a", "view", None, TIMESTAMP_MAX, True, None),
        ]

    def test_a_mark_named_twice_stands_once(self) -> None:
        assert len(listed_cells(self.erase("click:home", "click:home", rows=(b"a",)), EVENTS)) == 1

    def test_a_range_is_erased_by_one_mark_and_touches_no_row_by_name(self) -> None:
        mutation = erase_range(KeyRange(b"a", b"b"))
        assert mutation.ranges == (KeyRange(b"a", b"b"),)
        assert not mutation.groups
        assert len(mutation.rows) == 0
        assert not erase_range(ALL).is_empty
        assert erase_range(KeyRange(b"b", b"a")).is_empty


def test_the_size_of_a_mutation_is_that_of_its_records() -> None:
    small = ADMISSION.put(columns(user=["a"], name=["x"]))
    large = ADMISSION.put(columns(user=["a"], name=["x" * 10_000]))
    assert large.bytes > small.bytes + 9_000
    assert erase_range(ALL).bytes > 0
    assert isinstance(large.groups[PROFILE], GroupRecords)


NAMES_OR_NONE = st.sampled_from([None, "", "a", "b", "ä", "\U0001f600"])
CELLS = st.tuples(
    st.sampled_from([b"", b"a", b"a\0", b"b"]),
    NAMES_OR_NONE,
    NAMES_OR_NONE,
    st.sampled_from([-(1 << 63), -1, 0, 7, AT_COMMIT, TIMESTAMP_MAX]),
)


@given(st.lists(CELLS, min_size=1, max_size=12))
@settings(deadline=None, max_examples=300)
def test_few_cells_are_put_in_the_order_of_many(given: list[Any]) -> None:
    kinds = {"_row": pa.binary(), "family": pa.string(), "qualifier": pa.string(), "_ts": pa.int64()}
    arrays = [pa.array([cell[at] for cell in given], kind) for at, kind in enumerate(kinds.values())]
    arrays.append(pa.array([b"%d" % number for number in range(len(given))], pa.binary()))
    records = pa.RecordBatch.from_arrays(arrays, names=[*kinds, "value"])
    few, few_unique = distinct_few_cells(records)
    many, many_unique = distinct_many_cells(records)
    assert few.equals(many)
    assert few_unique == many_unique
