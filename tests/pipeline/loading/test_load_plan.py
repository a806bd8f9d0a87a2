"""How a load divides its work: decided from sizes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ebla
from ebla.model.keys import KeyCodec
from ebla.pipeline.loading.load_plan import count_partitions, input_bytes, sample_fraction, tablet_keys
from ebla.settings import MIB


@pytest.mark.parametrize(
    ("bytes_", "given", "wanted"),
    [
        (None, None, 4),
        (0, None, 1),
        (8 * MIB, None, 1),
        (9 * MIB, None, 4),
        (1_000 * MIB, None, 16),
        (1_000 * MIB, 3, 3),
        (1 << 50, None, 10_000),
    ],
)
def test_partitions_are_as_many_as_cores_or_as_bytes_ask_for(
    bytes_: int | None, given: int | None, wanted: int
) -> None:
    assert count_partitions(bytes_, 4, given) == wanted


def test_a_sample_is_small_for_large_inputs_and_whole_for_small_ones() -> None:
    assert sample_fraction(1_000, 4) == 1.0
    assert 0 < sample_fraction(100_000 * MIB, 1_600) < 0.01
    assert sample_fraction(None, 4) == 0.01


def test_a_large_new_table_is_cut_at_keys_of_the_sample() -> None:
    schema = ebla.Schema(key={"k": "string", "n": "int32"}, columns={}).number()
    codec = KeyCodec(schema.key)
    sample = [codec.encode((f"k{number:03}", number)) for number in range(100)]
    assert tablet_keys(1_000 * MIB, schema.key, sample) == []
    assert tablet_keys(None, schema.key, sample) == []
    assert tablet_keys(2_048 * MIB, schema.key, sample) == [("k025", 25), ("k050", 50), ("k075", 75)]


def test_spark_knows_the_size_of_files_and_not_of_everything(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1_000).write.parquet(str(tmp_path / "in"))
    size = input_bytes(spark.read.parquet(str(tmp_path / "in")))
    assert size is not None
    assert 1_000 < size < 1_000_000
    assert input_bytes(spark.sparkContext.parallelize([(1,)]).toDF(["n"])) is None
