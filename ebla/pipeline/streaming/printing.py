"""Changes of a table as JSON lines, as they come: what ``ebla changes`` prints when it follows a table.

    readStream --> foreachBatch --> a line for each row --> the caller's hands

A batch whose lines were printed, and that was not written down as done before the process died, is printed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ebla.errors import RequestError
from ebla.pipeline.change_feed.changes import json_lines
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.progress import JobProgress
from ebla.pipeline.streaming.mirror import FOLLOW_TRIGGER, StreamSummary, watched_query

__all__ = ["print_changes"]


def print_changes(
    root: str | os.PathLike[str],
    table: str,
    write: Callable[[str], None],
    *,
    since: str | None,
    checkpoint: Path,
    before: bool = False,
    columns: Sequence[str] | None = None,
    follow: bool = False,
    spark: SparkSession,
    progress: Callable[[JobProgress], None] | None = None,
) -> StreamSummary:
    """Give every change row to `write` as JSON: those that are there, or with `follow` all until it is interrupted.

    The first call with a checkpoint begins at `since`, later ones where the one before ended.
    """
    if since is None and not (checkpoint / "offsets").is_dir():
        raise RequestError(f"{checkpoint} is no checkpoint yet: say since when, or snapshot for all rows first")
    # A query that goes on from its checkpoint does not ask where it began.
    options = {"root": os.fspath(root), "since": since or "now", "before": str(before).lower()}
    if columns is not None:
        options["columns"] = json.dumps([*columns])

    def each(frame: DataFrame, batch: int) -> None:
        del batch
        for line in json_lines(frame):
            write(line)

    with unwrapping():
        writer = spark.readStream.format("ebla").options(**options).load(table).writeStream.foreachBatch(each)
        writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
        writer = writer.trigger(processingTime=FOLLOW_TRIGGER) if follow else writer.trigger(availableNow=True)
        return watched_query(writer.start(), progress)
