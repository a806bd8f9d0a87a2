"""Ebla's errors, as they come out of Spark."""

from __future__ import annotations

import os

import pytest
from pyspark.errors import PySparkException

from ebla.errors import Corruption, InvalidBatch, StoreError, UnknownTable
from ebla.pipeline.spark.failures import plain_errors, unwrapped, unwrapping

OF_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 1, in write
    raise InvalidBatch("no")
ebla.errors.InvalidBatch: column 'age' is int32
and does not take text"""

OF_THE_DRIVER = (
    "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "
    "ebla.errors.UnknownTable: there is no table 'nope': the store has users\n SQLSTATE: 38000"
)

OF_JAVA = """An error occurred while calling o89.save.
: org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.writingJobFailedError(QueryExecutionErrors.scala:963)
Caused by: org.apache.spark.api.python.PythonException: ebla.errors.Corruption: f.parquet is damaged: no footer
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
"""


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (OF_A_TASK, InvalidBatch, "column 'age' is int32\nand does not take text"),
        (OF_THE_DRIVER, UnknownTable, "there is no table 'nope': the store has users"),
        (OF_JAVA, Corruption, "f.parquet is damaged: no footer"),
        ("ebla.pipeline.spark.java.JavaNotFound: no Java", StoreError, "no Java"),
    ],
)
def test_the_error_is_found_in_what_spark_says(text: str, kind: type[Exception], message: str) -> None:
    found = unwrapped(PySparkException(text))
    assert (type(found), str(found)) == (kind, message)


def test_an_error_of_somebody_else_stays_as_it_is() -> None:
    assert unwrapped(PySparkException("ValueError: no")) is None
    with pytest.raises(PySparkException, match="no"), unwrapping():
        raise PySparkException("ValueError: no")


def test_the_error_itself_is_raised_in_place_of_sparks() -> None:
    with pytest.raises(UnknownTable, match=r"^there is no table 'nope'"), unwrapping():
        raise PySparkException(OF_THE_DRIVER)


def test_only_ebla_errors_are_told_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is put back
    with pytest.raises(ValueError, match="no"), plain_errors():
        raise ValueError("no")
    assert not os.environ["SPARK_HIDE_TRACEBACK"]
    with pytest.raises(UnknownTable), plain_errors():
        raise UnknownTable("no")
    assert os.environ["SPARK_HIDE_TRACEBACK"]
