"""Schemas: what can be declared, what is refused and why, and what a name means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import SchemaError, UnknownColumn
from ebla.model.schema import (
    Group,
    Schema,
    TableSchema,
    check_table_name,
    decode_hook,
    encode_hook,
    is_key_type,
    parse_age,
    parse_type,
)

TOO_LONG = (1e18, 10**400, float("inf"), float("nan"), "9999999999999w", "9" * 400 + "s", timedelta.max)

# --- types ---------------------------------------------------------------------------------------


class TestTypes:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("int32", pa.int32()),
            ("  string ", pa.string()),
            ("bool", pa.bool_()),
            ("double", pa.float64()),
            ("date32", pa.date32()),
            ("timestamp[us]", pa.timestamp("us")),
            ("timestamp[ms, tz=Europe/Zurich]", pa.timestamp("ms", "Europe/Zurich")),
            ("decimal128(10, 2)", pa.decimal128(10, 2)),
            ("decimal(5,0)", pa.decimal128(5, 0)),
            ("list<float64>", pa.list_(pa.float64())),
            ("list<item: string>", pa.list_(pa.string())),
            ("struct<x: int32, y: list<string>>", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
            ("list<struct<a: decimal(4, 1)>>", pa.list_(pa.struct([("a", pa.decimal128(4, 1))]))),
            ("decimal32(9, 2)", pa.decimal32(9, 2)),
            ("decimal64(18, 2)", pa.decimal64(18, 2)),
            ("decimal256(76, 2)", pa.decimal256(76, 2)),
            ("fixed_size_binary[16]", pa.binary(16)),
            ("fixed_size_list<item: float>[8]", pa.list_(pa.float32(), 8)),
            ("fixed_size_list<fixed_size_list<list<int8>>[2]>[3]", pa.list_(pa.list_(pa.list_(pa.int8()), 2), 3)),
            ("timestamp[ns, tz=+05:30]", pa.timestamp("ns", "+05:30")),
        ],
    )
    def test_a_type_is_known_by_its_name(self, text: str, kind: pa.DataType) -> None:
        assert parse_type(text) == kind
        assert parse_type(kind) == kind

    @pytest.mark.parametrize(
        ("given", "stored"),
        [
            (pa.large_string(), pa.string()),
            (pa.string_view(), pa.string()),
            (pa.large_binary(), pa.binary()),
            (pa.dictionary(pa.int8(), pa.string()), pa.string()),
            (pa.large_list(pa.large_string()), pa.list_(pa.string())),
            (pa.list_view(pa.int8()), pa.list_(pa.int8())),
            (pa.list_(pa.dictionary(pa.int8(), pa.string()), 2), pa.list_(pa.string(), 2)),
            (pa.struct([pa.field("x", pa.large_binary(), nullable=False)]), pa.struct([("x", pa.binary())])),
        ],
    )
    def test_forms_of_one_type_are_stored_as_the_plain_one(self, given: pa.DataType, stored: pa.DataType) -> None:
        assert parse_type(given) == stored

    @pytest.mark.parametrize(
        "given",
        [
            pa.null(),
            pa.map_(pa.string(), pa.int8()),
            pa.list_(pa.null()),
            pa.list_(pa.map_(pa.string(), pa.int8()), 1),
            pa.month_day_nano_interval(),
            pa.uuid(),
            pa.struct([]),
            pa.struct([("x", pa.int8()), ("x", pa.int8())]),
            pa.decimal128(10, -2),
            pa.binary(0),
            pa.list_(pa.int8(), 0),
            pa.sparse_union([pa.field("x", pa.int8())]),
        ],
        ids=str,
    )
    def test_a_type_that_log_memory_and_files_cannot_all_hold_is_refused(self, given: pa.DataType) -> None:
        with pytest.raises(SchemaError, match="cannot be of type"):
            parse_type(given)

    @pytest.mark.parametrize(
        "given", ["struct<x: int8, x: int8>", "list<struct<x: int8, x: int8>>", "fixed_size_list<int8>[0]"]
    )
    def test_a_name_is_refused_if_its_type_is(self, given: str) -> None:
        with pytest.raises(SchemaError, match="cannot be of type"):
            parse_type(given)

    @pytest.mark.parametrize("given", ["timestamp[us, tz=Nowhere/Town]", pa.list_(pa.timestamp("s", "Nowhere/Town"))])
    def test_a_time_zone_that_is_not_known_is_refused(self, given: Any) -> None:
        with pytest.raises(SchemaError, match="no time zone 'Nowhere/Town'"):
            parse_type(given)

    @pytest.mark.parametrize(
        "given",
        [
            "",
            "integer",
            "list<>",
            "struct<x>",
            "decimal128(50, 2)",
            "decimal32(10, 2)",
            "timestamp[min]",
            "list<int8>[3]",
            "fixed_size_list<int8>",
            7,
            None,
            int,
        ],
    )
    def test_what_names_no_type_is_refused(self, given: Any) -> None:
        with pytest.raises(SchemaError, match=r"unknown type|an Arrow type or its name"):
            parse_type(given)

    @pytest.mark.parametrize(
        "given",
        ["map<string, int64>", "map<string,list<int32>>", "list<map<string, int64>>", pa.map_(pa.string(), pa.int64())],
    )
    def test_a_map_is_refused_with_what_to_use_instead(self, given: Any) -> None:
        with pytest.raises(
            SchemaError,
            match=r"cannot be of type map<.*: for a map .* families, .* list<struct<key: string, value: int64>>",
        ):
            parse_type(given)

    def test_a_key_has_types_whose_order_can_be_kept_in_bytes(self) -> None:
        for good in ("bool", "int8", "uint64", "float32", "string", "binary", "date64", "timestamp[ns]", "time32[s]"):
            assert is_key_type(parse_type(good))
        for bad in ("float16", "decimal128(5, 2)", "list<int8>", "duration[s]", "struct<x: int8>"):
            assert not is_key_type(parse_type(bad))


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


# --- declarations --------------------------------------------------------------------------------


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
    (Schema(groups=[Group("a", columns=["n"])]), "columns maps names to types"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", families=5)]), "families is a list of names"),  # type: ignore[arg-type]
    (Schema(groups=[Group("a", columns={"half \ud800": "int8"})]), "surrogate"),
    (Schema(groups=Group("a", families=["f"])), "groups is a list"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_schema_that_cannot_be_is_refused_with_the_reason(schema: Schema, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        schema.number()


# --- names ---------------------------------------------------------------------------------------


class TestResolve:
    SCHEMA = Schema(
        groups=[
            Group("typed", columns={"name": "string", "odd:name": "int8"}),
            Group("events", families=["click"]),
            Group("rest", families=["*"]),
        ]
    ).number()
    NARROW = Schema(groups=[Group("events", families=["click"])]).number()

    @pytest.mark.parametrize(
        ("name", "group", "family", "qualifier"),
        [
            ("click:home", "events", "click", "home"),
            ("click:a:b", "events", "click", "a:b"),
            ("click", "events", "click", None),
            ("click:", "events", "click", None),
            ("other:x", "rest", "other", "x"),
            ("other:", "rest", "other", None),
            ("bare", "rest", "", "bare"),
        ],
    )
    def test_a_name_is_a_cell_or_a_family(self, name: str, group: str, family: str, qualifier: str | None) -> None:
        target = self.SCHEMA.resolve(name)
        assert (target.group.name, target.family, target.qualifier) == (group, family, qualifier)
        assert target.column is None

    def test_a_declared_column_comes_first_even_with_a_colon_in_its_name(self) -> None:
        for name in ("name", "odd:name"):
            target = self.SCHEMA.resolve(name)
            assert target.column is not None
            assert target.column.name == name
            assert target.group.name == "typed"

    @pytest.mark.parametrize("name", ["bare", "view:x", "view", "*", ""])
    def test_without_a_wildcard_only_declared_families_are_known(self, name: str) -> None:
        with pytest.raises(UnknownColumn, match=r"the table has click:\*"):
            self.NARROW.resolve(name)

    def test_a_long_list_of_columns_is_cut_in_messages(self) -> None:
        wide = Schema(columns={f"c{n}": "int8" for n in range(30)}).number()
        assert wide.describe_columns().endswith("c19, ...")


# --- storing -------------------------------------------------------------------------------------

KINDS = st.sampled_from(["int8", "string", "timestamp[s, tz=UTC]", "list<struct<x: decimal(5, 2)>>", "date64"])
GROUPS = st.one_of(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), KINDS, min_size=1).map(lambda c: Group("g", columns=c)),
    st.just(Group("g", families=["*", "f"], max_versions=2, max_age="1h", in_memory=True)),
)


@given(GROUPS)
def test_a_numbered_schema_is_stored_and_read_back(group: Group) -> None:
    schema = Schema(key={"k1": "string", "k2": "timestamp[ns]"}, groups=[group]).number()
    stored = msgspec.msgpack.encode(schema, enc_hook=encode_hook)
    assert msgspec.msgpack.decode(stored, type=TableSchema, dec_hook=decode_hook) == schema


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
