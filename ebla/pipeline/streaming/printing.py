"""Changes of a table as JSON lines, as they come: what ``ebla changes`` prints when it follows a table.

    in this process   ChangeStream --> read_changes --> a line for each row --> the caller's hands --> StreamCheckpoint
    on Spark          readStream   --> foreachBatch --> a line for each row --> the caller's hands     Spark's own

A batch whose lines were printed, and that was not written down as done before the process died, is printed again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ebla.client.database import Database
from ebla.direct.clusters import forget_cluster
from ebla.direct.opens import forget
from ebla.direct.place import Place
from ebla.errors import RequestError
from ebla.pipeline.change_feed.changes import json_lines, read_changes
from ebla.pipeline.datasource.datasource_options import Address
from ebla.pipeline.spark.engine import SparkChoice, is_in_process, session_for
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.progress import JobProgress, Report
from ebla.pipeline.spark.spark_text import json_lines as lines_of
from ebla.pipeline.streaming.change_stream import ChangeStream
from ebla.pipeline.streaming.stream_checkpoint import StreamCheckpoint, is_of_spark
from ebla.pipeline.streaming.stream_offsets import Offset
from ebla.pipeline.streaming.stream_options import StreamReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["print_changes"]

FOLLOW_SECONDS = 1.0
# A table that is given out from its beginning is, in this process, given out by so many rows.
BATCH_ROWS = 100_000

Write = Callable[[str], None]


def print_changes(
    source: Database | str | os.PathLike[str],
    table: str,
    write: Write,
    *,
    since: str | None,
    checkpoint: Path,
    before: bool = False,
    columns: Sequence[str] | None = None,
    follow: bool = False,
    bytes_: int | None = None,
    spark: SparkChoice = None,
    progress: Report | None = None,
) -> None:
    """Give every change row to `write` as JSON: those that are there, or with `follow` all until it is interrupted.

    The first call with a checkpoint begins at `since`, later ones where the one before ended. It runs where `spark` and
    the size say, `bytes_` or so, unless the checkpoint was made elsewhere: then it goes on there.
    """
    own = StreamCheckpoint(checkpoint)
    if since is None and not is_of_spark(checkpoint) and not own.is_begun:
        raise RequestError(f"{checkpoint} is no checkpoint yet: say since when, or snapshot for all rows first")
    # A stream that goes on from its checkpoint does not ask where it began.
    options = {**Place.of(source).options, "since": since or "now", "before": str(before).lower()}
    if columns is not None:
        options["columns"] = json.dumps([*columns])
    if _is_here(own, checkpoint, bytes_, spark):
        _print_here(StreamReadOptions.of({**options, "table": table}), own, write, follow, progress)
    else:
        _print_on_spark(session_for(spark, "ebla changes"), options, table, checkpoint, write, follow, progress)


def _is_here(own: StreamCheckpoint, checkpoint: Path, bytes_: int | None, spark: SparkChoice) -> bool:
    """Tell whether a stream runs in this process; raise if the caller asks for another place than it began in."""
    if own.is_begun:
        if not is_in_process(spark, 0):
            raise RequestError(f"{checkpoint} was begun without Spark: go on without it, or take another checkpoint")
        return True
    if is_of_spark(checkpoint):
        if is_in_process(spark, None):
            raise RequestError(f"{checkpoint} was begun on Spark: go on with --spark, or take another checkpoint")
        return False
    return is_in_process(spark, bytes_)


def _print_here(
    options: StreamReadOptions, checkpoint: StreamCheckpoint, write: Write, follow: bool, progress: Report | None
) -> None:
    batches = rows = 0
    with contextlib.closing(ChangeStream(options)) as stream:
        at = checkpoint.read()
        if at is None:
            at = stream.begin()
            checkpoint.write(at)
            stream.done(at)  # it is written down, and history is held for it for long
        if not follow:
            stream.fix_end()
        while True:
            if progress is not None:
                progress(JobProgress(f"{batches:,} batches, {rows:,} rows"))
            ended = stream.next(at, rows_max=BATCH_ROWS)
            if ended is at:
                if not follow:
                    return
                time.sleep(FOLLOW_SECONDS)
                continue
            rows += _print_batch(stream, at, ended, options.address, write)
            batches += 1
            checkpoint.write(ended)
            stream.done(ended)
            at = ended


def _print_batch(stream: ChangeStream, began: Offset, ended: Offset, address: Address, write: Write) -> int:
    """Print the change rows between two offsets, and return how many there were."""
    rows = 0
    try:
        for portion in stream.portions(began, ended, 1):
            for batch in read_changes(portion):
                rows += batch.num_rows
                for line in lines_of(batch).to_pylist():
                    write(line)
    finally:
        # The store as it was opened, or captured, to be read for this batch.
        if address.cluster:
            forget_cluster(address.cluster)
        else:
            forget(address.root)
    return rows


def _print_on_spark(
    spark: SparkSession,
    options: dict[str, str],
    table: str,
    checkpoint: Path,
    write: Write,
    follow: bool,
    progress: Report | None,
) -> None:
    from ebla.pipeline.streaming.mirror import FOLLOW_TRIGGER, watched_query

    def each(frame: DataFrame, batch: int) -> None:
        del batch
        for line in json_lines(frame):
            write(line)

    with unwrapping():
        writer = spark.readStream.format("ebla").options(**options).load(table).writeStream.foreachBatch(each)
        writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
        writer = writer.trigger(processingTime=FOLLOW_TRIGGER) if follow else writer.trigger(availableNow=True)
        watched_query(writer.start(), progress)
