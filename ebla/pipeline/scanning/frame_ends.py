"""What frames held is let go once no temporary view of the session shows it any more.

    frame, and all that is derived from it, gone in Python --> is it in a view? --no--> let go
                                                                   |
                                                                   `--yes--> asked again now and then

A view lives in Spark's JVM, by a name, and knows nothing of the Python object that it was made of. Frames end while
memory is cleared, where nothing may be waited for: a thread asks Spark.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ebla.direct.holding import Holding
from ebla.pipeline.spark.plan_anchors import Anchored

__all__ = ["FrameEnd", "check_views"]

CHECK_SECONDS = 15.0

_ended: queue.SimpleQueue[FrameEnd | threading.Event] = queue.SimpleQueue()
_start = threading.Lock()
_thread: threading.Thread | None = None  # guarded by _start


class FrameEnd:
    """What a frame holds, for when it ends."""

    def __init__(self, spark: SparkSession, holding: Holding) -> None:
        self._session = spark._jsparkSession
        self._jvm: Any = spark.sparkContext._jvm
        self._holding = holding
        self._references: tuple[Any, ...] = ()
        _begin()

    def of(self, frame: DataFrame) -> None:
        """Take note of what a frame reads from."""
        self._references = Anchored.of(self._jvm, frame).references

    def tell(self) -> None:
        """The frame is gone, and so is all that was derived from it. Waits for nothing and takes no lock."""
        _ended.put(self)

    @property
    def is_shown(self) -> bool:
        """Whether a temporary view reads what the frame read."""
        try:
            return any(
                reference.refersTo(relation) for relation in _relations(self._session) for reference in self._references
            )
        except Exception:  # the session, or all of Spark, has ended
            return False

    def let_go(self) -> None:
        """Let go of what is held."""
        self._holding.release()


def check_views() -> None:
    """Ask now, and wait until that is done."""
    done = threading.Event()
    _begin()
    _ended.put(done)
    done.wait()


def _relations(session: Any) -> Iterator[Any]:
    """Yield what temporary views of a session read from."""
    catalog = session.sessionState().catalog()
    globals_ = catalog.globalTempViewManager().listViewNames("*")
    names = catalog.getTempViewNames()
    views = [catalog.getRawTempView(names.apply(at)) for at in range(names.size())]
    views += [catalog.getRawGlobalTempView(globals_.apply(at)) for at in range(globals_.size())]
    for view in views:
        if view.isEmpty() or view.get().plan().isEmpty():
            continue
        leaves = view.get().plan().get().collectLeaves()
        for at in range(leaves.size()):
            if leaves.apply(at).getClass().getSimpleName() == "LogicalRelation":
                yield leaves.apply(at).relation()


def _begin() -> None:
    global _thread
    with _start:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="ebla-frame-ends", daemon=True)
            _thread.start()


def _run() -> None:
    shown: list[FrameEnd] = []
    while True:
        waiting: list[threading.Event] = []
        try:
            told = _ended.get(timeout=CHECK_SECONDS if shown else None)
            if isinstance(told, threading.Event):
                waiting.append(told)
            else:
                shown.append(told)
        except queue.Empty:
            pass
        still = [end for end in shown if end._references and end.is_shown]
        for end in shown:
            if end not in still:
                end.let_go()
        shown = still
        for event in waiting:
            event.set()
