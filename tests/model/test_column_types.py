"""Types of columns: their names, the forms in which they are stored, and which are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ebla.errors import SchemaError
from ebla.model.column_types import is_key_type, parse_type


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
