"""Where the tasks of a job run: in this process, or on Spark. A job is written once, against `Engine`.

    engine = choose_engine(spark, bytes_, "load")     spark: what the caller of a job said; bytes_: how much it reads
    results = engine.run(task, portions, ...)         task(portion) -> result, for each portion once, in their order

| the caller says             | Spark is installed                                      | it is not      |
|-----------------------------|---------------------------------------------------------|----------------|
| `spark=None`, nothing       | in the process up to `IN_PROCESS_BYTES_MAX`, else Spark | in the process |
| `spark=False`               | in the process                                          | in the process |
| `spark=True`, or a session  | Spark                                                   | `MissingExtra` |

The command line says it by a `SparkStart`: one of the first three, and how a session is started if it comes to that.

A task is a function of a plain value that reads and writes files by itself, and returns a small result: it can be sent
elsewhere, and be run again if it fails there. In the process a few run at once, on threads, for most of their work is
Arrow's, which lets others run meanwhile; the memory of a job is that of so many tasks, whatever the size of its data.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from ebla.errors import RequestError
from ebla.extras import needing
from ebla.pipeline.spark.progress import JobProgress, Report
from ebla.settings import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["IN_PROCESS_BYTES_MAX", "Engine", "InProcess", "SparkChoice", "SparkStart", "choose_engine"]

# A job that reads more than this goes to Spark, if that is there: to start it takes some seconds, in which one process
# does about so much.
IN_PROCESS_BYTES_MAX = 256 * MIB
THREADS_MAX = 4


@dataclass(frozen=True, slots=True)
class SparkStart:
    """Whether a job is to run on Spark (None: as its size suggests), and how a session is started if there is none."""

    wanted: bool | None = None
    master: str = "local[*]"
    app_name: str = "ebla"
    log_level: str = "ERROR"


SparkChoice: TypeAlias = "SparkSession | SparkStart | bool | None"
Portion = TypeVar("Portion")
Result = TypeVar("Result")


class Engine(Protocol):
    """Runs the tasks of a job."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
        ...

    def run(
        self,
        task: Callable[[Portion], Result],
        portions: Sequence[Portion],
        *,
        group: str,
        phase: str,
        report: Report | None,
    ) -> list[Result]:
        """Run the task once for every portion, and return the results in the order of the portions.

        `group` is a name for these tasks that no others have. An error of a task is raised as it was; then no other
        task of the group runs any more.
        """
        ...


def choose_engine(spark: SparkChoice, bytes_: int | None, what: str) -> Engine:
    """Return where a job that reads about so many bytes runs (None: nobody knows); `what` names it in errors.

    Where no session was given, it is the running one, or a new one.
    """
    if is_in_process(spark, bytes_):
        return InProcess(min(THREADS_MAX, os.cpu_count() or 1))
    with needing("pyspark", what):
        from ebla.pipeline.spark.spark_engine import OnSpark
    return OnSpark(session_for(spark, what))


def session_for(spark: SparkChoice, what: str) -> SparkSession:
    """Return the session that was given, the one that runs, or a new one; `what` needs it."""
    with needing("pyspark", what):
        from ebla.pipeline.spark.session import session
    if isinstance(spark, SparkStart):
        return session(spark.master, spark.app_name, log_level=spark.log_level)
    if spark is None or isinstance(spark, bool):
        return session()
    _check_session(spark)
    return spark


def is_in_process(spark: SparkChoice, bytes_: int | None) -> bool:
    """Tell whether a job of so many bytes runs in this process, as the caller said or as its size suggests."""
    if isinstance(spark, SparkStart):
        spark = spark.wanted
    if isinstance(spark, bool):
        return not spark
    if spark is not None:
        _check_session(spark)
        return False
    return not is_spark_installed() or (bytes_ is not None and bytes_ <= IN_PROCESS_BYTES_MAX)


def _check_session(spark: object) -> None:
    if not hasattr(spark, "sparkContext"):
        raise RequestError(
            f"spark is a SparkSession with its driver in this process, True or False, not {type(spark).__name__}"
        )


def is_spark_installed() -> bool:
    """Tell whether jobs can run on Spark here."""
    try:
        return importlib.util.find_spec("pyspark") is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class InProcess:
    """Tasks on threads of this process."""

    parallelism: int = 1

    def run(
        self,
        task: Callable[[Portion], Result],
        portions: Sequence[Portion],
        *,
        group: str,
        phase: str,
        report: Report | None,
    ) -> list[Result]:
        """Run the task once for every portion, and return the results in the order of the portions."""
        if report is not None:
            report(JobProgress(phase, 0, len(portions)))
        failed = threading.Event()

        def begun(portion: Portion) -> Result:
            if failed.is_set():
                raise CancelledError  # the failure of the other is told
            try:
                return task(portion)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(self.parallelism, thread_name_prefix="ebla-job") as pool:
            futures = [pool.submit(begun, portion) for portion in portions]
            try:
                _wait(futures, phase, report)
                return [future.result() for future in futures]
            except BaseException:
                # What runs is waited for as the pool ends: tasks that write on would leave files behind.
                for future in futures:
                    future.cancel()
                raise


def _wait(futures: Sequence[Future[Result]], phase: str, report: Report | None) -> None:
    """Wait until all are done or one has failed, and raise what it failed with."""
    left: set[Future[Result]] = set(futures)
    while left:
        done, left = wait(left, timeout=None if report is None else 0.2, return_when=FIRST_EXCEPTION)
        for future in done:
            error = future.exception()
            if error is not None and not isinstance(error, CancelledError):
                raise error
        if done and report is not None:
            report(JobProgress(phase, len(futures) - len(left), len(futures)))
