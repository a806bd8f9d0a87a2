"""The logs of former runs go when no tablet needs them any more.

    log/<server>/6    named by tablet 2 in METADATA     kept: it was not taken over yet
    log/<server>/7    named by none, seen so twice      its record goes, then its files
    log/<server>/8    this run                          never looked at

METADATA names a run before anything in its log is acknowledged, and a run that is over gains no tablet; but a change
that it asked for may land late. So a log is let go only if it was unnamed in a look before, and its record, which says
what must be there, goes first: whoever should still be sent to that log finds it empty, as nothing in it was promised.
An error means that nothing is removed. The bound of the clock stays: those who led after the run go by it.
"""

from __future__ import annotations

import logging

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.storage.files.files import Files
from ebla.tablet.lead.run import run_name

__all__ = ["OldLogs"]

LOOK_SECONDS = 60.0

_log = logging.getLogger(__name__)


class OldLogs:
    """Looks for logs of former runs of one server, now and then. For one thread."""

    def __init__(
        self,
        files: Files,
        coordination: CoordinationService,
        metadata: MetadataAccess,
        clock: Clock,
        server: str,
        start: int,
    ) -> None:
        # Set once.
        self._files = files
        self._coordination = coordination
        self._metadata = metadata
        self._clock = clock
        self._server = server
        self._start = start
        # The thread's own.
        self._looked_at: float | None = None
        self._unnamed: set[str] = set()  # in the last look

    def sweep_if_due(self) -> None:
        """Look if the last look was long enough ago; what fails is looked at again in the next."""
        now = self._clock.monotonic_seconds()
        if self._looked_at is not None and now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            self.sweep()
        except (EblaError, OSError) as error:
            self._unnamed = set()
            _log.warning("logs of former runs were not removed: %s", error)

    def sweep(self) -> list[str]:
        """Remove the logs that no tablet names, now or in the look before; return the runs whose logs are gone."""
        there = self._former_runs()
        unnamed = there - self._named() if there else set()
        gone = sorted(unnamed & self._unnamed)
        for run in gone:
            self._remove(run)
        self._unnamed = unnamed - set(gone)
        return gone

    def _former_runs(self) -> set[str]:
        found = set()
        for path in self._files.list_directories(f"log/{self._server}"):
            number = path.rpartition("/")[2]
            if number.isdecimal() and int(number) < self._start:
                found.add(run_name(self._server, int(number)))
        return found

    def _named(self) -> set[str]:
        """Return the runs that some tablet of some table names; raises unless every table could be read."""
        named = set()
        for table_id in [*(entry.table_id for entry in self._metadata.list_tables()), *self._retained()]:
            try:
                tablets = self._metadata.refresh(table_id).tablets
            except UnknownTable:
                continue  # dropped since it was listed
            named |= {tablet.log for tablet in tablets if tablet.log is not None}
        return named

    def _retained(self) -> list[str]:
        return [*self._metadata.directory.retained()]

    def _remove(self, run: str) -> None:
        node = self._coordination.read(f"logs/{run}")
        if node is not None:
            self._coordination.delete(f"logs/{run}", node.version)
        for info in self._files.list(f"log/{run}"):
            self._files.delete(info.path)
        self._files.remove_directory(f"log/{run}")
        _log.info("removed the log of run %s, which no tablet needs", run)
