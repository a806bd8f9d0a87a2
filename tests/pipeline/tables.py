"""A table with everything in it, and ways to compare what Spark sees with what the engine says."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ebla
from ebla.pipeline.spark.types import to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING = ebla.Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        ebla.Group(
            "profile",
            columns={
                "name": "string",
                "age": "int32",
                "small": "uint16",
                "big": "uint64",
                "score": "float64",
                "price": "decimal128(12, 2)",
                "seen": "timestamp[us, tz=UTC]",
                "local": "timestamp[ms]",
                "fine": "timestamp[ns]",
                "at": "time32[s]",
                "took": "duration[ms]",
                "raw": "binary",
                "is_new": "bool",
                "tags": "list<string>",
                "place": "struct<x: float64, y: float64>",
            },
        ),
        ebla.Group("events", families=["click", "view"]),
        ebla.Group("rest", families=["*"]),
    ],
)

FULL_ROW: dict[str, Any] = {
    "name": "Ünï☃🎈",
    "age": -7,
    "small": 65_535,
    "big": 18_446_744_073_709_551_615,
    "score": 1.5,
    "price": Decimal("12345.67"),
    "seen": datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=UTC),
    "local": datetime(1969, 12, 31, 23, 59, 59, 1000),
    "fine": datetime(2026, 1, 31, 12, 30, 15, 123456),
    "at": time(23, 59, 58),
    "took": timedelta(days=1, milliseconds=5),
    "raw": b"\x00\xff",
    "is_new": True,
    "tags": ["a", None, "ß"],
    "place": {"x": 1.0, "y": None},
    "click:home": b"1",
    "click:": b"\x00",
    "view:x": b"2",
    "other:thing": b"3",
}


def fill(table: ebla.Table, rows: int = 40) -> None:
    """Full, partial, corrected and erased rows, in fragments and in memory."""
    days = [date(2026, 1, 1), date(2026, 1, 2)]
    table.put([{"user": f"u{n:03}", "day": day, "age": n, "name": f"n{n}"} for n in range(rows) for day in days])
    table.flush()
    table.put([{"user": f"u{n:03}", "day": days[0], **FULL_ROW} for n in range(0, rows, 3)])
    table.flush()
    table.erase_range("u005", "u008")
    table.erase(("u010", days[0]))
    table.put([{"user": "u006", "day": days[1], "name": None}, {"user": "zoë", "day": days[0], "click:late": b"9"}])


def rows_of(frame: DataFrame, key: tuple[str, ...] = ("user", "day")) -> list[dict[str, Any]]:
    """The rows of a DataFrame in the order of the key."""
    return sorted(frame.toArrow().to_pylist(), key=lambda row: tuple(row[name] for name in key))


def expected(table: ebla.Table, **arguments: Any) -> list[dict[str, Any]]:
    """The rows that the engine's own scan gives, in the types of Spark."""
    rows: list[dict[str, Any]] = to_spark(table.scan(**arguments).to_arrow()).to_pylist()
    return rows


def fragment_files(root: str, table: ebla.Table) -> set[str]:
    """The files that lie in the directory of a table, whether METADATA names them or not."""
    directory = Path(root) / "fragments" / table.stats()["id"]
    return {f"fragments/{directory.name}/{file.name}" for file in directory.glob("*")}


def register_watched(spark: SparkSession) -> None:
    """Make format("watched") known, whether workers can import these tests or not."""
    from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

    from tests.pipeline.streaming import watched_source

    register_pickle_by_value(watched_source)
    try:
        spark.dataSource.register(watched_source.WatchedSource)
    finally:
        unregister_pickle_by_value(watched_source)
