"""Declarations: what can be declared, and what is refused and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from ebla.errors import SchemaError
from ebla.model.declaration import Group, Schema, check_table_name, parse_age

TOO_LONG = (1e18, 10**400, float("inf"), float("nan"), "9999999999999w", "9" * 400 + "s", timedelta.max)


class TestAges:
    @pytest.mark.parametrize(
        ("age", "microseconds"),
        [
            ("5us", 5),
            ("250ms", 250_000),
            ("45s", 45_000_000),
            ("15 m", 900_000_000),
            ("1.5h", 5_400_000_000),
            ("30d", 30 * 86_400_000_000),
            ("2w", 14 * 86_400_000_000),
            (timedelta(seconds=1, microseconds=1), 1_000_001),
            (2, 2_000_000),
            (0.5, 500_000),
        ],
    )
    def test_an_age_is_text_a_timedelta_or_seconds(self, age: Any, microseconds: int) -> None:
        assert parse_age(age) == microseconds

    @pytest.mark.parametrize("age", ["", "30", "d", "-5s", "5 years", 0, -1, timedelta(0), True, None, [1], *TOO_LONG])
    def test_other_ages_are_refused(self, age: Any) -> None:
        with pytest.raises(SchemaError, match="an age"):
            parse_age(age)


class TestTableNames:
    @pytest.mark.parametrize("name", ["users", "a", "A.b-c_9", "x" * 128, "meta"])
    def test_letters_digits_and_three_signs_make_a_name(self, name: str) -> None:
        assert check_table_name(name) == name

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x" * 129, ".", "..", "META", "sys.x", None, 7, "a\n"])
    def test_others_are_refused(self, name: Any) -> None:
        with pytest.raises(SchemaError, match="table"):
            check_table_name(name)


class TestNumbering:
    def test_everything_gets_an_id_of_its_own(self) -> None:
        schema = Schema(
            key={"user": "string", "day": "date32"},
            groups=[Group("profile", columns={"name": "string"}), Group("events", families=["click", "*"])],
        ).number()
        ids = [column.id for column in schema.key]
        for group in schema.groups:
            ids += [column.id for column in group.columns] + [family.id for family in group.families] + [group.id]
        assert ids == list(range(1, len(ids) + 1))
        assert schema.next_id == len(ids) + 1
        assert schema.version == 1

    def test_a_schema_of_columns_alone_is_one_group(self) -> None:
        schema = Schema(columns={"n": "int64"}).number()
        assert [(group.name, group.layout) for group in schema.groups] == [("default", "columns")]
        assert schema.key_names == ("row",)
        assert schema.key_types == (pa.binary(),)

    def test_columns_and_groups_may_be_given_together(self) -> None:
        schema = Schema(columns={"n": "int64"}, groups=[Group("more", families=["f"])]).number()
        assert [group.name for group in schema.groups] == ["default", "more"]

    def test_the_policies_of_a_group_are_kept(self) -> None:
        given = Group("g", families=["f"], compression="zstd", block_bytes=4096, max_versions=3, max_age="1d")
        group = Schema(groups=[given]).number().groups[0]
        assert (group.compression, group.block_bytes, group.max_versions) == ("zstd", 4096, 3)
        assert (group.max_age_microseconds, group.purge_join, group.in_memory) == (86_400_000_000, "or", False)
        assert group.is_cells
        assert not group.is_wildcard

    def test_a_single_string_or_binary_is_a_simple_key(self) -> None:
        def simple(**key: str) -> bool:
            return Schema(key=key, columns={"n": "int8"}).number().has_simple_key

        assert simple(k="string")
        assert simple(k="binary")
        assert not simple(k="int64")
        assert not simple(k="string", day="date32")


REFUSED: list[tuple[Schema, str]] = [
    (Schema(), "at least one group"),
    (Schema(key={}, columns={"n": "int8"}), "key needs at least one column"),
    (Schema(key={"k": "list<int8>"}, columns={"n": "int8"}), "key column 'k' cannot be"),
    (Schema(key={"k": "float16"}, columns={"n": "int8"}), "key column 'k' cannot be"),
    (Schema(key={"n": "int8"}, columns={"n": "int8"}), "'n' stands both in the key and in group 'default'"),
    (Schema(key={"family": "string"}, groups=[Group("g", families=["*"])]), "name is taken"),
    (Schema(columns={"_n": "int8"}), "begin with '_'"),
    (Schema(columns={"": "int8"}), "needs a name"),
    (Schema(columns={"n" * 256: "int8"}), "at most 255 bytes"),
    (Schema(groups=[Group("g", columns={"n": "int8"}, families=["f"])]), "either columns or families"),
    (Schema(groups=[Group("g")]), "either columns or families"),
    (Schema(groups=[Group("g", families=[])]), "lists no family"),
    (Schema(groups=[Group("g", families="click")]), r"\['click'\]"),
    (Schema(groups=[Group("g", families=["a:b"])]), "no ':'"),
    (Schema(groups=[Group("a", columns={"n": "int8"}), Group("b", columns={"n": "int8"})]), "'n' stands both"),
    (Schema(groups=[Group("a", families=["f"]), Group("b", families=["f"])]), "'f' stands both"),
    (Schema(groups=[Group("a", columns={"f": "int8"}), Group("b", families=["f"])]), "'f' stands both"),
    (Schema(groups=[Group("a", families=["*"]), Group("b", families=["*"])]), r"at most one group .* '\*'"),
    (Schema(groups=[Group("a", families=["f"]), Group("a", families=["g"])]), "same name"),
    (Schema(groups=[Group("a", families=["f"], compression="gzip")]), "compression is one of"),
    (Schema(groups=[Group("a", families=["f"], purge_join="xor")]), "purge_join"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", families=["f"], max_versions=0)]), "max_versions is at least 1"),
    (Schema(groups=[Group("a", families=["f"], max_versions=1 << 63)]), "max_versions is at least 1, or 'all'"),
    (Schema(groups=[Group("a", families=["f"], block_bytes=10)]), "block_bytes is at least"),
    (Schema(groups=[Group("a", families=["f"], block_bytes=2048.5)]), "whole number, not 2048.5"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", families=["f"], block_bytes="1k")]), "whole number, not '1k'"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", families=["f"], block_bytes=1 << 70)]), "at most 1073741824"),
    (Schema(groups=[Group("a", families=["f"], in_memory="no")]), "in_memory is True or False"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", families=["f"], lookup_at_once=1)]), "lookup_at_once is True or False"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", columns=["n"])]), "columns maps names to types"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", families=5)]), "families is a list of names"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", columns={"half \ud800": "int8"})]), "surrogate"),
    (Schema(groups=Group("a", families=["f"])), "groups is a list"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_schema_that_cannot_be_is_refused_with_the_reason(schema: Schema, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        schema.number()


class TestVersionsKept:
    @staticmethod
    def kept(**options: Any) -> int | None:
        return Schema(groups=[Group("g", **options)]).number().groups[0].max_versions

    def test_a_columns_group_without_a_policy_keeps_one_version(self) -> None:
        assert self.kept(columns={"a": "int64"}) == 1
        assert Schema(columns={"a": "int64"}).number().groups[0].max_versions == 1

    def test_a_cells_group_without_a_policy_keeps_all(self) -> None:
        assert self.kept(families=["f"]) is None

    def test_all_versions_can_be_asked_for(self) -> None:
        assert self.kept(columns={"a": "int64"}, max_versions="all") is None
        assert self.kept(families=["f"], max_versions="all") is None

    def test_a_policy_by_age_alone_is_taken_as_it_is(self) -> None:
        assert self.kept(columns={"a": "int64"}, max_age="1h") is None
        assert self.kept(columns={"a": "int64"}, max_age="1h", purge_join="and") is None

    @pytest.mark.parametrize("wrong", [0, -1, "many", True, 1.5])
    def test_anything_else_is_refused(self, wrong: Any) -> None:
        with pytest.raises(SchemaError, match="max_versions is at least 1, or 'all'"):
            self.kept(columns={"a": "int64"}, max_versions=wrong)
