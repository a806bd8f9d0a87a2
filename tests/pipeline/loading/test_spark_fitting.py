"""Rows of a DataFrame are fitted by Spark's workers as in the process: keys, partitions, order, rejects."""

from __future__ import annotations

import random
from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from pyspark.sql import SparkSession

import ebla
import ebla.pipeline
from ebla.direct.fragments import ROW
from ebla.model.keys import KeyCodec
from ebla.pipeline.loading.load_task import REASON, REJECTED
from ebla.pipeline.loading.spark_fitting import PARTITION, SEQUENCE, fitting_of
from ebla.pipeline.spark.types import spark_schema, to_spark
from ebla.settings import Settings

KEY = {"s": "string", "d": "date32", "n": "uint16", "f": "float64", "t": "timestamp[ms]", "z": "timestamp[us, tz=UTC]"}
MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 999_000), datetime(1970, 1, 1), datetime(2026, 3, 4, 5, 6, 7, 8_000)]


def keys(count: int) -> list[tuple[object, ...]]:
    dice = random.Random(7)
    return [
        (
            dice.choice(["", "a", "a\0", "a\0b", "ä", "𒀭", "z'\"\\`"]),
            date(1970, 1, 1) + timedelta(days=dice.choice([-1, 0, 1, 20_000])),
            dice.choice([0, 1, 65_535]),
            dice.choice([float("-inf"), -1.5, -0.0, 0.0, 2.5, float("inf"), float("nan")]),
            dice.choice(MOMENTS),
            dice.choice(MOMENTS).replace(tzinfo=UTC),
        )
        for _ in range(count)
    ]


def test_every_row_gets_its_partition_in_the_order_of_the_input(spark: SparkSession) -> None:
    schema = ebla.Schema(key=KEY, columns={}).number()
    codec = KeyCodec(schema.key)
    given = keys(300)
    encoded = [codec.encode(key) for key in given]
    # Whole keys, the first columns of some, which is what tablets begin with, and what is no key at all.
    cuts = sorted(
        {
            *random.Random(1).sample(encoded, 12),
            *(codec.bound(key[: n % 5 + 1]) for n, key in enumerate(given[:9])),
            b"a",
        }
    )
    cuts = [cut for cut in cuts if cut]
    table = pa.table(
        {
            name: pa.array(column, schema.key_types[at])
            for at, (name, column) in enumerate(zip(KEY, zip(*given, strict=True), strict=True))
        }
    )
    frame = spark.createDataFrame(to_spark(table), spark_schema(table.schema)).repartition(1)
    fitted = fitting_of(frame, schema, Settings().key_bytes_max).fitted(frame, cuts)
    found = fitted.orderBy(SEQUENCE).select(ROW, PARTITION).collect()
    rows = [bytes(row[ROW]) for row in found]
    assert sorted(rows) == sorted(encoded)
    assert [row[PARTITION] for row in found] == [bisect_right(cuts, row) for row in rows]
    assert sorted(encoded) == fitting_of(frame, schema, Settings().key_bytes_max).sample(frame, 1.0)


def test_rejects_are_behind_all_partitions_with_their_reason_and_as_they_came(spark: SparkSession) -> None:
    schema = ebla.Schema(key={"k": "uint8"}, columns={"n": "time32[s]"}).number()
    frame = spark.createDataFrame([(-1, "12:00:00"), (7, "noon"), (3, "00:00:02")], "k smallint, n string").coalesce(1)
    fitting = fitting_of(frame, schema, Settings().key_bytes_max)
    found = [row.asDict() for row in fitting.fitted(frame, [b"\x05"]).orderBy(ROW, SEQUENCE).collect()]
    assert [row[PARTITION] for row in found] == [2, 2, 0]
    assert {row[REJECTED]: row[REASON].partition(" of row")[0] for row in found[:2]} == {
        '{"k":-1,"n":"12:00:00"}': "key column 'k' is uint8 and does not take -1",
        '{"k":7,"n":"noon"}': "column 'n' is time32[s] and does not take noon",
    }
    assert (found[2]["c0"], found[2]["c1"], found[2][REASON]) == (3, 2, None)


def test_keys_that_are_none_of_the_table_are_left_out_of_the_sample(spark: SparkSession) -> None:
    schema = ebla.Schema(key={"k": "uint8"}, columns={}).number()
    frame = spark.createDataFrame([(-1,), (7,), (256,), (3,), (None,)], "k smallint")
    assert fitting_of(frame, schema, Settings().key_bytes_max).sample(frame, 1.0) == [b"\x03", b"\x07"]


def test_columns_without_a_type_and_nested_ones_arrive_as_they_are(spark: SparkSession, db: ebla.Database) -> None:
    table = db.create_table(
        "t",
        ebla.Schema(
            key={"k": "string"},
            columns={"n": "int32", "l": "list<int32>", "s": "struct<a: int64, b: list<string>>"},
            groups=[ebla.Group("cells", families=["tag"])],
        ),
    )
    frame = spark.sql("SELECT 'a' k, NULL n, array(1, 2) l, named_struct('a', 1L, 'b', array('x')) s, NULL `tag:x`")
    assert ebla.pipeline.load(db, "t", frame).rows == 1
    assert table.get("a") == {"k": "a", "n": None, "l": [1, 2], "s": {"a": 1, "b": ["x"]}}
