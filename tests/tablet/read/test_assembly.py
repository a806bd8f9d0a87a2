"""Projections: which columns a request names, what must be read for them, and how the answer is put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import RequestError, UnknownColumn
from ebla.model.declaration import Group, Schema
from ebla.model.projection import Projection, Version, spread
from ebla.storage.merge.merge import MergedCells, MergedColumns
from ebla.tablet.read.assembly import assemble, join_rows

SCHEMA = Schema(
    key={"user": "string"},
    groups=[
        Group("profile", columns={"name": "string", "age": "int64"}),
        Group("score", columns={"points": "int64"}, max_age="1d"),
        Group("events", families=["click", "view"]),
        Group("rest", families=["note", "*"]),
    ],
).number()
PROFILE, SCORE, EVENTS, REST = SCHEMA.groups
NAME, AGE = (column.id for column in PROFILE.columns)


def shape(columns: list[str] | None, versions: int = 1) -> list[tuple[str, str]]:
    return [(output.name, output.kind) for output in Projection.of(SCHEMA, columns, versions).outputs]


class TestNames:
    def test_everything_is_all_columns_all_families_and_the_rest(self) -> None:
        assert shape(None) == [
            ("name", "typed"),
            ("age", "typed"),
            ("points", "typed"),
            ("click", "family"),
            ("view", "family"),
            ("note", "family"),
            ("*", "wildcard"),
        ]

    @pytest.mark.parametrize(
        ("name", "output"),
        [
            ("age", ("age", "typed")),
            ("click", ("click", "family")),
            ("click:", ("click", "family")),
            ("click:home", ("click:home", "cell")),
            ("click:a:b", ("click:a:b", "cell")),
            ("other:", ("other", "family")),
            ("other:x", ("other:x", "cell")),
            ("bare", ("bare", "cell")),
        ],
    )
    def test_a_name_means_a_column_a_family_or_a_cell(self, name: str, output: tuple[str, str]) -> None:
        assert shape([name]) == [output]

    def test_key_columns_are_always_there_and_need_not_be_named(self) -> None:
        assert shape(["user", "age"]) == [("age", "typed")]
        assert Projection.of(SCHEMA, ["age"]).arrow_schema.names == ["user", "age"]

    def test_a_column_named_twice_comes_once(self) -> None:
        assert shape(["age", "name", "age", "click", "click:"]) == [
            ("age", "typed"),
            ("name", "typed"),
            ("click", "family"),
        ]

    def test_two_things_of_one_name_are_refused(self) -> None:
        with pytest.raises(RequestError, match="would be called 'foo'"):
            shape(["foo", "foo:"])

    def test_an_unknown_column_is_refused_with_what_there_is(self) -> None:
        narrow = Schema(key={"user": "string"}, columns={"age": "int64"}).number()
        with pytest.raises(UnknownColumn, match=r"no column 'agee': the table has age"):
            Projection.of(narrow, ["agee"])

    def test_columns_is_a_list_and_versions_a_number(self) -> None:
        with pytest.raises(RequestError, match=r"\['age'\]"):
            Projection.of(SCHEMA, "age")
        with pytest.raises(RequestError, match="at least 1"):
            Projection.of(SCHEMA, None, 0)


class TestWhatIsRead:
    def test_only_the_groups_of_the_columns_are_read(self) -> None:
        assert Projection.of(SCHEMA, ["age", "click:home"]).groups == (PROFILE, EVENTS)

    def test_the_key_alone_needs_all_groups_since_any_may_show_a_row(self) -> None:
        assert Projection.of(SCHEMA, ["user"]).groups == SCHEMA.groups

    def test_types_are_listed_by_field_id(self) -> None:
        assert Projection.of(SCHEMA, ["age"]).types == {PROFILE.id: {AGE: pa.int64()}}

    def test_cells_are_narrowed_to_families_and_qualifiers(self) -> None:
        def wanted(*columns: str) -> Any:
            return Projection.of(SCHEMA, columns).wanted_cells(EVENTS)

        assert wanted("click:a", "click:b") == {"click": {"a", "b"}}
        assert wanted("click:a", "view") == {"click": {"a"}, "view": None}
        assert wanted("click:a", "click") == {"click": None}
        assert wanted("click", "click:a") == {"click": None}
        assert Projection.of(SCHEMA).wanted_cells(REST) is None
        assert Projection.of(SCHEMA, []).wanted_cells(EVENTS) is None

    def test_plain_is_what_needs_no_merge_for_a_single_row(self) -> None:
        assert Projection.of(SCHEMA, ["age"]).plain
        assert not Projection.of(SCHEMA, ["age"], 2).plain
        assert not Projection.of(SCHEMA, ["click"]).plain
        assert not Projection.of(SCHEMA, ["points"]).plain  # it may have expired


def merged_cells(*lines: tuple[str, str, str, int, bytes]) -> MergedCells:
    """Cells as a merge gives them: (row, family, qualifier, txn, value), sorted, newest first."""
    rows = list(dict.fromkeys(line[0].encode() for line in lines))
    return MergedCells(
        rows=pa.array(rows, pa.binary()),
        row_of=np.array([rows.index(line[0].encode()) for line in lines], dtype=np.int64),
        family=pa.array([line[1] for line in lines], pa.string()),
        qualifier=pa.array([line[2] for line in lines], pa.string()),
        timestamp=pa.array([line[3] for line in lines], pa.int64()),
        txn=pa.array([line[3] << 10 for line in lines], pa.int64()),
        value=pa.array([line[4] for line in lines], pa.binary()),
    )


def assembled(projection: Projection, parts: dict[int, MergedColumns | MergedCells]) -> list[dict[str, Any]]:
    rows, places = join_rows([part.rows for part in parts.values()])
    placed = {group: (part, place) for (group, part), place in zip(parts.items(), places, strict=True)}
    batch = assemble(projection, [rows.cast(pa.string())], rows, placed)
    assert batch.schema == projection.arrow_schema
    batch.validate(full=True)
    return batch.to_pylist()


class TestAnswers:
    def test_groups_are_joined_on_the_row_and_what_one_lacks_is_null(self) -> None:
        projection = Projection.of(SCHEMA, ["age", "points"])
        answer = assembled(
            projection,
            {
                PROFILE.id: MergedColumns(pa.array([b"a", b"c"], pa.binary()), {AGE: pa.array([1, 3])}),
                SCORE.id: MergedColumns(pa.array([b"b", b"c"], pa.binary()), {SCORE.columns[0].id: pa.array([20, 30])}),
            },
        )
        assert answer == [
            {"user": "a", "age": 1, "points": None},
            {"user": "b", "age": None, "points": 20},
            {"user": "c", "age": 3, "points": 30},
        ]

    def test_a_family_is_a_map_and_a_cell_a_column(self) -> None:
        projection = Projection.of(SCHEMA, ["click", "view:x"])
        cells = merged_cells(
            ("a", "click", "home", 1, b"1"),
            ("a", "click", "top", 1, b"2"),
            ("a", "view", "x", 1, b"3"),
            ("b", "view", "y", 1, b"4"),
        )
        assert assembled(projection, {EVENTS.id: cells}) == [
            {"user": "a", "click": [("home", b"1"), ("top", b"2")], "view:x": b"3"},
            {"user": "b", "click": [], "view:x": None},
        ]

    def test_the_rest_is_a_map_by_full_name_without_the_families_that_have_one(self) -> None:
        projection = Projection.of(SCHEMA)
        cells = merged_cells(("a", "", "bare", 1, b"1"), ("a", "note", "n", 1, b"2"), ("a", "other", "x", 1, b"3"))
        nothing = pa.array([], pa.binary())
        columns = {
            group.id: MergedColumns(nothing, {c.id: pa.array([], c.type) for c in group.columns})
            for group in (PROFILE, SCORE)
        }
        (row,) = assembled(projection, {**columns, EVENTS.id: merged_cells(), REST.id: cells})
        assert row["*"] == [("bare", b"1"), ("other:x", b"3")]
        assert row["note"] == [("n", b"2")]
        assert spread(row, projection) == {
            "user": "a",
            "name": None,
            "age": None,
            "points": None,
            "note:n": b"2",
            "bare": b"1",
            "other:x": b"3",
        }

    def test_versions_of_a_cell_stand_together_newest_first(self) -> None:
        projection = Projection.of(SCHEMA, ["click", "click:home"], versions=3)
        cells = merged_cells(
            ("a", "click", "home", 3, b"new"),
            ("a", "click", "home", 1, b"old"),
            ("a", "click", "top", 2, b"x"),
            ("b", "click", "home", 1, b"y"),
        )
        first, second = (spread(row, projection) for row in assembled(projection, {EVENTS.id: cells}))
        assert [(v.value, v.txn >> 10) for v in first["click:home"]] == [(b"new", 3), (b"old", 1)]
        assert [v.value for v in first["click:top"]] == [b"x"]
        assert isinstance(second["click:home"][0], Version)
        assert second["click:home"][0].timestamp.timestamp() is not None

    def test_a_null_column_is_shown_and_a_missing_cell_is_not(self) -> None:
        projection = Projection.of(SCHEMA, ["age", "click:home", "click"])
        row = {"user": "a", "age": None, "click:home": None, "click": None}
        assert spread(row, projection) == {"user": "a", "age": None}


@given(st.lists(st.sets(st.sampled_from([b"", b"a", b"b", b"12345678x", b"12345678y"])), min_size=1, max_size=4))
def test_joined_rows_are_the_union_and_every_part_finds_its_own(parts: list[set[bytes]]) -> None:
    arrays = [pa.array(sorted(part), pa.binary()) for part in parts]
    rows, places = join_rows(arrays)
    assert rows.to_pylist() == sorted(set().union(*parts))
    for array, place in zip(arrays, places, strict=True):
        assert rows.take(pa.array(place)).to_pylist() == array.to_pylist()
