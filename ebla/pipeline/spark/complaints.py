"""What Spark's exceptions say to people: the line that matters, without the Java and Python around it."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

__all__ = ["SPARK_ERRORS", "said_by_spark"]

# Most come as the former; some calls of PySpark's pass on the latter.
SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JJavaError)


def said_by_spark(error: Exception) -> str:
    """Return what an exception of Spark's says, in a line, without the Java or Python around it."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.getMessage() or cause.toString())
    _, found, inner = text.partition("Traceback (most recent call last):")
    lines = [line.strip() for line in (inner or text).splitlines() if line.strip()]
    if found:
        # Of a traceback, the last line says what happened; Spark's own words and Java may follow.
        own = [line for line in inner.splitlines() if line and not line[0].isspace() and "SQLSTATE" not in line[:12]]
        lines = own[:1] or lines
    return lines[0].rstrip(".") if lines else type(error).__name__
