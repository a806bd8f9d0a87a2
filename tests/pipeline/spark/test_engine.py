"""Where the tasks of a job run: chosen by what is said, what is there and how much there is; the same either way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import ebla.pipeline.spark.engine as engine_module
from ebla.errors import Corruption, RequestError
from ebla.pipeline.spark.engine import IN_PROCESS_BYTES_MAX, Engine, InProcess, SparkStart, choose_engine
from ebla.pipeline.spark.progress import JobProgress
from ebla.pipeline.spark.spark_engine import OnSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["process", "spark"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Engine:
    return InProcess(2) if request.param == "process" else OnSpark(spark)


def described(portion: tuple[str, int]) -> dict[str, object]:
    return {"name": portion[0], "twice": portion[1] * 2}


def damaged(portion: int) -> int:
    if portion == 2:
        raise Corruption("fragments/2.parquet", "it ends too soon")
    return portion


def test_results_come_in_the_order_of_the_portions(engine: Engine) -> None:
    portions = [(f"p{n}", n) for n in range(5)]
    found = engine.run(described, portions, group="g1", phase="describing", report=None)
    assert found == [{"name": f"p{n}", "twice": 2 * n} for n in range(5)]
    assert engine.run(described, [], group="g2", phase="describing", report=None) == []
    assert engine.parallelism == 2


def test_an_error_of_a_task_is_raised_as_it_was(engine: Engine) -> None:
    with pytest.raises(Corruption, match="it ends too soon"):
        engine.run(damaged, [1, 2, 3], group="g3", phase="reading", report=None)


def test_progress_says_what_is_done_and_how_much(engine: Engine) -> None:
    seen: list[JobProgress] = []
    engine.run(described, [("a", 1), ("b", 2)], group="g4", phase="describing", report=seen.append)
    assert {one.phase for one in seen} == {"describing"}
    assert seen[0].tasks_done == 0


def test_after_a_failure_no_other_task_begins() -> None:
    begun: list[int] = []
    failed = threading.Event()

    def task(portion: int) -> None:
        begun.append(portion)
        failed.set()
        raise RequestError("no")

    with pytest.raises(RequestError):
        InProcess(1).run(task, list(range(1000)), group="g5", phase="failing", report=None)
    assert failed.is_set()
    assert begun == [0]


def test_small_jobs_run_in_the_process_and_large_ones_on_spark(spark: SparkSession) -> None:
    assert isinstance(choose_engine(None, IN_PROCESS_BYTES_MAX, "a job"), InProcess)
    assert isinstance(choose_engine(None, IN_PROCESS_BYTES_MAX + 1, "a job"), OnSpark)
    assert isinstance(choose_engine(None, None, "a job"), OnSpark)


def test_what_the_caller_says_counts_more_than_the_size(spark: SparkSession) -> None:
    assert isinstance(choose_engine(False, 1 << 50, "a job"), InProcess)
    assert isinstance(choose_engine(False, None, "a job"), InProcess)
    assert isinstance(choose_engine(True, 0, "a job"), OnSpark)
    assert choose_engine(spark, 0, "a job") == OnSpark(spark)
    assert isinstance(choose_engine(SparkStart(True, app_name="another"), 0, "a job"), OnSpark)
    assert isinstance(choose_engine(SparkStart(False), 1 << 50, "a job"), InProcess)
    assert isinstance(choose_engine(SparkStart(), 0, "a job"), InProcess)
    with pytest.raises(RequestError, match="spark is a SparkSession"):
        choose_engine("yes", 0, "a job")


def test_without_spark_jobs_run_in_the_process_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "is_spark_installed", lambda: False)
    assert isinstance(choose_engine(None, 1 << 50, "a job"), InProcess)
    assert isinstance(choose_engine(None, None, "a job"), InProcess)
