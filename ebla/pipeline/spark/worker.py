"""What a task does for the Python worker that it runs in: it gets its numbers without delay, and leaves it settled.

    frame of numbers --> mapInArrow(run)       def run(batches):
                                                   for number in numbers_of(batches):  # portions, by their numbers
                                                       yield ...

Spark tells a worker what to do in small pieces, over TCP. The second piece is held back until the first one is
acknowledged, which a machine does late, for it hopes to send the acknowledgement along with something: 40 ms, in which
a small task would be done. So a task acknowledges what it has got before it asks for more.

Spark starts Python when the first task needs it, and that task waits: a second or more. `start_workers` has it started
while a job is still being planned.

When a task is done, Spark has the worker collect garbage. What was loaded so far stays for good, and to go over it each
time would take longer than a small task does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["acknowledge", "numbers_of", "settle_worker", "start_workers"]

_DESCRIPTORS = Path("/proc/self/fd")
_settled: set[int] = set()


_started: set[str] = set()  # applications of Spark; adding to a set is one step


def start_workers(spark: SparkSession) -> threading.Thread | None:
    """Have Spark start Python on the driver's side, beside whatever the caller goes on to do; once for all sessions."""
    application = spark.sparkContext.applicationId
    if application in _started:
        return None
    _started.add(application)
    thread = threading.Thread(target=_start, args=(spark,), name="ebla-start-workers", daemon=True)
    thread.start()
    return thread


def _start(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):  # whoever needs a worker says why there is none
        spark.range(0, 1, 1, 1).mapInArrow(_nothing, "id long").collect()


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (batch.slice(0, 0) for batch in batches)
    settle_worker()


def numbers_of(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers that Spark brings to a task, its only column. Call it in tasks alone."""
    acknowledge()
    for batch in batches:
        yield from batch.column(0).to_pylist()
    settle_worker()


def acknowledge() -> None:
    """Acknowledge at once what has come through the connections of this process; elsewhere than on Linux, nothing."""
    quick = getattr(socket, "TCP_QUICKACK", None)
    # To look at a connection would make it one with that timeout.
    if quick is None or socket.getdefaulttimeout() is not None or not _DESCRIPTORS.is_dir():
        return
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # closed meanwhile, or not what it seemed to be
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
                        connection.setsockopt(socket.IPPROTO_TCP, quick, 1)


def settle_worker() -> None:
    """Spare a Python worker of Spark the look at all of its modules after every task. Call it in tasks alone."""
    if os.getpid() not in _settled:
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()
