"""Workers are forked with what tasks need in them, and nothing else has begun by then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from ebla.pipeline.spark.daemon import MODULE
from ebla.pipeline.spark.session import default_settings

LOADED = f"""
import sys, threading
from {MODULE} import load
load()
assert "ebla.pipeline.loading.load_task" in sys.modules and "pyspark.worker" in sys.modules
assert threading.active_count() == 1, threading.enumerate()
assert "pandas" not in sys.modules
"""


def test_nothing_but_modules_is_there_before_workers_are_forked() -> None:
    subprocess.run([sys.executable, "-c", LOADED], check=True, timeout=100)


LIGHT = """
import sys
import pyspark_ebla
assert pyspark_ebla.DefaultSource.name() == "ebla"
assert not [name for name in sys.modules if name.startswith(("ebla.tablet", "ebla.client", "ebla.storage", "pyarrow"))]
"""


def test_the_module_in_which_spark_looks_for_the_format_loads_no_engine() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=100)


def test_a_session_of_our_own_forks_workers_that_have_the_modules_of_tasks(spark: SparkSession) -> None:
    assert default_settings("local[2]", "ERROR")["spark.python.daemon.module"] == MODULE
    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == MODULE

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        list(batches)
        yield pa.record_batch({"found": ["ebla.pipeline.care.compact_task" in sys.modules]})

    assert {row.found for row in spark.range(1).mapInArrow(look, "found boolean").collect()} == {True}
