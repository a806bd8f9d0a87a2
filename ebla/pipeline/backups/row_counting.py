"""Counting the rows of a table and summing them up, section by section, wherever tasks run.

    plan (every section by the engine's own merge)  -->  a task for each: rows, sums  -->  rows and checksum of all

So a backup that was counted on Spark is compared in a process, and the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from ebla.client.database import Database
from ebla.direct.opens import forget
from ebla.direct.table_value import forget_values
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.pipeline.backups.row_checksum import RowSum, add_up
from ebla.pipeline.scanning.plan import Section
from ebla.pipeline.scanning.sections import SectionPlan, Target, plan_scan, plan_value, read_section
from ebla.pipeline.spark.engine import Engine, InProcess
from ebla.pipeline.spark.progress import Report

__all__ = ["Counter"]


class Counter:
    """Counts rows for one job; `group` is the name that its tasks have."""

    def __init__(self, engine: Engine, group: str, phase: str, report: Report | None) -> None:
        self._engine = engine
        self._group = group
        self._phase = phase
        self._report = report

    def in_store(self, source: Database | str | os.PathLike[str], table: str, txn: int) -> tuple[int, str]:
        """Return the number of rows of a table at a txn, which the caller holds, and their checksum."""
        cores = self._engine.parallelism
        return self._count(plan_scan(source, table, as_of=max(txn, 1), native=False, cores=cores))

    def in_files(self, root: str, metadata: TableMetadata, txn: int) -> tuple[int, str]:
        """Return the same of a table that no store has: by its METADATA, with files below `root`."""
        return self._count(plan_value(root, metadata, max(txn, 1), native=False, cores=self._engine.parallelism))

    def _count(self, planned: SectionPlan) -> tuple[int, str]:
        assert not planned.plan.clean, "every row is read by the engine"
        portions = [(planned.target, section) for section in planned.sections]
        try:
            found = self._engine.run(
                _count_section, portions, group=self._group, phase=self._phase, report=self._report
            )
        finally:
            if isinstance(self._engine, InProcess):  # workers of Spark keep what is open for the next task
                forget(planned.target.root)
                forget_values(planned.target.root)
        total = add_up(found)
        return total.rows, total.checksum


def _count_section(portion: tuple[Target, Section]) -> RowSum:
    total = RowSum()
    for batch in read_section(*portion, batches=_as_they_are):
        total.add(batch)
    return total


def _as_they_are(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.to_batches()
