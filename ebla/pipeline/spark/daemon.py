"""The process that Spark forks its Python workers from, with what Ebla's tasks need loaded before the first fork.

    python -m ebla.pipeline.spark.daemon pyspark.worker      started by Spark, once, when the first Python task is due

Spark's own daemon loads nothing, so that every worker does: for tasks of Ebla that is most of a second of work each, at
the very time when all cores begin on the first job, and again whenever workers that were idle have been replaced.
Spark is careful because a thread that somebody starts would not be there after a fork. Two would: those of OpenBLAS
are not wanted, and jemalloc knows what to do when a process is forked.

Spark has such a process for each kind of worker. The one that only looks for data sources loads nothing beforehand: it
is there in every session, runs once, and needs next to nothing.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

__all__ = ["MODULE", "load"]

MODULE = "ebla.pipeline.spark.daemon"
# The worker that looks for data sources, once a session.
LOOKUP = "pyspark.sql.worker.lookup_data_sources"
# What tasks of loads, scans, merges and compactions unpickle, and what Spark's worker needs to call them.
_TASK_MODULES = (
    "pyspark.worker",
    "pyarrow.compute",
    "pyarrow.parquet",
    "ebla.pipeline.spark_format",
    "ebla.pipeline.datasource.datasource_reader",
    "ebla.pipeline.datasource.datasource_writer",
    "ebla.pipeline.loading.load_task",
    "ebla.pipeline.scanning.scan",
    "ebla.pipeline.care.compact_task",
    "ebla.pipeline.datasource.row_writing",
)


def load() -> None:
    """Load the modules, and spare every worker the look at them when it collects garbage."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in _TASK_MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if LOOKUP not in sys.argv:
        load()
    importlib.import_module("pyspark.daemon").manager()
