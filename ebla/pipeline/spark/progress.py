"""How far a job on Spark is: asked of Spark's own book-keeping, now and then, by a thread beside the job.

    with watched(spark, "load-7", "writing", report):   the jobs that are started in this block, by this thread
        frame.collect()                          report(JobProgress("writing", 3, 16)) a few times a second

If the block is left by an exception, such as an interruption from the keyboard, what still runs is cancelled, and for a
while waited for: tasks that write on would leave files behind those who clean up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

__all__ = ["JobProgress", "Report", "watched"]

PERIOD_SECONDS = 0.2
SETTLE_SECONDS_MAX = 20.0
SETTLE_PERIOD_SECONDS = 0.05
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a job is: what it is at, and how many of the tasks known so far are done."""

    phase: str
    tasks_done: int = 0
    tasks: int = 0


Report = Callable[[JobProgress], None]


@contextlib.contextmanager
def watched(spark: SparkSession, group: str, phase: str, report: Report | None) -> Iterator[None]:
    """Name the Spark jobs of this block, report how far they are, and cancel them if the block fails."""
    context = spark.sparkContext
    former = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_DESCRIPTION, f"ebla: {phase}")
    stopped = threading.Event()
    watcher = None
    if report is not None:
        report(JobProgress(phase))
        watcher = threading.Thread(target=_watch, args=(spark, group, phase, report, stopped), daemon=True)
        watcher.start()
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            context.cancelJobGroup(group)
            _settle(context.statusTracker(), group)
        raise
    finally:
        stopped.set()
        if watcher is not None:
            watcher.join()
        for name, value in former.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]


def _settle(tracker: StatusTracker, group: str) -> None:
    """Wait until no task of a group runs any more, but not for ever."""
    end = time.monotonic() + SETTLE_SECONDS_MAX
    pause = threading.Event()
    while time.monotonic() < end:
        stages = [tracker.getStageInfo(stage) for stage in _stages(tracker, group)]
        if not any(stage.numActiveTasks for stage in stages if stage is not None):
            return
        pause.wait(SETTLE_PERIOD_SECONDS)


def _watch(spark: SparkSession, group: str, phase: str, report: Report, stopped: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    last = None
    while not stopped.wait(PERIOD_SECONDS):
        with contextlib.suppress(Exception):  # a job is not held up by those who watch it
            now = _progress(tracker, group, phase)
            if now != last and now.tasks:
                report(now)
                last = now


def _progress(tracker: StatusTracker, group: str, phase: str) -> JobProgress:
    done = total = 0
    for stage in _stages(tracker, group):
        found = tracker.getStageInfo(stage)
        if found is not None:
            done += found.numCompletedTasks
            total += found.numTasks
    return JobProgress(phase, done, total)


def _stages(tracker: StatusTracker, group: str) -> Iterator[int]:
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        yield from info.stageIds if info is not None else ()
