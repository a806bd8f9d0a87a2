"""What bulk jobs have a cluster do: intents for files to come, and commits over all servers of a table, all or nothing.

    check       job, files, schema; who leads the tablets                        nothing has happened yet
    gates       every leader closes its gate and reserves txns t                 cluster_gates.py
    save        one METADATA transaction at T, the largest of all t: the files for all tablets, the job, the attempt
    open        the leaders are told to look, and say when they show it; they find out by themselves, should this
                master die

    refused     the attempt is put on record as aborted, and tried again if tablets have only changed hands or cuts

The transaction names the epochs of the leaders that hold the gates, so that one which lost its tablets meanwhile makes
it fail. Who asks again under the same job id is told what became of it: a job is applied once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import Conflict, EblaError, OutcomeUnknown, StaleRoute, TableUnloaded, TimedOut, Unavailable
from ebla.master.calls import CloseGate
from ebla.master_server.cluster_gates import ClusterGates
from ebla.master_server.term import Term
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import RecordJob, RequirementFailed
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.retry import SAVES
from ebla.service.job_files import check_job
from ebla.service.job_orders import BulkCommit, BulkResult
from ebla.service.requests import BeginJob, EndJob
from ebla.storage.files.files import Files
from ebla.tablet.garbage.job_intents import begin_job, end_job
from ebla.tablet.jobs.bulk import bulk_changes, count_layers
from ebla.tablet.jobs.bulk_driver import check_fits

__all__ = ["ClusterJobs"]

# So long a commit is tried again while tablets change hands, are cut, or another one holds a gate.
COMMIT_SECONDS = 30.0
PAUSE_SECONDS = 0.2


class ClusterJobs:
    """Carries out the orders of bulk jobs. Safe to use from several threads."""

    def __init__(
        self,
        coordination: CoordinationService,
        metadata: MetadataAccess,
        root: Files,
        clock: Clock,
        gates: ClusterGates,
    ) -> None:
        # Set once.
        self._coordination = coordination
        self._metadata = metadata
        self._root = root
        self._clock = clock
        self._gates = gates

    def handlers(self) -> Mapping[type, Callable[[Term, Any], object]]:
        """Return what answers the requests of jobs."""
        return {BeginJob: self._begin, EndJob: self._end, BulkCommit: self._commit}

    def _begin(self, term: Term, request: BeginJob) -> str:
        table_id = request.table_id or term.master.catalog.table(request.table).id
        return begin_job(self._coordination, self._clock, request.job, table_id, request.expires_seconds).table_id

    def _end(self, term: Term, request: EndJob) -> list[str]:
        return end_job(self._coordination, self._metadata, self._root, request.job, request.keep)

    # --- bulk commits ---

    def _commit(self, term: Term, commit: BulkCommit) -> BulkResult:
        check_job(commit.job)
        refused: EblaError | None = None
        with self._gates.alone:
            ends_at = self._clock.monotonic_seconds() + COMMIT_SECONDS
            while refused is None or self._clock.monotonic_seconds() < ends_at:
                if refused is not None:
                    self._clock.sleep(PAUSE_SECONDS)
                metadata = self._metadata.refresh(commit.table_id)
                done = commit.done_at(metadata)
                if done is not None:
                    return BulkResult(done, repeated=True)
                check_fits(commit, self._metadata.name_of(commit.table_id), metadata, self._root)
                try:
                    return BulkResult(self._attempt(term, commit, metadata), repeated=False)
                except TableUnloaded:
                    raise
                except (StaleRoute, TimedOut, Unavailable) as error:
                    refused = error
        raise Unavailable(f"job {commit.job} was not committed, retry: {refused}") from refused

    def _attempt(self, term: Term, commit: BulkCommit, metadata: TableMetadata) -> int:
        """Commit a job on this METADATA, and return its txn; `StaleRoute` if tablets have changed since."""
        attempt = f"attempt-{uuid.uuid4()}"
        layers = count_layers(commit)
        leaders = self._gates.leaders(term, self._metadata.name_of(commit.table_id), metadata.tablets)
        files = () if commit.unchanged_since is None else tuple(one.fragment for one in commit.fragments)
        gate = CloseGate(attempt, commit.table_id, (), layers, commit.unchanged_since, files)
        try:
            first = self._gates.close(leaders, gate)
            txn = self._save(commit, metadata, attempt, first, first + layers - 1)
        except OutcomeUnknown:
            raise  # the leaders find out
        except BaseException:
            self._gates.abort(commit.table_id, attempt)
            raise
        finally:
            telling = self._gates.tell(leaders, attempt)
        # Whoever is told that it is done finds it done, on every server.
        for told in telling:
            told.result()
        return txn

    def _save(self, commit: BulkCommit, metadata: TableMetadata, attempt: str, first: int, last: int) -> int:
        """Save the transaction. Any error but `OutcomeUnknown` means that it is not there and never will be."""
        changes = [RecordJob(attempt, last), *bulk_changes(commit, metadata, first)]
        unknown: OutcomeUnknown | None = None
        for _ in SAVES.attempts(self._clock):
            try:
                if unknown is not None:
                    recorded = self._metadata.refresh(commit.table_id).job_txn(attempt)
                    if recorded is not None:
                        return _committed(recorded)
                self._metadata.commit(commit.table_id, changes)
                return last
            except OutcomeUnknown as error:
                unknown = error
            except RequirementFailed as error:
                if error.code == "job_done":
                    # By this very request, or as aborted, by a leader that has waited for too long.
                    return _committed(self._metadata.refresh(commit.table_id).job_txn(attempt) or 0)
                if unknown is None:
                    raise _not_fitting(commit, error) from error
            except EblaError:
                if unknown is None:
                    raise
        raise OutcomeUnknown(
            f"it is not known whether job {commit.job} was committed ({unknown}): repeat it under the same id"
        ) from unknown


def _committed(txn: int) -> int:
    if not txn:
        raise TimedOut("the leaders have waited for too long, and the commit was aborted")
    return txn


def _not_fitting(commit: BulkCommit, error: RequirementFailed) -> EblaError:
    if error.code in ("unknown_tablet", "stale_epoch", "wrong_tablets"):
        return StaleRoute(f"tablets have changed meanwhile: {error}")
    return Conflict(f"job {commit.job} does not fit its table: {error}: run it again")
