"""Errors on their way through Spark: raised in a Python worker, seen by the user as what they were.

    worker: EblaError --told_plainly--> Spark's exception, whose text begins with the error   (calls of Spark's own API)
                                                |
    driver:                              unwrapped() --> the same EblaError                   (calls of ours)

Spark sends the text of an exception, with the traceback before it, from the worker to the driver. Of an Ebla error the
traceback says nothing to its reader: the message tells what to do. A worker that fails ends, so that it can be told on
its last way to leave the traceback out.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from ebla import errors
from ebla.errors import EblaError

__all__ = ["plain_errors", "told_plainly", "unwrapped", "unwrapping"]

P = ParamSpec("P")
R = TypeVar("R")

# What Spark sets in its workers when `spark.sql.execution.pyspark.udf.hideTraceback.enabled` is on.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
# The error is the last of the Python text; Spark's own words or a Java stack may follow.
_ERROR = re.compile(r"\bebla\.(?:errors|[a-z_.]+)\.(?P<name>[A-Z]\w+): (?P<message>.*)")
_END = re.compile(r"\s*(?:SQLSTATE: \w{5}|\n\s+at [\w.$]+\(|\nDriver stacktrace:|\nJVM stacktrace:).*", re.DOTALL)


@contextmanager
def plain_errors() -> Iterator[None]:
    """In a worker of Spark: let an Ebla error that leaves this block be told without its traceback."""
    try:
        yield
    except EblaError:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise


def told_plainly(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method that Spark calls in a worker, and that returns no generator, tell its errors plainly."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with plain_errors():
            return method(*args, **kwargs)

    return run


def unwrapped(error: BaseException) -> EblaError | None:
    """Return the Ebla error that an exception of Spark's is about; None if it is about something else."""
    text = str(error)
    every = list(_ERROR.finditer(text))
    if not every:
        return None
    found = every[-1]
    kind = getattr(errors, found["name"], errors.StoreError)
    if not (isinstance(kind, type) and issubclass(kind, EblaError)):
        kind = errors.StoreError
    message = _END.sub("", text[found.start("message") :]).strip()
    made: EblaError = kind.__new__(kind)  # past an __init__ that takes parts of the message
    made.args = (message,)
    return made


def _is_of_spark(error: Exception) -> bool:
    """Tell whether PySpark, or Py4J below it, raised an exception; by name, for there may be no Spark here."""
    return any(kind.__module__.partition(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__)


@contextmanager
def unwrapping() -> Iterator[None]:
    """On the driver: raise the Ebla error itself in place of the exception in which Spark wrapped it."""
    try:
        yield
    except Exception as error:
        inner = unwrapped(error) if _is_of_spark(error) else None
        if inner is None:
            raise
        raise inner from None
