"""Saves through ``format("ebla")`` taken as a whole, in sessions whose driver is this process: every mode, and SQL.

    df.write.format("ebla").option("root", "/data").option("key", "id").save("users")        an error if it is there
    INSERT INTO users SELECT ...                                                             a table USING ebla
        Spark --> ebla.Source, compiled in its JVM --> `save` here --> the source written in Python, by its other name

Spark refuses ``mode("error")``, its default, and ``mode("ignore")`` to sources written in Python, and does not tell
them which table an INSERT is about. So the class that Spark finds under the name ``ebla`` is one of its own JVM's, and
the Python source in all but this: a batch that is saved comes here first, as a DataFrame, with its mode and its table.
It is then written by the tasks of the Python source, in one commit, as ever.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ebla.errors import EblaError, RequestError
from ebla.pipeline.spark.java_classes import JavaFunction, java_bytes

__all__ = ["TASKS", "take_saves"]

# The name of the Python source where `ebla` is that of the class in the JVM.
TASKS = "ebla_tasks"
_CLASS = "ebla.Source"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_IF_EXISTS = {"ErrorIfExists": "error", "Ignore": "ignore"}

Kept = Callable[[StructType], Mapping[str, str]]


def take_saves(spark: SparkSession, kept_options: Kept) -> bool:
    """Have saves of a session come here first; False if its JVM takes no classes. Doing it twice is fine.

    `kept_options` says which options a table of Spark's catalog was made with, from its columns.
    """
    if not hasattr(spark, "_jsparkSession"):
        return False  # Spark Connect: its driver is elsewhere
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if not hasattr(loader, "addURL"):
        return False
    try:
        found = loader.loadClass(_CLASS)
    except Py4JError:
        classes = java_bytes(spark, "Source")
        if not classes:
            return False
        loader.addURL(jvm.java.io.File(_jar(classes)).toURI().toURL())
        found = loader.loadClass(_CLASS)
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    found.getField("save").set(None, JavaFunction(_Saves(spark, kept_options).save))
    return True


def _jar(classes: Mapping[str, bytes]) -> str:
    """Write the class, and what tells Spark of it, to a file that goes when this process ends."""
    directory = tempfile.mkdtemp(prefix="ebla-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = str(Path(directory, "ebla-source.jar"))
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr(_SERVICE, _CLASS + "\n")
        for name, code in classes.items():
            jar.writestr(name.replace(".", "/") + ".class", code)
    return path


class _Saves:
    """Saves the frames of a session."""

    def __init__(self, spark: SparkSession, kept_options: Kept) -> None:
        self._spark = spark
        self._kept_options = kept_options

    def save(self, asked: Any) -> Any:
        """Save a frame; return what Java is to throw, if anything."""
        mode, options, schema, frame = asked[0], dict(asked[1]), asked[2], asked[3]
        try:
            self._save(mode, options, schema, DataFrame(frame, self._spark))
        except EblaError as error:
            return f"{type(error).__module__}.{type(error).__name__}: {error}"
        except PySparkException as error:
            origin = getattr(error, "_origin", None)
            return str(error) if origin is None else origin
        return None

    def _save(self, mode: str, options: dict[str, str], schema: str | None, frame: DataFrame) -> None:
        named = {name.lower() for name in options}
        if schema is not None and not named & {"root", "cluster", "table", "path"}:
            options = {**self._kept_options(StructType.fromJson(json.loads(schema))), **options}
        wanted = _IF_EXISTS.get(mode)
        if wanted is not None:
            given = next((text for name, text in options.items() if name.lower() == "if_exists"), wanted)
            if given.lower() != wanted:
                raise RequestError(f"mode says {wanted!r} and if_exists says {given!r}: give one of them")
            options = {**{n: t for n, t in options.items() if n.lower() != "if_exists"}, "if_exists": wanted}
        writer = frame.write.format(TASKS).options(**options)
        writer.mode("overwrite" if mode == "Overwrite" else "append").save()
