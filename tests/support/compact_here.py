"""Compaction by a job whose tasks run in this process, one after another: what they do is the same, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import ebla
from ebla.pipeline import CompactSummary, compact
from ebla.pipeline.care import compact_plan
from ebla.pipeline.care.compact_plan import Section
from ebla.pipeline.care.compact_task import CompactTask, SectionResult
from ebla.storage.files.local_files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

compacting = sys.modules["ebla.pipeline.care.compact"]  # the name is that of the function
NO_SPARK = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2)))


def run_here(self: Any, task: CompactTask, portions: Sequence[Sequence[Section]]) -> list[SectionResult]:
    """Run every portion, in the place of `_Compaction._on_spark`."""
    return [result for number in range(len(portions)) for result in task.run(number, LocalFiles(task.root))]


@contextmanager
def tasks_here(section_bytes_min: int | None = None) -> Iterator[SparkSession]:
    """Let compactions run here for as long as the block does; give what stands for a session."""
    former = compacting._Compaction._on_spark, compact_plan.SECTION_BYTES_MIN
    compacting._Compaction._on_spark = run_here
    if section_bytes_min is not None:
        compact_plan.SECTION_BYTES_MIN = section_bytes_min
    try:
        yield NO_SPARK
    finally:
        compacting._Compaction._on_spark, compact_plan.SECTION_BYTES_MIN = former


def compact_here(
    source: ebla.Database | str, table: str, section_bytes_min: int | None = None, **asked: Any
) -> CompactSummary:
    """Compact a table; with `section_bytes_min`, in sections as small as that."""
    with tasks_here(section_bytes_min) as spark:
        return compact(source, table, spark=spark, **asked)
