"""Compact: the fragments of a table, or of a part of it, merged by many tasks, while everything else goes on.

    1. prepare   an intent registered; the owner of the store flushes, and says how far back must be kept
    2. plan      METADATA read; the engine's chooser asked, tablet by tablet; large tablets cut into sections
    3. merge     tasks merge sections, by the engine's own merge, into files that nobody names yet
    4. commit    the owner replaces, in one METADATA transaction, what is still as it was when it was planned
    5. again     from 1, for tablets that were not: split, joined, altered, or merged by somebody else
    6. end       files that were not committed go, and the intent

Readers see the same before and after, so nothing has to happen at once; whoever changes a tablet goes first, and the
job gives way: its work on that tablet is planned anew, a few times, and then left to another run. The store's own
compaction leaves the files alone that a job is at, and merges what has come since. If the job dies, nothing has
changed, and its files are garbage once its intent has expired.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession

from ebla.arguments import checked_callback, checked_flag
from ebla.client.database import Database
from ebla.direct.fragments import fragment_at, pack_schema
from ebla.direct.place import Place
from ebla.errors import Corruption, EblaError, MissingFile, OutcomeUnknown, StoreError, UnknownTable, shown
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata
from ebla.model.keys import KeyCodec
from ebla.pipeline.care.compact_plan import Marks, PlannedMerge, Section, Wanted, choose_merges, divide
from ebla.pipeline.care.compact_task import RESULT_SCHEMA, CompactTask, SectionResult, decode_result
from ebla.pipeline.scanning.sections import range_of
from ebla.pipeline.spark.complaints import SPARK_ERRORS, said_by_spark
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.progress import JobProgress, Report, watched
from ebla.pipeline.spark.session import active_session, session
from ebla.service.job_orders import (
    BeginCompaction,
    CompactCommit,
    CompactionTerms,
    PrepareCompaction,
    Replacement,
)

__all__ = ["CompactSummary", "GivenUp", "compact"]

ROUNDS_MAX = 4

# What kept a merge from being committed, as the owner of the store calls it, in words.
REASONS = {
    "missing": "another compaction has replaced its files",
    "fragments_changed": "another compaction has replaced its files",
    "erasures_changed": "another compaction has dropped its range erasures",
    "unknown_tablet": "it was split or joined",
    "stale_epoch": "it has another owner by now",
    "schema_version": "the schema was changed",
    "unknown_group": "the schema was changed",
    "snapshot_held": "somebody holds an older snapshot by now",
    "older_fragments": "older records came to it",
    "fragments_between": "older records came to it",
}


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A group of a tablet that changed whenever the job was about to replace its files, and why that was."""

    tablet: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompactSummary:
    """What a compaction did. `tablets` are those of which files were replaced; `rounds`, how often was planned."""

    table: str
    tablets: int = 0
    files_read: int = 0
    files_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    rounds: int = 0
    given_up: tuple[GivenUp, ...] = ()
    seconds: float = 0.0


def compact(
    source: Database | str | os.PathLike[str],
    table: str,
    *,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    only_due: bool = False,
    spark: SparkSession | None = None,
    progress: Report | None = None,
) -> CompactSummary:
    """Merge the files of a table on Spark, and leave out what nobody can see any more, as ``table.compact()`` does.

    `source` is a database that this process has open, or the root of a store that anybody may have open, or nobody.
    With `start` and `stop`, or `prefix`, only tablets that have such keys are compacted, each as a whole. With
    `only_due`, only what the store would merge by itself, sooner or later.

    Reads, writes, snapshots, and changes of tablets and schema go on meanwhile, and go first: what changed under the
    job is planned anew, and after a few times told as `given_up`. If a file is damaged, `Corruption` is raised once
    all others are merged. A job that fails, or is killed, has changed nothing or whole tablets.
    """
    began = time.monotonic()
    checked_callback("progress", progress)
    only_due = checked_flag("only_due", only_due)
    place = Place.of(source)
    metadata = place.metadata(table)
    if metadata is None:
        raise UnknownTable(f"there is no table {shown(table)}: check the name")
    rows = range_of(KeyCodec(metadata.schema.key), start, stop, prefix)
    if spark is None:
        spark = active_session() or session()
    work = _Compaction(place, table, metadata.table_id, f"compact-{uuid.uuid4()}", spark, progress, only_due)
    begun = place.begin(work.job, table)
    is_certain = True
    try:
        if begun != metadata.table_id:
            raise UnknownTable(f"the table {table!r} was dropped and made anew at this moment: run the job again")
        work.run([(rows, None)])
    except OutcomeUnknown:
        is_certain = False  # METADATA may come to name the files yet
        raise
    except BaseException as error:
        # Whoever is interrupted in the middle of a commit does not know its outcome either.
        is_certain = not work.is_committing or isinstance(error, EblaError)
        raise
    finally:
        work.give_back()
        if is_certain:
            with contextlib.suppress(EblaError, OSError):  # what is left behind is garbage, no more
                # What was committed may have been replaced by others since, and somebody may be reading it.
                place.end(work.job, {ref.file for one in work.done for ref in one.added})
    return work.summary(time.monotonic() - began)


@dataclass(slots=True)
class _Compaction:
    """One run of a compaction, and what it has done so far."""

    place: Place
    table: str
    table_id: str
    job: str
    spark: SparkSession
    report: Report | None
    only_due: bool
    is_committing: bool = False  # METADATA may come to name its files
    is_begun: bool = False  # the engine leaves files to it
    rounds: int = 0
    done: list[Replacement] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)
    damage: tuple[str, str] | None = None

    def run(self, wanted: Sequence[Wanted]) -> None:
        """Compact the tablets wanted, and again those that changed meanwhile."""
        while wanted:
            self.rounds += 1
            metadata, terms = self._prepare()
            merges = choose_merges(metadata, terms, wanted, only_due=self.only_due)
            failed = self._carry_out(merges, metadata, terms) if merges else {}
            if self.rounds == ROUNDS_MAX:
                names = {group.id: group.name for group in metadata.schema.groups}
                self.given_up += [
                    GivenUp(one.tablet.tablet, names[one.group], REASONS.get(reason, reason))
                    for one, reason in ((merges[number], reason) for number, reason in failed.items())
                ]
                break
            wanted = [(merges[number].range, merges[number].group) for number in failed]
        if self.damage is not None:
            file, reason = self.damage
            raise Corruption(file, f"{reason}; its tablet stays as it is, others were compacted: `ebla verify --full`")

    def _prepare(self) -> tuple[TableMetadata, CompactionTerms]:
        """Return METADATA and terms. METADATA is read later, so it has all that was flushed for the terms."""
        if self.report is not None:
            self.report(JobProgress("planning"))
        terms = self.place.carry_out(PrepareCompaction(self.job, self.table_id))
        return self.place.metadata_of(self.table_id), terms

    def _carry_out(
        self, merges: Sequence[PlannedMerge], metadata: TableMetadata, terms: CompactionTerms
    ) -> dict[int, str]:
        """Merge, and commit; return what came to nothing, by number, and why."""
        cores = self.spark.sparkContext.defaultParallelism
        portions = divide(merges, cores, terms.strategy.file_bytes, partial(_marks, self.place.root))
        task = CompactTask(
            root=self.place.root,
            table_id=self.table_id,
            schema=pack_schema(metadata.schema),
            job=self.job,
            file_bytes_max=terms.strategy.file_bytes,
            merges=tuple(merges),
            portions=tuple(map(tuple, portions)),
        )
        self._begin({ref.file for one in merges for ref in one.merge.fragments})
        results = self._on_spark(task, portions)
        failed, replacements = self._gathered(merges, portions, results)
        if replacements:
            numbers = list(replacements)
            refused = self._commit(metadata, list(replacements.values()))
            failed |= {numbers[at]: reason for at, reason in refused.items()}
        self.done += [one for number, one in replacements.items() if number not in failed]
        return failed

    def _begin(self, files: Collection[str]) -> None:
        """Have the engine leave files to this job. It spares both some work, and is no condition of anything."""
        with contextlib.suppress(EblaError):
            self.place.carry_out(BeginCompaction(self.job, self.table_id, tuple(sorted(files))))
            self.is_begun = bool(files)

    def give_back(self) -> None:
        """Let the engine have all files again, unless a commit has done so."""
        if self.is_begun:
            self._begin(())

    def _on_spark(self, task: CompactTask, portions: Sequence[Sequence[Section]]) -> list[SectionResult]:
        if not portions:
            return []
        try:
            with unwrapping(), watched(self.spark, self.job, "merging", self.report):
                numbers = self.spark.range(0, len(portions), 1, len(portions))
                # Only what reached the driver counts: one result per section, whatever else attempts left behind.
                found = numbers.mapInArrow(task.attempt, RESULT_SCHEMA).collect()
        except SPARK_ERRORS as error:
            raise StoreError(f"Spark could not merge the files, nothing was changed: {said_by_spark(error)}") from error
        results = [decode_result(bytes(row["result"])) for row in found]
        wanted = {(portion, place) for portion, own in enumerate(portions) for place in range(len(own))}
        if len(results) != len(wanted) or {(one.portion, one.place) for one in results} != wanted:
            raise StoreError("Spark did not report every section once: nothing was changed, run the job again")
        return results

    def _gathered(
        self, merges: Sequence[PlannedMerge], portions: Sequence[Sequence[Section]], results: Sequence[SectionResult]
    ) -> tuple[dict[int, str], dict[int, Replacement]]:
        """Put the sections of every merge together again; return those that came to nothing, and the others."""
        by_merge: dict[int, list[SectionResult]] = defaultdict(list)
        for result in results:
            by_merge[portions[result.portion][result.place].merge].append(result)
        failed: dict[int, str] = {}
        whole: dict[int, Replacement] = {}
        for number, one in enumerate(merges):
            own = by_merge[number]
            damaged = [result.damaged for result in own if result.damaged is not None]
            if damaged:
                self.damage = self.damage or damaged[0]
            elif any(result.missing for result in own):
                failed[number] = "missing"
            else:
                added = sorted((ref for result in own for ref in result.added), key=lambda ref: ref.first)
                read = sum(result.records_read for result in own)
                whole[number] = Replacement(one.tablet, one.group, one.merge, tuple(added), read)
        return failed, whole

    def _commit(self, metadata: TableMetadata, replacements: Sequence[Replacement]) -> dict[int, str]:
        if self.report is not None:
            self.report(JobProgress("committing"))
        self.is_committing = True
        order = CompactCommit(self.job, self.table_id, metadata.schema.version, tuple(replacements))
        answer = self.place.carry_out(order)
        self.is_committing = self.is_begun = False
        return dict(answer.refused)

    def summary(self, seconds: float) -> CompactSummary:
        """Return what was done."""
        read = {ref.file: ref for one in self.done for ref in one.merge.fragments}  # several tablets may share one
        written = [ref for one in self.done for ref in one.added]
        return CompactSummary(
            table=self.table,
            tablets=len({one.tablet.tablet for one in self.done}),
            files_read=len(read),
            files_written=len(written),
            bytes_read=sum(ref.bytes for ref in read.values()),
            bytes_written=sum(ref.bytes for ref in written),
            records_read=sum(one.records_read for one in self.done),
            records_written=sum(ref.rows for ref in written),
            rounds=self.rounds,
            given_up=tuple(self.given_up),
            seconds=seconds,
        )


def _marks(root: str, ref: FragmentRef) -> Marks:
    try:
        fragment = fragment_at(root, ref)
    except (Corruption, MissingFile):
        return []  # the task that comes upon it tells
    return list(zip(fragment.first_rows, fragment.block_rows, strict=True))
