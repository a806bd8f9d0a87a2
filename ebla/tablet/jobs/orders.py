"""What other processes may ask the owner of a store to do, and what it answers. They travel by `bulk_mail`."""

from __future__ import annotations

from typing import TypeAlias

from ebla.tablet.jobs.bulk import BulkCommit, BulkResult
from ebla.tablet.jobs.compact_job import (
    BeginCompaction,
    CompactCommit,
    CompactionBegun,
    CompactionTerms,
    CompactResult,
    PrepareCompaction,
)
from ebla.tablet.jobs.restore_job import RestoreCommit
from ebla.tablet.upkeep.sweep_job import PrepareSweep, Sweep, SweepResult, SweepTerms

__all__ = ["Answer", "Order"]

Order: TypeAlias = (
    BulkCommit | PrepareCompaction | BeginCompaction | CompactCommit | PrepareSweep | Sweep | RestoreCommit
)
Answer: TypeAlias = BulkResult | CompactionTerms | CompactionBegun | CompactResult | SweepTerms | SweepResult
