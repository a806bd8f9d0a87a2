"""Carrying out bulk commits: reserve txns, save METADATA, show it.

    check                job, files, schema                                    nothing has happened yet
    reserve              [commit lock] txns T.., gate closed
    drain                the log up to what came before T is durable and stable
    compare              rows that the job read have not changed since, if it says when that was
    save                 one METADATA transaction; from here on the commit has happened
    show                 [commit lock] new view, row cache emptied, committed = T, gate open

    refused              the gate opens, the txns are never used
    outcome unknown      asked again under the same job id until it is certain; if it never is, the store stops writing

No snapshot that was served before can change: the txns are new, and what is read at them waits for the gate.
"""

from __future__ import annotations

import logging

from ebla.clock import Clock, TxnClock
from ebla.errors import Conflict, EblaError, MissingFile, OutcomeUnknown, RequestError, Unavailable, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import RequirementFailed
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata
from ebla.retry import SAVES
from ebla.service.job_files import check_job, job_of
from ebla.service.job_orders import BulkCommit, BulkResult
from ebla.storage.files.files import Files
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.jobs.bulk import bulk_changes, count_layers
from ebla.tablet.jobs.unchanged import check_rows_unchanged
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.passing_txns import PassingTxns
from ebla.tablet.write.sequencer import Sequencer
from ebla.timing import now_seconds

_TABLETS_CHANGED = ("unknown_tablet", "stale_epoch", "wrong_tablets")

_log = logging.getLogger(__name__)


class _Unsettled(OutcomeUnknown):
    """It could not be found out whether METADATA has the commit."""


class BulkDriver:
    """Carries out bulk commits, one at a time. Lock order: that of txns that pass."""

    def __init__(
        self,
        tables: OpenTables,
        gate: Gate,
        sequencer: Sequencer,
        txn_clock: TxnClock,
        metadata: MetadataAccess,
        files: Files,
        clock: Clock,
        server: str,
        state: OpenState,
        passing: PassingTxns,
        pending: PendingFiles,
    ) -> None:
        # Set once.
        self._tables = tables
        self._gate = gate
        self._sequencer = sequencer
        self._txn_clock = txn_clock
        self._metadata = metadata
        self._files = files
        self._clock = clock
        self._server = server
        self._state = state
        self._passing = passing
        self._pending = pending
        # Written by whoever holds the lock, read by others.
        self.commits = 0

    def commit(self, commit: BulkCommit) -> BulkResult:
        """Make the files of a job part of their table, or find that they are."""
        check_job(commit.job)
        began = now_seconds()
        with self._tables.events.held(), self._passing.lock:
            log = self._state.writable_log()
            table = self._table(commit.table_id)
            metadata = self._metadata.refresh(commit.table_id)
            done = commit.done_at(metadata)
            if done is not None:
                return BulkResult(done, repeated=True)
            files = [one.fragment.file for one in commit.fragments]
            self._pending.adopt(files)  # from here on no sweep takes them away
            with self._pending.until_settled(files):
                check_fits(commit, table.name, metadata, self._files)
                result = self._commit(commit, table, log)
            self.commits += 1
            _log.info(
                "bulk commit of job %s to %s: %d files, %d bytes, txn %d, in %.3f s",
                commit.job,
                table.name,
                len(files),
                sum(one.fragment.bytes for one in commit.fragments),
                result.txn,
                now_seconds() - began,
            )
            return result

    def _commit(self, commit: BulkCommit, table: TableState, log: CommitLog) -> BulkResult:
        layers = count_layers(commit)
        self._passing.wait_stable(
            log, self._sequencer.allocated
        )  # most of the waiting, before others have to wait for us
        return BulkResult(self._carry_out(commit, table, log, layers), repeated=False)

    def _table(self, table_id: str) -> TableState:
        table = self._tables.find(table_id)
        if table is None:
            raise UnknownTable(f"there is no table of id {table_id} (any more): it was dropped, or is in another store")
        return table

    def _carry_out(self, commit: BulkCommit, table: TableState, log: CommitLog, layers: int) -> int:
        """Reserve the txns, save and show; return the last of them."""
        first = 0
        is_refused = True
        try:
            with self._tables.lock:
                log = self._state.writable_log()
                before = self._sequencer.allocated
                first = self._txn_clock.next_block(layers)
                self._gate.close(first)
            self._passing.wait_stable(log, before)
            if commit.unchanged_since is not None:
                check_rows_unchanged(table, [one.fragment for one in commit.fragments], commit.unchanged_since)
            is_refused = False
            try:
                metadata = self._save(commit, table, first)
            except _Unsettled:
                raise
            except EblaError:
                is_refused = True
                raise
            self._show(table, metadata, first + layers - 1)
        except BaseException as error:
            if is_refused:
                self._passing.open_again(first)
                raise
            # METADATA may have it. A later txn in the log would then come before it for some readers.
            log.fail(error)
            with self._tables.lock:
                self._gate.stay_closed()
            raise
        return first + layers - 1

    def _save(self, commit: BulkCommit, table: TableState, first: int) -> TableMetadata:
        """Save the METADATA transaction. Any error but `_Unsettled` means that it is not there and never will be."""
        unknown: EblaError | None = None
        refused: EblaError | None = None
        for attempt in SAVES.attempts(self._clock):
            try:
                base = self._metadata.refresh(table.id) if attempt else self._metadata.read(table.id)
                if commit.done_at(base) is not None:
                    return base  # an earlier attempt did land
                return self._metadata.commit(table.id, bulk_changes(commit, base, first))
            except UnknownTable:
                raise UnknownTable(f"the table {table.name!r} was dropped: nothing of job {commit.job} stays") from None
            except OutcomeUnknown as error:
                unknown = error
            except EblaError as error:
                refused = error
                if unknown is None and not (isinstance(error, RequirementFailed) and error.code in _TABLETS_CHANGED):
                    break
                # After an unknown outcome only a success is certain: the lost request may still be under way.
        if unknown is not None:
            raise _Unsettled(
                f"it is not known whether job {commit.job} was applied to {table.name!r} ({unknown}): "
                "reopen the store, and repeat the commit under the same job id"
            ) from unknown
        assert refused is not None
        if isinstance(refused, RequirementFailed):
            if refused.code == "schema_version":
                raise _schema_changed(commit, table.name) from refused
            raise Conflict(f"job {commit.job} does not fit {table.name!r}: {refused}: run it again") from refused
        raise refused

    def _show(self, table: TableState, metadata: TableMetadata, last: int) -> None:
        with self._tables.lock:
            table.use_metadata(metadata, self._server)
            # Which rows changed is not known one by one: like a range erasure, it may be any of them.
            table.raise_floor(last)
            table.row_cache.clear(last)
            self._sequencer.allocate(last)
            self._sequencer.commit(last)
            self._gate.open()
        self._tables.events.deliver()


def check_fits(commit: BulkCommit, name: str, metadata: TableMetadata, files: Files) -> None:
    """Raise if a commit does not fit its table, which has that name, or a file of it is not as it was written."""
    if commit.schema_version != metadata.schema.version:
        raise _schema_changed(commit, name)
    for one in commit.fragments:
        ref = one.fragment
        directory, _, _ = ref.file.rpartition("/")
        if directory != f"fragments/{commit.table_id}" or job_of(ref.file) != commit.job:
            raise RequestError(f"{ref.file} is not a file of job {commit.job} for {name!r}")
        if one.group not in metadata.schema.group_by_id or ref.schema_version != commit.schema_version:
            raise RequestError(f"{ref.file} was written for another schema of {name!r}: run the job again")
        check_file(files, ref, commit.job)


def check_file(files: Files, ref: FragmentRef, job: str) -> None:
    """Raise if a file of a job is not as it was written."""
    try:
        size = files.size(ref.file)
    except FileNotFoundError:
        raise MissingFile(f"{ref.file} of job {job} is not there: run the job again") from None
    except OSError as error:
        raise Unavailable(f"{ref.file} cannot be looked at: {error}: nothing was changed, retry") from error
    if size != ref.bytes:
        raise MissingFile(f"{ref.file} has {size} bytes, not the {ref.bytes} written: run the job again")


def _schema_changed(commit: BulkCommit, name: str) -> Conflict:
    return Conflict(
        f"the schema of {name!r} is not version {commit.schema_version} any more, which job {commit.job} was planned "
        "for: run the job again"
    )
