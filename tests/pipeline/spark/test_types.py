"""Types: every stored type goes to Spark and comes back, over Arrow and by Spark's own Parquet reader."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

import ebla
from ebla.pipeline.spark.types import (
    array_from_spark,
    array_to_spark,
    arrow_for_spark,
    is_native,
    spark_schema,
    spark_type,
    table_schema,
    to_spark,
)

MOMENT = datetime(1905, 3, 4, 5, 6, 7, 891_011)
WHOLE = datetime(1905, 3, 4, 5, 6, 7)

# A value of each type, and None beside it.
STORED: dict[str, tuple[pa.DataType, object]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), -128),
    "int16": (pa.int16(), -(1 << 15)),
    "int32": (pa.int32(), -(1 << 31)),
    "int64": (pa.int64(), -(1 << 63)),
    "uint8": (pa.uint8(), 255),
    "uint16": (pa.uint16(), 65_535),
    "uint32": (pa.uint32(), (1 << 32) - 1),
    "uint64": (pa.uint64(), (1 << 64) - 1),
    "float16": (pa.float16(), 1.5),
    "float32": (pa.float32(), -0.25),
    "float64": (pa.float64(), 1e300),
    "decimal_small": (pa.decimal128(9, 2), Decimal("-1234567.89")),
    "decimal_large": (pa.decimal128(38, 10), Decimal("1234567890123456789012345678.0123456789")),
    "decimal_256": (pa.decimal256(30, 2), Decimal("12345678901234567890.12")),
    "decimal_huge": (pa.decimal256(60, 2), Decimal("1234567890123456789012345678901234567890.12")),
    "string": (pa.string(), "żółw 𒀭"),
    "binary": (pa.binary(), b"\x00\xff"),
    "fixed": (pa.binary(4), b"\x00abc"),
    "date32": (pa.date32(), date(1, 1, 1)),
    "date64": (pa.date64(), date(1969, 12, 31)),
    "stamp_s": (pa.timestamp("s"), WHOLE),
    "stamp_ms": (pa.timestamp("ms"), MOMENT.replace(microsecond=891_000)),
    "stamp_us": (pa.timestamp("us"), MOMENT),
    "stamp_ns": (pa.timestamp("ns"), MOMENT),
    "zoned_s": (pa.timestamp("s", "UTC"), WHOLE.replace(tzinfo=UTC)),
    "zoned_us": (pa.timestamp("us", "Europe/Berlin"), MOMENT.replace(tzinfo=UTC)),
    "time_s": (pa.time32("s"), time(23, 59, 59)),
    "time_us": (pa.time64("us"), time(23, 59, 59, 999_999)),
    "duration_s": (pa.duration("s"), timedelta(days=-3, seconds=5)),
    "duration_us": (pa.duration("us"), timedelta(days=-3, microseconds=5)),
    "list": (pa.list_(pa.int32()), [1, None, 3]),
    "list_uint8": (pa.list_(pa.uint8()), [255, None]),
    "list_of_lists": (pa.list_(pa.list_(pa.string())), [["ä"], None, []]),
    "fixed_list": (pa.list_(pa.float32(), 2), [1.0, 2.0]),
    "struct": (pa.struct([("x", pa.uint16()), ("y", pa.list_(pa.string()))]), {"x": 65_535, "y": ["b"]}),
}


def stored_table() -> pa.Table:
    """A row of values between two of nulls, sliced out of more: offsets must not matter."""
    arrays = {
        name: pa.chunked_array([pa.array([value, None, value, None], type_).slice(1)])
        for name, (type_, value) in STORED.items()
    }
    return pa.table(arrays)


@pytest.mark.parametrize("name", STORED)
def test_every_type_comes_back_as_it_went(name: str) -> None:
    array = stored_table().column(name).chunk(0)
    there = array_to_spark(array)
    assert there.type == arrow_for_spark(array.type)
    there.validate(full=True)
    back = array_from_spark(there, array.type, "column")
    back.validate(full=True)
    assert back.equals(array)


def test_spark_takes_every_type_over_arrow_and_gives_it_back(spark: SparkSession) -> None:
    table = stored_table().take([0, 1, 2])  # PySpark cannot make a DataFrame of slices
    schema = spark_schema(table.schema)
    assert schema == spark.createDataFrame(to_spark(table), schema).schema

    def seen(batches):  # type: ignore[no-untyped-def]
        yield from batches

    back = spark.createDataFrame(to_spark(table), schema).coalesce(1).mapInArrow(seen, schema).toArrow()
    for name, (type_, _) in STORED.items():
        got = array_from_spark(back.column(name).combine_chunks(), type_, name)
        assert got.to_pylist() == table.column(name).to_pylist(), name


def test_sparks_parquet_reader_reads_native_types_from_fragments(spark: SparkSession, tmp_path: Path) -> None:
    native = {name: type_ for name, (type_, _) in STORED.items() if is_native(type_)}
    assert set(STORED) - set(native) == {"float16", "decimal_huge", "stamp_ns", "time_s", "time_us", "duration_s"}
    with ebla.open(tmp_path / "store") as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int32"}, columns=native))
        table.put([{"k": 1, **{name: STORED[name][1] for name in native}}, {"k": 2, **dict.fromkeys(native)}])
        table.flush()
        wanted = to_spark(table.scan(columns=["k", *native]).to_arrow())
    (fragment,) = (tmp_path / "store" / "fragments").rglob("*.parquet")
    inside = set(pq.read_schema(fragment).names)
    assert set(native) <= inside
    frame = spark.read.schema(spark_schema(wanted.schema)).parquet(str(fragment)).orderBy("k")
    got = frame.toArrow()
    for name in native:
        mine, theirs = wanted.column(name), got.column(name)
        assert theirs.to_pylist() == mine.to_pylist(), name


def test_nanoseconds_are_cut_off_towards_the_past() -> None:
    array = pa.array([-1, None, 1_999], pa.timestamp("ns"))
    assert array_to_spark(array).view(pa.int64()).to_pylist() == [-1, None, 1]


def test_moments_with_and_without_a_zone_are_two_types() -> None:
    assert spark_type(pa.timestamp("s", "Asia/Tokyo")) == TimestampType()
    assert spark_type(pa.timestamp("s")) == TimestampNTZType()


def test_a_value_that_does_not_fit_is_an_ebla_error() -> None:
    with pytest.raises(ebla.InvalidBatch, match="column 'n' is uint8"):
        array_from_spark(pa.array([256], pa.int16()), pa.uint8(), "column 'n'")
    with pytest.raises(ebla.InvalidBatch, match="column 'n'"):
        array_from_spark(pa.array([[1.0]]), pa.list_(pa.float64(), 2), "column 'n'")


# --- schemas -------------------------------------------------------------------------------------


def test_a_new_table_gets_typed_columns_and_families_of_cells(spark: SparkSession) -> None:
    rows = StructType.fromDDL(
        "day date, user string, age int, tags array<string>, at timestamp, naive timestamp_ntz, price decimal(10,2), "
        "`click:home` string, `click:away` binary, view map<string,binary>"
    )
    schema = table_schema(rows, ["user", "day"]).number()
    assert [(column.name, column.type) for column in schema.key] == [("user", pa.string()), ("day", pa.date32())]
    typed, cells = schema.groups
    assert {column.name: column.type for column in typed.columns} == {
        "age": pa.int32(),
        "tags": pa.list_(pa.string()),
        "at": pa.timestamp("us", "UTC"),
        "naive": pa.timestamp("us"),
        "price": pa.decimal128(10, 2),
    }
    assert [family.name for family in cells.families] == ["click", "view"]


@pytest.mark.parametrize(
    ("ddl", "key", "said"),
    [
        ("a int", ["b"], "key column 'b' is missing: the rows have a"),
        ("a int", [], "needs a key"),
        ("a int", ["a", "a"], "named twice"),
        ("a int, m map<string,int>", ["a"], "'m' is map<string,int>, which a table cannot hold"),
        ("a int, v variant", ["a"], "column 'v' is variant"),
        ("a decimal(10,2), b int", ["a"], "key column 'a' cannot be decimal128"),
    ],
)
def test_rows_that_make_no_table_are_refused(spark: SparkSession, ddl: str, key: list[str], said: str) -> None:
    with pytest.raises(ebla.RequestError, match=said.replace("(", r"\(")):
        table_schema(StructType.fromDDL(ddl), key).number()
