"""Classes inside Spark that ask Python: compiled by Spark's own compiler, in its JVM, when they are needed first.

    KeyedFiles.java  --Janino, which Spark compiles queries with-->  a class of that JVM
    new KeyedFiles(files, "id", JavaFunction(python function))

Some of what Spark's planner can be told has to extend a class, which Py4J cannot do: it implements interfaces. So the
class is a few lines of Java beside this module, and what it decides is a Python function that it calls. Nothing is
built, shipped or matched to a version of Spark; such objects live on the driver, and no task ever sees one.

A Spark whose classes are others than these were written for does not compile them. Whoever asks gets None then, and
does without: queries are slower, and right.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

__all__ = ["JavaFunction", "java_bytes", "new_java"]

_PACKAGE = "ebla"
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_constructors: dict[tuple[int, str], Any] = {}  # by JVM and name; guarded by _lock


class JavaFunction:
    """A Python function as Scala's ``Function1``. It lives for as long as Spark holds on to it."""

    class Java:
        """What Py4J wants to know."""

        implements = ["scala.Function1"]  # noqa: RUF012 - as Py4J wants it

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def apply(self, argument: Any) -> Any:
        """Call the function."""
        return self._function(argument)

    def toString(self) -> str:  # noqa: N802 - Java's name
        """Tell what it is, to whoever prints a plan."""
        return "python"


def new_java(spark: SparkSession, name: str, *arguments: Any) -> Any | None:
    """Make an object of a class beside this module, in the JVM of a session; None if Spark does not take the class."""
    gateway: Any = spark.sparkContext._gateway
    with _lock:
        if (id(gateway), name) not in _constructors:
            compiled = _compiled(gateway.jvm, name)
            _constructors[id(gateway), name] = (
                compiled and compiled.getClassLoader().loadClass(f"{_PACKAGE}.{name}").getConstructors()[0]
            )
        constructor = _constructors[id(gateway), name]
    if constructor is None:
        return None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    given = gateway.jvm.java.util.ArrayList()
    for argument in arguments:
        given.add(argument)
    return constructor.newInstance(given.toArray())


def java_bytes(spark: SparkSession, name: str) -> dict[str, bytes]:
    """Return the classes of one of the files beside this module, by their names, as Java keeps them in files.

    There are none if Spark's compiler does not take it.
    """
    compiled = _compiled(spark.sparkContext._jvm, name)
    return {} if compiled is None else {found: bytes(code) for found, code in compiled.getBytecodes().items()}


def _compiled(jvm: Any, name: str) -> Any | None:
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook((files(__package__) / "java" / f"{name}.java").read_text())
    except (Py4JError, TypeError) as error:  # TypeError: there is no such compiler
        _log.warning("this version of Spark does not take %s.java, and queries do without: %s", name, error)
        return None
    return compiler
