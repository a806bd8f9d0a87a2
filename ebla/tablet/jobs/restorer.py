"""Bringing in a whole table whose files a job has copied into the store: by name, or in the place of another.

    check     job, name, files, the clock against the newest txn in them          nothing has happened yet
    pass      a txn R passes that no record has: everything before it is durable   bulk_driver.py
    create    one METADATA creation that records the job at R: the table is there, or is not
              (in place: and the table that had the name is dropped, in the same step)

The txns in the files are those of another table, perhaps of another store. R lies behind all of them, and so does every
txn that is given out later; whoever opens the store finds R in METADATA and reads at R or later. So a restored row is
neither in the future nor half visible, and a later write to it is newer. A txn that the clock of this machine has not
nearly reached is refused, as everywhere.
"""

from __future__ import annotations

from ebla.clock import TxnClock
from ebla.errors import ClockSkew, Conflict, RequestError, TableExists
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.restoring import appeared, every_reference, unpack_metadata
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.declaration import check_table_name
from ebla.service.job_files import check_job, job_of
from ebla.service.job_orders import BulkResult, RestoreCommit
from ebla.storage.files.files import Files
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.jobs.bulk_driver import check_file
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.passing_txns import PassingTxns

__all__ = ["Restorer", "check_restored", "newest_txn"]


class Restorer:
    """Brings in tables. Lock order: that of txns that pass."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataAccess,
        files: Files,
        txn_clock: TxnClock,
        passing: PassingTxns,
        lifecycle: TableLifecycle,
        pending: PendingFiles,
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._files = files
        self._txn_clock = txn_clock
        self._passing = passing
        self._lifecycle = lifecycle
        self._pending = pending

    def commit(self, commit: RestoreCommit) -> BulkResult:
        """Make the table of a job part of the store, or find that it is."""
        check_job(commit.job)
        # As for a bulk commit: while files are judged by a sweep for the last time, nobody begins to name them.
        with self._tables.events.held(), self._passing.lock:
            done = self._txn_of(commit)
            if done is not None:
                return BulkResult(done, repeated=True)
            return BulkResult(self._commit(commit), repeated=False)

    def _commit(self, commit: RestoreCommit) -> int:
        former = self._former(commit)
        metadata = unpack_metadata(commit.metadata, f"job {commit.job}")
        files = set(metadata.files())
        self._pending.adopt(files)  # from here on no sweep takes them away
        with self._pending.until_settled(files):
            check_restored(commit, metadata, self._files, self._txn_clock)
            txn = self._passing.pass_txn()
            made = appeared(metadata, commit.job, txn, without_history=former is not None)
            self._lifecycle.bring(commit.name, made, txn, former)
        return txn

    def _txn_of(self, commit: RestoreCommit) -> int | None:
        config = self._metadata.directory.config(commit.table_id)
        if config is None or not config.is_there:
            return None
        return self._metadata.refresh(commit.table_id).job_txn(commit.job)

    def _former(self, commit: RestoreCommit) -> TableState | None:
        """Return the table that is to be replaced, if one is; raise if the name is not as the job found it."""
        check_table_name(commit.name)
        if commit.replaces is None:
            try:
                self._metadata.directory.check_free(commit.name)
            except TableExists:
                raise TableExists(
                    f"there is a table {commit.name!r} already: restore under another name, or in its place"
                ) from None
            return None
        former = self._tables.named(commit.name)
        if former.id != commit.replaces:
            raise Conflict(f"{commit.name!r} is another table than when the job began: look at it, and run it again")
        return former


def check_restored(commit: RestoreCommit, metadata: TableMetadata, files: Files, txn_clock: TxnClock) -> None:
    """Raise unless a table that a job brings is whole, and not from the future."""
    metadata.schema.check()
    metadata.check()
    if metadata.table_id != commit.table_id:
        raise RequestError(f"job {commit.job} brings table {metadata.table_id}, not {commit.table_id}")
    for ref in every_reference(metadata).values():
        # Copies lie below the id of the table that wrote them, a part of the job for each such id.
        if (job_of(ref.file) or "").rpartition(".")[0] != commit.job:
            raise RequestError(f"{ref.file} is not a file of job {commit.job}")
        check_file(files, ref, commit.job)
    try:
        txn_clock.observe(newest_txn(metadata))
    except ClockSkew as error:
        raise ClockSkew(
            f"the backup was taken later than it is here by the clock of this machine ({error}): "
            "set the clock right, or wait until then"
        ) from None


def newest_txn(metadata: TableMetadata) -> int:
    """Return the newest txn that METADATA mentions: of records, erasures, floors, and families that were dropped."""
    floors = (state.floor_txn for tablet in metadata.tablets for state in tablet.groups)
    dropped = (family.txn for family in metadata.schema.dropped)
    return max(metadata.newest_txn, *floors, *dropped, 0)
