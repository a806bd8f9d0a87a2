"""What tests of scans share: rows of Spark and of the engine made comparable, and a look at what Spark did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import ebla
from ebla.pipeline.spark.types import to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a plan is called in which tasks of Ebla merge rows.
MERGE = "EblaMerge"


def rows_of(table: pa.Table, key: tuple[str, ...]) -> list[str]:
    """Return rows in key order, as text, so that what is not a number equals itself. Cells of a row are sorted."""
    shown = []
    for row in table.to_pylist():
        plain = {
            name: sorted(value) if pa.types.is_map(table.schema.field(name).type) and value is not None else value
            for name, value in row.items()
        }
        shown.append((tuple(map(repr, (row[name] for name in key))), repr(plain)))
    return [text for _, text in sorted(shown)]


def assert_same_rows(frame: DataFrame, scan: Any, table: ebla.Table) -> None:
    """Fail unless a DataFrame has the columns and the rows of a scan."""
    expected = to_spark(scan.to_arrow())
    found = frame.toArrow()
    assert found.schema.names == expected.schema.names
    assert rows_of(found, table.key_names) == rows_of(expected, table.key_names)


def executed(frame: DataFrame) -> str:
    """Return the plan by which a DataFrame is executed, as text."""
    text: str = frame._jdf.queryExecution().executedPlan().toString()
    return text


def scanned_rows(frame: DataFrame) -> list[int]:
    """Collect a DataFrame and return how many rows each of its Parquet scans handed on, before any filter."""
    query = frame._jdf.queryExecution()
    query.executedPlan().executeCollect()
    plan = query.executedPlan()
    if plan.nodeName() == "AdaptiveSparkPlan":
        plan = plan.executedPlan()
    leaves = plan.collectLeaves()
    scans = [leaves.apply(at) for at in range(leaves.size())]
    return [scan.metrics().apply("numOutputRows").value() for scan in scans if "parquet" in scan.nodeName()]


def opened_files(frame: DataFrame) -> int:
    """Collect a DataFrame and return how many files its Parquet scans opened."""
    query = frame._jdf.queryExecution()
    query.executedPlan().executeCollect()
    plan = query.executedPlan()
    if plan.nodeName() == "AdaptiveSparkPlan":
        plan = plan.executedPlan()
    leaves = plan.collectLeaves()
    scans = [leaves.apply(at) for at in range(leaves.size())]
    return sum(scan.metrics().apply("numFiles").value() for scan in scans if "parquet" in scan.nodeName())
