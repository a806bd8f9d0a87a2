"""Replay: the log of a store that died with gigabytes of it unflushed, sorted into fragments on Spark.

    root --> owning (owning.py) --> LogReplay (log_replay.py) --> OnSpark: one task per portion of the log
                                               `--> METADATA, then the log is let go of

The small case, a log of megabytes, is what `ebla.open` does by itself, with the same code: replay.py of tablet/recovery
and serialize.py of tablet/upkeep.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from ebla.arguments import checked_callback, checked_path
from ebla.client.database import Database
from ebla.client.embedded.coordination_place import is_store, no_store
from ebla.client.embedded.owning import owning
from ebla.direct.log_replay import LogReplay, ReplaySummary, Sorters
from ebla.direct.log_sorting import ReplayTask, SortedPortion
from ebla.errors import RequestError
from ebla.pipeline.spark.failures import plain_errors, unwrapping
from ebla.pipeline.spark.progress import JobProgress, Report, watched
from ebla.pipeline.spark.session import active_session, session
from ebla.pipeline.spark.worker import acknowledge, settle_worker

__all__ = ["OnSpark", "ReplaySummary", "replay", "replay_with"]


def replay(
    root: str | os.PathLike[str],
    *,
    portions: int | None = None,
    spark: SparkSession | None = None,
    progress: Report | None = None,
) -> ReplaySummary:
    """Sort the log of a store that nobody has open into fragments, all of it or nothing; then let go of the log.

    The next `ebla.open` has nothing to replay, and reads what it would have read after a replay of its own. `portions`
    says into how many parts the log is divided; by default it follows from its size and the cores there are.

    Raises `StoreLocked` if a process has the store open for writing, `Corruption` with file and offset if the log is
    damaged and `MissingFile` if a segment is lost (nothing was changed), and `Conflict` if somebody else has flushed
    what was sorted: then run it again.
    """
    checked_callback("progress", progress)
    return replay_with(
        root, lambda: OnSpark(spark or active_session() or session(), progress), portions=portions, progress=progress
    )


def replay_with(
    root: str | os.PathLike[str],
    start: Callable[[], Sorters],
    *,
    portions: int | None = None,
    progress: Report | None = None,
) -> ReplaySummary:
    """Do what `replay` does; `start` is called when the store is ours and has something to sort."""
    began = time.monotonic()
    if isinstance(root, Database):
        raise RequestError("a replay is for a store that nobody has open: close this one, and give its directory")
    root = checked_path("the directory of a store", root)
    if portions is not None and (isinstance(portions, bool) or not isinstance(portions, int) or portions < 1):
        raise RequestError(f"portions is a number from 1 on, not {portions!r}")
    path = Path(root).absolute()
    if not is_store(path):
        raise no_store(path)
    on_commit = (lambda: None) if progress is None else partial(progress, JobProgress("committing"))
    with owning(path) as owned:
        summary = LogReplay(owned, str(path), on_commit).run(start, portions)
    return replace(summary, seconds=time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class OnSpark:
    """The tasks of a Spark session, one for each portion."""

    spark: SparkSession
    report: Report | None

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
        return self.spark.sparkContext.defaultParallelism

    def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
        """Sort all portions; the log goes to the tasks, and only what became of it comes back."""
        count = len(task.portions)
        with unwrapping(), watched(self.spark, f"ebla-replay-{uuid.uuid4()}", "sorting", self.report):
            # Only what reached the driver counts: one result per portion, whatever else attempts left behind.
            # A frame would be planned first, a tenth of a second in which no task runs, and there is nothing to plan.
            numbers = self.spark.sparkContext.parallelize(range(count), count)
            found = numbers.mapPartitions(partial(_attempt, task)).collect()
        return [msgspec.msgpack.decode(packed, type=SortedPortion) for packed in found]


def _attempt(task: ReplayTask, numbers: Iterable[int]) -> Iterator[bytes]:
    """Sort, in a task, the portions whose numbers Spark brings."""
    acknowledge()
    for number in numbers:
        with plain_errors():
            packed = msgspec.msgpack.encode(task.run(number))
        yield packed
    settle_worker()
