"""Streams from table to table for tests: run until nothing is left, and made to forget that a batch was done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ebla
from ebla.pipeline import stream_into

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Copy", "same"]


class Copy:
    """A stream of all changes of one table into another."""

    def __init__(self, spark: SparkSession, source: str, target: str, checkpoint: Path, **options: str) -> None:
        self.spark = spark
        self.source, self.target, self.checkpoint = source, target, checkpoint
        self.options = {"since": "snapshot", "max_rows": "40", **options}

    def changes(self) -> DataFrame:
        return self.spark.readStream.format("ebla").option("root", self.source).options(**self.options).load("t")

    def start(self, *, by_function: bool = False, **trigger: Any) -> StreamingQuery:
        """Start the query; it writes by the sink, or by the function for foreachBatch."""
        writer = self.changes().writeStream.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(**(trigger or {"availableNow": True}))
        if by_function:
            return writer.foreachBatch(stream_into(self.target, "t")).start()
        return writer.format("ebla").option("root", self.target).start("t")

    def run(self, *, by_function: bool = False) -> int:
        """Run until all that is there now is there as well, and return how many batches there were."""
        query = self.start(by_function=by_function)
        query.awaitTermination()
        return len(query.recentProgress)

    def done(self) -> int:
        """Return the number of the newest batch that is written down as done."""
        return max(int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdecimal())

    def forget(self) -> int:
        """Forget that the newest batch was done, as a driver that dies at that moment does; return its number."""
        batch = self.done()
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return batch


def same(source: ebla.Table, target: ebla.Table) -> bool:
    """Whether two tables have the same rows."""
    return [dict(row) for row in source.scan()] == [dict(row) for row in target.scan()]
