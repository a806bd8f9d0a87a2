"""The owner's side of a compaction that is carried out elsewhere: terms first, and at the end one METADATA transaction.

    prepare    flush, horizons                         pins that are made from now on are above them
    begin      the engine's compactor leaves files alone that the job is merging, for an hour at most
    commit     adopt the files    [METADATA as it is] -- what fits --> one transaction --> show
                                        ^                                  | somebody was faster
                                        `----------------------------------'
    outcome unknown                tried again; what then has the files of the job was replaced

All that fits goes into one transaction, and what does not fit is left out of it. Replacing the fragments of a tablet
changes nothing that a reader can see, so nothing holds tablets together here: one that was split meanwhile must not
cost the work on a thousand others, and a thousand transactions, one after another, must not keep flushes waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.clock import Clock
from ebla.errors import EblaError, OutcomeUnknown, RequestError, Unavailable, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import RequirementFailed
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata
from ebla.retry import Retries
from ebla.service.job_files import check_job, job_of
from ebla.service.job_orders import (
    BeginCompaction,
    CompactCommit,
    CompactionBegun,
    CompactionTerms,
    CompactResult,
    GroupTerms,
    PrepareCompaction,
    Replacement,
    Strategy,
)
from ebla.storage.files.files import Files
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.garbage.job_merges import BUSY_SECONDS, JobMerges
from ebla.tablet.jobs.compact_changes import fitting, is_applied
from ebla.tablet.life.readiness import Readiness
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.compaction_tally import Compaction, CompactionTally
from ebla.tablet.upkeep.history import History
from ebla.tablet.upkeep.table_upkeep import TableUpkeep

_SAVES = Retries(20, 0.05)  # others save as well, all the time


class CompactDriver:
    """Serves compactions of jobs. Lock order: that of `JobMerges`, then the commit lock."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataAccess,
        files: Files,
        clock: Clock,
        server: str,
        pending: PendingFiles,
        strategy: Strategy,
        history: History,
        upkeep: TableUpkeep,
        readiness: Readiness,
        merges: JobMerges,
        tally: CompactionTally,
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._files = files
        self._clock = clock
        self._server = server
        self._pending = pending
        self._strategy = strategy
        self._history = history
        self._upkeep = upkeep
        self._readiness = readiness
        self.merges = merges
        self._tally = tally

    def prepare(self, order: PrepareCompaction) -> CompactionTerms:
        """Flush a table, and return the terms of a compaction that begins now."""
        table = self._table(order.table_id)
        self._upkeep.flush_to_compact(table)
        groups = []
        for group in table.view.schema.groups:
            horizon = self._history.agreed(table, group.id)
            groups.append(GroupTerms(group.id, horizon, self._history.unflushed(table, group.id)))
        return CompactionTerms(tuple(groups), self._strategy)

    def begin(self, order: BeginCompaction) -> CompactionBegun:
        """Have the engine leave some files to a job."""
        self._table(order.table_id)
        self.merges.begin(order.job, order.table_id, order.files)
        return CompactionBegun(BUSY_SECONDS)

    def commit(self, commit: CompactCommit) -> CompactResult:
        """Replace what was merged, as far as it still fits, in one METADATA transaction."""
        check_job(commit.job)
        with self._tables.events.held(), self.merges.lock:
            table = self._table(commit.table_id)
            added = [ref for one in commit.replacements for ref in one.added]
            files = [ref.file for ref in added]
            self._pending.adopt(files)  # from here on no sweep takes them away
            with self._pending.until_settled(files):
                self._check_files(commit, added, table.name)
                result = self._save(commit, table)
            self.merges.end(commit.job)
            refused = {number for number, _ in result.refused}
            names = {group.id: group.name for group in table.view.schema.groups}
            for number, one in enumerate(commit.replacements):
                if number not in refused:
                    self._tally.note(_told(one, table.name, names.get(one.group, "")))
            return result

    def _table(self, table_id: str) -> TableState:
        table = self._tables.find(table_id)
        if table is None:
            raise UnknownTable(f"there is no table of id {table_id} (any more): it was dropped, or is in another store")
        self._readiness.check_writable(table)
        return table

    def _check_files(self, commit: CompactCommit, added: Sequence[FragmentRef], name: str) -> None:
        for ref in added:
            directory, _, _ = ref.file.rpartition("/")
            if directory != f"fragments/{commit.table_id}" or job_of(ref.file) != commit.job:
                raise RequestError(f"{ref.file} is not a file of job {commit.job} for {name!r}")
            try:
                size = self._files.size(ref.file)
            except FileNotFoundError:
                size = -1
            except OSError as error:
                raise Unavailable(f"{ref.file} cannot be looked at: {error}: nothing was changed, retry") from error
            if size != ref.bytes:
                raise RequestError(f"{ref.file} of job {commit.job} is not as it was written: run the job again")

    def _save(self, commit: CompactCommit, table: TableState) -> CompactResult:
        unknown: OutcomeUnknown | None = None
        left = dict(enumerate(commit.replacements))
        for _ in _SAVES.attempts(self._clock):
            try:
                base = self._metadata.refresh(table.id)
                if unknown is not None:
                    # An earlier attempt may have come through after all.
                    left = {number: one for number, one in left.items() if not is_applied(base, one)}
                    self._show(table, base, commit)
                numbers = list(left)
                horizons = {group.id: self._history.agreed(table, group.id) for group in base.schema.groups}
                part = CompactCommit(commit.job, commit.table_id, commit.schema_version, tuple(left.values()))
                changes, refused = fitting(base, part, horizons)
                result = CompactResult(tuple((numbers[at], reason) for at, reason in refused.items()))
                if len(changes) == 1:
                    return result
                saved = self._metadata.commit(table.id, changes)
            except UnknownTable:
                raise UnknownTable(f"the table {table.name!r} was dropped: nothing was compacted") from None
            except RequirementFailed:
                continue  # somebody was faster
            except OutcomeUnknown as error:
                unknown = error
                continue
            except EblaError:
                if unknown is None:
                    raise
                continue  # a lost request may still be under way: only a success would be certain
            self._show(table, saved, commit)
            return result
        if unknown is not None:
            raise OutcomeUnknown(
                f"it is not known what of job {commit.job} was compacted in {table.name!r} ({unknown}): "
                "nothing is lost either way, run it again"
            ) from unknown
        raise Unavailable(f"{table.name!r} changed faster than METADATA could be saved: nothing was changed, retry")

    def _show(self, table: TableState, metadata: TableMetadata, commit: CompactCommit) -> None:
        self._tables.use_metadata(table, metadata, self._server)
        gone = {ref.file for one in commit.replacements for ref in one.merge.fragments}
        table.reader.forget(gone - set(metadata.files()))


def _told(one: Replacement, table: str, group: str) -> Compaction:
    return Compaction(
        table,
        one.tablet.tablet,
        group,
        "job",
        one.merge.is_rooted,
        len(one.merge.fragments),
        len(one.added),
        sum(ref.bytes for ref in one.merge.fragments),
        sum(ref.bytes for ref in one.added),
        one.records_read,
        sum(ref.rows for ref in one.added),
        sum(ref.bytes for ref in one.added if ref.is_history),
    )
