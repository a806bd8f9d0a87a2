"""What the master that leads does for the shared root now and then: garbage, and logs of servers that do not return.

    garbage    fragments that no table names                               cluster_garbage.py
    logs       log/<server>/<start> of servers whose lease nobody holds, once no tablet names the run

A server removes the logs of its own former runs. Those of one that never returns are removed here: its lease is looked
at after its runs were listed, and is taken if it is silent, so every run on the list is over. What such a run still
writes is acknowledged to nobody; should it come back, it begins a run with a number of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ebla.clock import Clock
from ebla.coordination.server_lease import LeaseWatch
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, Unavailable
from ebla.master_server.cluster_garbage import ClusterGarbage
from ebla.master_server.term import Term
from ebla.metadata_rpc.kept_metadata import KeptMetadata
from ebla.service.reports import VerifyReport
from ebla.storage.files.files import Files
from ebla.tablet.check.verify import Verifier
from ebla.tablet.lead.old_logs import OldLogs

__all__ = ["ClusterCare", "GoneLogs", "verify_cluster"]

LOGS = "log"

_log = logging.getLogger(__name__)


class GoneLogs:
    """Removes the logs of servers that do not return. For one thread."""

    def __init__(self, root: Files, coordination: CoordinationService, metadata: KeptMetadata, clock: Clock) -> None:
        # Set once.
        self._root = root
        self._coordination = coordination
        self._metadata = metadata
        self._clock = clock
        self._leases = LeaseWatch(coordination, clock)
        # The thread's own: one for each server that is away, for a log goes when it was not needed in two looks.
        self._looks: dict[str, OldLogs] = {}

    def sweep(self) -> list[str]:
        """Look once, and return the runs whose logs are gone."""
        gone: list[str] = []
        for path in self._root.list_directories(LOGS):
            server = path.rpartition("/")[2]
            runs = [one.rpartition("/")[2] for one in self._root.list_directories(path)]
            newest = max((int(number) for number in runs if number.isdecimal()), default=0)
            # The lease is looked at after the runs: one that began later is not among them.
            if not newest or not self._leases.is_over(server):
                self._looks.pop(server, None)
                continue
            looks = self._looks.get(server)
            if looks is None:
                looks = self._looks[server] = OldLogs(
                    self._root, self._coordination, self._metadata, self._clock, server, newest + 1
                )
            gone += looks.sweep()
        return gone


class ClusterCare:
    """A thread that looks after the root while this master leads."""

    def __init__(self, garbage: ClusterGarbage, logs: GoneLogs, round_seconds: float) -> None:
        # Set once.
        self._garbage = garbage
        self._logs = logs
        self._round_seconds = round_seconds
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, leading: Callable[[], Term]) -> None:
        """Begin; `leading` returns the term, or raises if this master does not lead."""
        self._thread = threading.Thread(target=self._run, args=(leading,), name="ebla-cluster-care", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look after nothing any more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, leading: Callable[[], Term]) -> None:
        while not self._stopping.wait(self._round_seconds):
            try:
                term = leading()
            except Unavailable:
                continue
            try:
                self._garbage.collect(term, dry_run=False)
                self._logs.sweep()
            except (EblaError, OSError) as error:
                _log.warning("a round of garbage collection was given up: %s", error)
            except Exception:
                _log.exception("a round of garbage collection failed, and is tried again")


def verify_cluster(
    coordination: CoordinationService, metadata: KeptMetadata, own_files: Files, root: Files
) -> VerifyReport:
    """Hold METADATA of all tables against the files that they name, and change nothing."""
    for entry in metadata.list_tables():
        metadata.refresh(entry.table_id)  # what this master lacks of it is fetched from the others
    return Verifier(coordination, root, metadata.directory, (own_files, metadata.store)).verify()
