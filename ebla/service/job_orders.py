"""What a job has the owner of a store do, and what it is answered: requests that also travel between processes.

    BulkCommit         -->  BulkResult         files that came past the log are made part of a table
    RestoreCommit      -->  BulkResult         a whole table that was brought from elsewhere

    MakeTable          -->  TableAnswer        a table for rows that a job is about to write; UnmakeTable if it fails
    AddColumns         -->  TableAnswer        columns that its rows have and the table lacks

    PrepareCompaction  -->  CompactionTerms    how far back each group must be kept, and what may be in memory only
       the job chooses by the engine's rules
    BeginCompaction    -->  CompactionBegun    the engine leaves these files alone for a while
       the job merges, writes files of its own
    CompactCommit      -->  CompactResult      what was replaced; what was refused, and why

    PrepareSweep       -->  SweepTerms         what is about to be named, and how old a candidate must be
       the job lists files, then reads METADATA of every table, and judges by the rules of the engine
    Sweep              -->  SweepResult        the owner looks again at each file, and removes what it finds unused, too

An order goes to a `Service` like any other request. A process that cannot open the store leaves it for the owner
(`tablet.jobs.bulk_mail`), so tags and names of fields are on disk: they never change. Every order can be repeated
without harm.

Nothing is promised between the steps of a compaction: whatever changes a tablet meanwhile goes first, and what does not
fit any more is refused, tablet by tablet and group by group. That the engine leaves files alone only spares both the
work that would be in vain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from ebla.metadata.values.changes import TabletAt
from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure, TableMetadata
from ebla.service.requests import Reply, StoreRequest
from ebla.settings import MIB

__all__ = [
    "SWEEP_MAX",
    "AddColumns",
    "Answer",
    "BeginCompaction",
    "BulkCommit",
    "BulkFragment",
    "BulkResult",
    "CompactCommit",
    "CompactResult",
    "CompactionBegun",
    "CompactionTerms",
    "GroupTerms",
    "JobOrder",
    "MakeTable",
    "Merge",
    "Order",
    "PrepareCompaction",
    "PrepareSweep",
    "Replacement",
    "RestoreCommit",
    "Strategy",
    "Sweep",
    "SweepResult",
    "SweepTerms",
    "TableAnswer",
    "UnmakeTable",
]

# So that the answer fits into a node of the coordination service.
SWEEP_MAX = 50_000


class JobOrder(StoreRequest[Reply]):
    """A request of a job, known by the id of the job, to the owner of a store."""

    __slots__ = ()
    job: str


# --- bulk commits --------------------------------------------------------------------------------


class BulkFragment(msgspec.Struct, frozen=True):
    """A file that a bulk job wrote for one group. Its reference gets its txn when the job is committed.

    `order` is (partition, number): where two files overlap, the one with the greater order wins.
    """

    group: int
    fragment: FragmentRef
    order: tuple[int, int] = (0, 0)


class BulkResult(msgspec.Struct, frozen=True, tag="bulk_done"):
    """The txn from which on a job is seen; `repeated` if it had been applied before, and nothing was done now."""

    txn: int
    repeated: bool


class BulkCommit(msgspec.Struct, JobOrder[BulkResult], frozen=True, tag="bulk"):
    """What a bulk job adds to a table, all of it or nothing. With `overwrite`, all that was there before goes.

    A job is applied once: repeating the commit with the same `job` does nothing. A batch of a stream is known by its
    `app` and its number instead: it is applied unless that batch, or a later one, has been. With `unchanged_since`, it
    is refused with `Conflict` if somebody has changed one of its rows after that txn: the job had read them then.
    """

    job: str
    table_id: str
    schema_version: int
    fragments: tuple[BulkFragment, ...]
    overwrite: bool = False
    app: str | None = None
    batch: int = 0
    unchanged_since: int | None = None

    def done_at(self, metadata: TableMetadata) -> int | None:
        """Return the txn at which it was applied, by what is on record; None if it was not."""
        if self.app is None:
            return metadata.job_txn(self.job)
        known = metadata.stream_batch(self.app)
        return None if known is None or known.batch < self.batch else known.txn


class RestoreCommit(msgspec.Struct, JobOrder[BulkResult], frozen=True, tag="restore"):
    """A table as a whole, that a job brings from elsewhere: its METADATA, packed, which names the job's files.

    `replaces` is the id of the table that has the name now, and gives it up to this one. A job is applied once.
    """

    job: str
    table_id: str
    name: str
    metadata: bytes
    replaces: str | None = None


# --- tables for the rows of a job ------------------------------------------------------------------


class TableAnswer(msgspec.Struct, frozen=True, tag="table"):
    """A table, by its id, and the version of its schema."""

    table_id: str
    schema_version: int


class MakeTable(msgspec.Struct, JobOrder[TableAnswer], frozen=True, tag="make_table"):
    """Make a table with a schema (packed) that is cut at these rows, under ids that the job gave out."""

    job: str
    name: str
    table_id: str
    schema: bytes
    tablet_ids: tuple[str, ...]
    splits: tuple[bytes, ...] = ()


class AddColumns(msgspec.Struct, JobOrder[TableAnswer], frozen=True, tag="add_columns"):
    """Add those of some columns, by name and type, that a table does not have."""

    job: str
    table_id: str
    columns: tuple[tuple[str, str], ...]


class UnmakeTable(msgspec.Struct, JobOrder[TableAnswer], frozen=True, tag="unmake_table"):
    """Drop a table that the job made for rows which did not come, unless somebody has used it."""

    job: str
    table_id: str


# --- compactions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strategy:
    """The numbers by which the engine chooses what to merge (`tablet.upkeep.compaction`)."""

    runs_min: int = 5
    runs_max: int = 10
    size_ratio: float = 2.0
    erased_share: float = 0.25
    surplus_share: float = 0.25
    surplus_min: int = 4_096
    small_files_min: int = 16
    file_bytes: int = 128 * MIB


class GroupTerms(msgspec.Struct, frozen=True):
    """What holds for a group: its `horizon` (`storage.compact`); from `unflushed` on, records may be in memory only."""

    group: int
    horizon: int
    unflushed: int


class CompactionTerms(msgspec.Struct, frozen=True, tag="compaction_terms"):
    """What a job must know to choose and merge as the owner would."""

    groups: tuple[GroupTerms, ...]
    strategy: Strategy


class PrepareCompaction(msgspec.Struct, JobOrder[CompactionTerms], frozen=True, tag="prepare_compaction"):
    """Flush a table, and say on which terms its fragments may be merged now."""

    job: str
    table_id: str


class CompactionBegun(msgspec.Struct, frozen=True, tag="compaction_begun"):
    """The files are left alone until the job commits or says that it is done, but no longer than some time."""

    seconds: float


class BeginCompaction(msgspec.Struct, JobOrder[CompactionBegun], frozen=True, tag="begin_compaction"):
    """Leave these files of a table to the job, in the place of those that it named before; none: it is done."""

    job: str
    table_id: str
    files: tuple[str, ...]


class Merge(msgspec.Struct, frozen=True):
    """Fragments of one group of one tablet that become one run, and what decides what of them stays.

    `erasures` are all range erasures of the tablet and group, `dropped` those of them that go with this merge. What
    `is_rooted`, `is_dense` and `horizon` promise is said at `storage.compact.Retention`; `roots_present` is what
    `is_rooted` would be if the horizon were `present`. What a reader at `present` does not need goes to files of
    history, which reads need up to `history_txn`; with a `present` of 0 nothing is put apart, and if there is a
    `history_txn`, all of it is history.
    """

    fragments: tuple[FragmentRef, ...]
    erasures: tuple[RangeErasure, ...]
    dropped: tuple[RangeErasure, ...]
    horizon: int
    is_rooted: bool
    is_dense: bool
    joins: bool
    present: int = 0
    roots_present: bool = False
    history_txn: int = 0


class Replacement(msgspec.Struct, frozen=True):
    """One merge that was carried out: all of its files are written."""

    tablet: TabletAt
    group: int
    merge: Merge
    added: tuple[FragmentRef, ...]
    records_read: int


class CompactResult(msgspec.Struct, frozen=True, tag="compacted"):
    """What was refused, by its number, each with a word that says why; everything else was replaced."""

    refused: tuple[tuple[int, str], ...] = ()


class CompactCommit(msgspec.Struct, JobOrder[CompactResult], frozen=True, tag="compact"):
    """Replace what was merged: of these, all that still fit."""

    job: str
    table_id: str
    schema_version: int
    replacements: tuple[Replacement, ...]


# --- sweeps --------------------------------------------------------------------------------------


class SweepTerms(msgspec.Struct, frozen=True, tag="sweep_terms"):
    """Files that are about to be named; the time; and for how long a file must have been a candidate."""

    young: tuple[str, ...]
    now_microseconds: int
    age_microseconds: int


class PrepareSweep(msgspec.Struct, JobOrder[SweepTerms], frozen=True, tag="prepare_sweep"):
    """Say what is about to be named."""

    job: str


class SweepResult(msgspec.Struct, frozen=True, tag="swept"):
    """Of the files to be removed, the places of those that stayed: named by now, in use, or not to be removed."""

    kept: tuple[int, ...]


class Sweep(msgspec.Struct, JobOrder[SweepResult], frozen=True, tag="sweep"):
    """Remove these files, at most `SWEEP_MAX`; with the last of them, remember what the round found unused.

    `version` is that of the candidates which the round began with.
    """

    job: str
    doomed: tuple[str, ...]
    candidates: dict[str, int] | None = None
    version: int | None = None


# All there are: a message that was left for the owner is decoded as one of these.
Order: TypeAlias = (
    BulkCommit
    | PrepareCompaction
    | BeginCompaction
    | CompactCommit
    | PrepareSweep
    | Sweep
    | RestoreCommit
    | MakeTable
    | AddColumns
    | UnmakeTable
)
Answer: TypeAlias = (
    BulkResult | CompactionTerms | CompactionBegun | CompactResult | SweepTerms | SweepResult | TableAnswer
)
