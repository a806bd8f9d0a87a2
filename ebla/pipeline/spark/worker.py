"""What a task does for the Python worker that it runs in: it gets its numbers without delay, and leaves it settled.

    frame of numbers --> mapInArrow(run)       def run(batches):
                                                   for number in numbers_of(batches):  # portions, by their numbers
                                                       yield ...

Spark tells a worker what to do in small pieces, over TCP. The second piece is held back until the first one is
acknowledged, which a machine does late, for it hopes to send the acknowledgement along with something: 40 ms, in which
a small task would be done. So a task acknowledges what it has got before it asks for more.

When a task is done, Spark has the worker collect garbage. What was loaded so far stays for good, and to go over it each
time would take longer than a small task does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

__all__ = ["acknowledge", "numbers_of", "settle_worker"]

_DESCRIPTORS = Path("/proc/self/fd")
_settled: set[int] = set()


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
