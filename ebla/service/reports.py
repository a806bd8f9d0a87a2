"""What is told of a store: unused files, what is wrong with METADATA, and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebla.metadata.values.check import Finding

__all__ = ["DroppedTable", "GarbageReport", "VerifyReport"]


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A dropped table: the name that it had, its id, and when it was dropped and may be purged, in UTC."""

    name: str
    id: str
    dropped: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a round found. `removed` is empty in a dry run; `doomed` is what would go.

    Of all files, so many are `named`, and `shared` of those by several tables (clones); `by_writers` are about to be
    named by this process, `by_jobs` perhaps by bulk jobs under way, or read by other jobs; `candidates` were found
    unused and wait for their age. `metadata_files` are those of dropped tables and of creations that were given up,
    `unknown_tables` have METADATA and nobody knows them: both are no part of `files`. `lost_tables` are those of the
    latter that certainly were tables: as long as there are any, nothing goes.
    """

    files: int
    bytes: int
    named: int
    shared: int
    shared_bytes: int
    by_writers: int
    by_jobs: int
    candidates: int
    candidate_bytes: int
    metadata_files: int
    unknown_tables: tuple[str, ...]
    lost_tables: tuple[str, ...]
    doomed: tuple[str, ...]
    doomed_bytes: int
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at and what was found. `repaired` says whether METADATA was changed."""

    tables: int
    files: int
    findings: tuple[Finding, ...]
    repaired: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong. Files that nobody names are not, and neither is a missing `log-reach` file."""
        return all(finding.is_harmless for finding in self.findings)
