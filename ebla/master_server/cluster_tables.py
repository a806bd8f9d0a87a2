"""Tables of a cluster as a whole: cloned, brought from a backup, taken offline and back.

    clone      gates closed and all flushed --> METADATA is all there is of the origin --> gates open --> a new table
    restore    files that a job has copied, checked --> a new table, or one in the place of another
    unload     every leader flushes its tablets, gives them up, and has METADATA say that they are offline
    load       METADATA says that they are not; they are offered like the tablets of a server that is gone

A table that comes with a past is there with one METADATA creation, or is not; nobody leads its tablets then, and
whoever takes them over passes every txn that they have. An unloading that cannot be finished is undone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ebla.clock import Clock, TxnClock
from ebla.errors import (
    EblaError,
    OutcomeUnknown,
    RequestError,
    StaleRoute,
    TableUnloaded,
    TimedOut,
    Unavailable,
    UnknownTable,
)
from ebla.master.calls import CloseGate, UnloadHere
from ebla.master.table_info import TableInfo
from ebla.master_server.cluster_garbage import ClusterGarbage
from ebla.master_server.cluster_gates import ClusterGates
from ebla.master_server.term import Term
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.clone import cloned
from ebla.metadata.values.restoring import appeared, unpack_metadata
from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.service.job_files import check_job
from ebla.service.job_orders import BulkResult, RestoreCommit
from ebla.service.requests import CloneTable, LoadTable, UnloadTable
from ebla.storage.files.files import Files
from ebla.tablet.jobs.restorer import check_restored, newest_txn

__all__ = ["ClusterTables", "unloaded", "wait_until_served"]

# So long something is tried again while tablets change hands, are cut, or another one holds a gate.
TRY_SECONDS = 30.0
PAUSE_SECONDS = 0.2
# So long a new table is waited for until all of its tablets are served. It is there in any case.
SERVED_SECONDS = 20.0
# A leader flushes all that it has of a table before it gives it up.
UNLOAD_SECONDS = 20.0


class ClusterTables:
    """Clones, restores, unloads and loads tables. Safe to use from several threads."""

    def __init__(
        self,
        metadata: MetadataAccess,
        root: Files,
        clock: Clock,
        gates: ClusterGates,
        garbage: ClusterGarbage,
        new_id: Callable[[], str],
    ) -> None:
        # Set once.
        self._metadata = metadata
        self._root = root
        self._clock = clock
        self._gates = gates
        self._garbage = garbage
        self._new_id = new_id

    def handlers(self) -> Mapping[type, Callable[[Term, Any], object]]:
        """Return what answers the requests."""
        return {
            CloneTable: self._clone,
            RestoreCommit: self._restore,
            UnloadTable: self._unload,
            LoadTable: self._load,
        }

    # --- tables with a past ---

    def _clone(self, term: Term, request: CloneTable) -> None:
        origin = term.master.catalog.table(request.origin)
        if request.name in term.master.catalog.names:
            term.master.catalog.reserve(request.name, "")  # raises, and says so
        with self._garbage.lock:  # a round would not know of the references that are to come
            taken = self._held_still(term, origin)
            info = term.run(term.master.bring_table(request.name, cloned(taken, self._new_id(), self._new_id)))
        wait_until_served(term, info)
        wanted = max(tablet.wanted for tablet in taken.tablets)
        if wanted > 1:  # others learn from whoever leads it by now
            term.run(term.master.set_replicas(request.name, wanted))

    def _held_still(self, term: Term, origin: TableInfo) -> TableMetadata:
        """Return METADATA with all of a table in it, as it is at one moment."""
        refused: EblaError | None = None
        ends_at = self._clock.monotonic_seconds() + TRY_SECONDS
        with self._gates.alone:
            while self._clock.monotonic_seconds() < ends_at:
                try:
                    return self._still(term, origin)
                except (StaleRoute, TimedOut, Unavailable) as error:
                    refused = error
                    self._clock.sleep(PAUSE_SECONDS)
        raise Unavailable(f"{origin.name!r} cannot be held still to be cloned, retry: {refused}") from refused

    def _still(self, term: Term, origin: TableInfo) -> TableMetadata:
        metadata = self._metadata.refresh(origin.id)
        loaded = [tablet for tablet in metadata.tablets if tablet.state != UNLOADED]
        if not loaded:
            return metadata
        attempt = f"clone-{uuid.uuid4()}"
        leaders = self._gates.leaders(term, origin.name, loaded)
        try:
            self._gates.close(leaders, CloseGate(attempt, origin.id, (), 1, is_flushed=True))
            taken = self._metadata.refresh(origin.id)
        finally:
            self._gates.abort(origin.id, attempt)
            self._gates.tell(leaders, attempt)
        # While METADATA does not have the attempt, no gate has opened; so all that was written before is in it.
        if taken.job_txn(attempt) is not None:
            raise TimedOut("the leaders have waited for too long")
        if [(one.id, one.epoch) for one in taken.tablets] != [(one.id, one.epoch) for one in metadata.tablets]:
            raise StaleRoute("tablets have changed hands or cuts meanwhile")
        return taken

    def _restore(self, term: Term, commit: RestoreCommit) -> BulkResult:
        check_job(commit.job)
        done = self._done(commit)
        if done is not None:
            return BulkResult(done, repeated=True)
        metadata = unpack_metadata(commit.metadata, f"job {commit.job}")
        clock = TxnClock(self._clock, 0)
        check_restored(commit, metadata, self._root, clock)
        clock.pass_by(newest_txn(metadata))
        txn = clock.next()
        made = appeared(metadata, commit.job, txn, without_history=commit.replaces is not None)
        info = term.run(term.master.bring_table(commit.name, made, replacing=commit.replaces))
        wait_until_served(term, info)
        return BulkResult(txn, repeated=False)

    def _done(self, commit: RestoreCommit) -> int | None:
        try:
            return self._metadata.refresh(commit.table_id).job_txn(commit.job)
        except UnknownTable:
            return None

    # --- offline and back ---

    def _unload(self, term: Term, request: UnloadTable) -> None:
        info = term.master.catalog.table(request.name)
        wanted = _chosen(info.metadata, info.name, request.tablet)
        if any(one.is_replicated for one in info.metadata.tablets if one.id in wanted):
            raise RequestError(f"{info.name!r} has several replicas: a cluster takes tables with one offline")
        before = [one.id for one in info.metadata.tablets if one.state == UNLOADED]
        refused: EblaError | None = None
        ends_at = self._clock.monotonic_seconds() + TRY_SECONDS
        while refused is None or self._clock.monotonic_seconds() < ends_at:
            if refused is not None:
                self._clock.sleep(PAUSE_SECONDS)
            metadata = self._metadata.refresh(info.id)
            # Those that a split has made meanwhile are to go as well.
            wanted = wanted if request.tablet is not None else [tablet.id for tablet in metadata.tablets]
            left = [one for one in metadata.tablets if one.id in wanted and one.state != UNLOADED]
            if not left:
                term.run(term.master.refresh([info.id]))
                return
            try:
                leaders = self._gates.leaders(term, info.name, left)
                asked = {address: UnloadHere(info.id, tuple(tablets)) for address, tablets in leaders.items()}
                self._gates.ask(asked, UNLOAD_SECONDS)
                refused = None
            except (StaleRoute, TimedOut, Unavailable, OutcomeUnknown) as error:
                refused = error
        term.run(term.master.refresh([info.id]))
        term.run(term.master.load_tablets(info.name, set(wanted).difference(before)))
        raise Unavailable(f"{info.name!r} could not be taken offline, and is not, retry: {refused}") from refused

    def _load(self, term: Term, request: LoadTable) -> None:
        info = term.master.catalog.table(request.name)
        term.run(term.master.refresh([info.id]))
        wanted = _chosen(info.metadata, info.name, request.tablet)
        term.run(term.master.load_tablets(request.name, wanted))
        if not wait_until_served(term, info, wanted):
            raise TimedOut(f"{info.name!r} is to be served again, and is not yet: see `ebla status`")


def _chosen(metadata: TableMetadata, name: str, tablet: str | None) -> Sequence[str]:
    if tablet is None:
        return [one.id for one in metadata.tablets]
    found = [one.id for one in metadata.tablets if one.id.startswith(tablet)] if tablet else []
    if len(found) != 1:
        raise RequestError(f"{len(found)} tablets of {name!r} are called {tablet!r}: see Table.tablets()")
    return found


def wait_until_served(term: Term, info: TableInfo, tablets: Sequence[str] | None = None) -> bool:
    """Return when the leaders of all tablets, or of some, have said that they serve them; False if it takes long."""
    servers = term.master.servers

    def is_served() -> bool:
        return all(
            tablet.is_served and tablet.leader is not None and servers.runs(tablet.leader, tablet.id, tablet.epoch)
            for tablet in info.metadata.tablets
            if tablets is None or tablet.id in tablets
        )

    return term.wait_for(is_served, SERVED_SECONDS)


def unloaded(name: str) -> TableUnloaded:
    """Return the error for whoever asks for rows of a table, or of a part of it, that is offline."""
    return TableUnloaded(f"the table {name!r} is not loaded: load it with load_table, then retry")
