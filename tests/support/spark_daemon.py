"""The process that Spark's Python workers are forked from, with Ebla loaded, which each of them would load by itself.

Spark loads nothing before it forks, for a thread that somebody starts would not be there afterwards. Two would: those
of OpenBLAS are not wanted, and jemalloc knows what to do when a process is forked.
"""

from __future__ import annotations

import gc
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

from pyspark.daemon import manager

import ebla.pipeline.spark_format

__all__ = ["ebla", "manager"]

if __name__ == "__main__":
    gc.freeze()
    manager()
