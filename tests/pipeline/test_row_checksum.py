"""The checksum of rows: the same in any order, another one for any other rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.pipeline.row_checksum import row_checksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_columns_that_spark_takes_for_the_same_count_one_by_one(spark: SparkSession) -> None:
    found = [
        row_checksum(spark.createDataFrame(rows, "a int, A int"))
        for rows in ([(1, 2), (3, None)], [(3, None), (1, 2)], [(2, 1), (3, None)], [(1, 2), (None, 3)])
    ]
    assert {count for count, _ in found} == {2}
    assert found[0] == found[1]
    assert len({checksum for _, checksum in found}) == 3
