"""The Spark session that jobs run in: the one that is there, or a new one with what Ebla needs.

    a session is running  -->  it is used as it is, whatever its settings
    none is               -->  Java is found (or the bundled one taken), a session started with the settings below

A session of our own is quiet, has no web page, listens to this machine only, runs Python workers with this very
Python, and counts time in UTC, so that a text like ``2026-01-31 12:00:00`` means the same moment everywhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import warnings
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ebla.errors import RequestError
from ebla.pipeline.spark.daemon import MODULE
from ebla.pipeline.spark.java import bundled_java_home, find_java_home, java_home_without_module, logging_file

__all__ = ["active_session", "local_frame", "session"]

MIB = 1 << 20
DRIVER_BYTES_MIN = 1 << 30
DRIVER_BYTES_MAX = 8 << 30


def session(
    master: str = "local[*]", app_name: str = "ebla", *, log_level: str = "ERROR", **settings: object
) -> SparkSession:
    """Return the running SparkSession as it is, or start one.

    `settings` are Spark's own, with ``_`` or ``__`` for the dots where Python wants a name:
    ``session("local[4]", spark__driver__memory="4g")`` or ``session(**{"spark.driver.memory": "4g"})``.
    """
    given = {_setting_name(name): str(value) for name, value in settings.items()}
    running = active_session()
    if running is not None:
        register_data_source(running)
        return running
    java = _java_home(log_level)
    os.environ["JAVA_HOME"] = str(java)  # Spark's start script reads it there
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**default_settings(master, log_level), **given}.items():
        builder = builder.config(name, value)
    # PySpark warns that pandas 3 is new to it. Ebla's jobs move Arrow, not pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    if log_level == "OFF":
        # What fails, or is interrupted, is raised as well.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
        logging.getLogger().addFilter(_is_not_of_py4j)
    started: SparkSession = builder.getOrCreate()
    register_data_source(started)
    return started


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def local_frame(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return rows as a DataFrame of a session, and leave the active session what it is.

    PySpark makes the session of whoever calls it the active one, and so keeps it, with all that it holds
    (`Holding.given_to`), until somebody else is.
    """
    active = SparkSession._activeSession
    try:
        return spark.createDataFrame(rows, schema)
    finally:
        SparkSession._activeSession = active


def active_session() -> SparkSession | None:
    """Return the session that is running in this process, if any."""
    found = SparkSession.getActiveSession()
    if found is None:
        # One that was started in another thread.
        found = getattr(SparkSession, "_instantiatedSession", None)
    if found is None or getattr(found.sparkContext, "_jsc", None) is None:
        return None
    return found


def _java_home(log_level: str) -> Path:
    found = find_java_home(dict(os.environ))
    if found is None:
        return bundled_java_home()
    # Java itself prints a line about a module that Spark asks for.
    return java_home_without_module(found / "bin" / "java") if log_level == "OFF" else found


def default_settings(master: str, log_level: str) -> dict[str, str]:
    """Return the settings of a session of our own."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging_file(log_level)}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.driver.memory": f"{driver_bytes() // MIB}m",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": MODULE,
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def driver_bytes() -> int:
    """Return how much memory Spark's driver, which in local mode does all the work, may use: a quarter of what is."""
    try:
        present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        present = 0
    return max(DRIVER_BYTES_MIN, min(present // 4, DRIVER_BYTES_MAX))


def register_data_source(spark: SparkSession) -> None:
    """Make ``spark.read.format("ebla")`` known to a session."""
    if importlib.util.find_spec("ebla.pipeline.spark_format") is not None:
        importlib.import_module("ebla.pipeline.spark_format").register(spark)


def _setting_name(name: str) -> str:
    setting = name if "." in name else name.replace("__", ".")
    if not setting.startswith("spark."):
        raise RequestError(
            f"session takes no argument {name!r}: it has master, app_name, log_level and settings of Spark, as in "
            "spark__driver__memory='4g'"
        )
    return setting
