"""Garbage of a cluster: fragments that no table names, removed by the master that leads.

    1  floor      the oldest file that a server may still name, of all servers that count
    2  files      listed, after asking what jobs are about to write, and what they read
    3  METADATA   of every table; if one changed meanwhile, once more from the beginning
    4  judged     not named, below the floor, and a candidate for long enough: doomed
    5  floor      put on record in the configuration of each table that loses files: later changes are held against it
    6  METADATA   once more: what is named after all stays
    7  removed    while this master leads

A server counts while it is alive, and as long as METADATA has it as leader, replica or target of any tablet: whoever is
away may have asked for a change that lands late. One that was not heard in this term has an unknown floor: then only
files go whose names tell no time, which come from jobs and have intents. An error means keep.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from dataclasses import replace

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import StoreError, Unavailable, UnknownTable
from ebla.master.master import Master
from ebla.master_server.term import Term
from ebla.metadata.server.dropped import DroppedTables
from ebla.metadata.server.naming import TableNaming
from ebla.metadata.values.file_names import file_microseconds
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata_rpc.kept_metadata import KeptMetadata
from ebla.retry import RACES
from ebla.service.reports import GarbageReport
from ebla.storage.files.files import Files
from ebla.tablet.flush.pending_files import FRAGMENTS
from ebla.tablet.garbage.candidates import Candidates
from ebla.tablet.garbage.file_floor import FileFloor
from ebla.tablet.garbage.garbage_report import Seen, sum_up
from ebla.tablet.garbage.job_intents import list_intents, remove_expired
from ebla.tablet.garbage.lost_tables import look_at_strangers, lost, saved_metadata
from ebla.tablet.garbage.pins import Pins

__all__ = ["ClusterGarbage", "file_floor"]

_log = logging.getLogger(__name__)


def file_floor(master: Master) -> int:
    """Return the time below which no server names a file any more; 0 if that is not known of all that count."""
    named: set[str | None] = set()
    for info in (*master.catalog.tables.values(), *master.catalog.deleted.values()):
        for tablet in info.metadata.tablets:
            named.add(tablet.leader)
            named.update(replica.server for replica in tablet.assigned)
    now = master.now_seconds()
    known = {server.uuid: server for server in master.servers}
    counting = {uuid for uuid in named if uuid is not None} | {
        uuid for uuid, one in known.items() if now - one.heard_seconds <= master.settings.silent_after_seconds
    }
    floors = []
    for uuid in counting:
        server = known.get(uuid)
        if server is None or server.oldest_file_microseconds is None:
            return 0
        floors.append(server.oldest_file_microseconds)
    return min(floors, default=0)


class ClusterGarbage:
    """Finds and removes fragments that nobody names. Safe to use from several threads."""

    def __init__(
        self,
        coordination: CoordinationService,
        metadata: KeptMetadata,
        own_files: Files,
        root: Files,
        clock: Clock,
        age_seconds: float,
    ) -> None:
        """`own_files` has the METADATA of this master, `root` the fragments of all."""
        # Set once.
        self._coordination = coordination
        self._metadata = metadata
        self._own_files = own_files
        self._root = root
        self._clock = clock
        self._naming = TableNaming(coordination, clock)
        self._pins = Pins(coordination, clock)
        self._candidates = Candidates(coordination, root)
        self._floor = FileFloor(coordination)
        self._age_microseconds = round(age_seconds * 1_000_000)
        self.lock = threading.Lock()
        """Held while files are judged: a table that is cloned meanwhile would name what is about to go."""

    def collect(self, term: Term, *, dry_run: bool) -> GarbageReport:
        """Look at all files once. Raises without having removed anything if something cannot be read."""
        with self.lock:
            if not dry_run:
                self._pins.remove_expired()
                remove_expired(self._coordination, self._clock)
            for _ in RACES:
                try:
                    report = self._round(term, dry_run)
                except OSError as error:
                    raise StoreError(f"files cannot be listed: {error}: nothing was removed, retry") from error
                if report is not None:
                    return report
        raise Unavailable("tables changed faster than all of them could be read: nothing was removed, try again")

    def _round(self, term: Term, dry_run: bool) -> GarbageReport | None:
        floor = file_floor(term.master)
        now = self._clock.microseconds()
        prefixes = tuple(i.prefix for i in list_intents(self._coordination) if i.expires_microseconds > now)
        held = self._pins.files()
        listed = {info.path: info.size for d in self._root.list_directories(FRAGMENTS) for info in self._root.list(d)}
        saved = saved_metadata(self._own_files)
        tables = self._metadata.directory.configs()
        named = self._named(tables)
        if named is None or self._metadata.directory.configs() != tables:
            return None
        unnamed = {path: size for path, size in listed.items() if path not in named}
        strangers = look_at_strangers(self._own_files, saved, tables, DroppedTables(self._coordination).ids(), unnamed)
        seen = Seen.of(listed, named, {}, strangers)
        young = {path for path in unnamed if (given_out := file_microseconds(path)) and given_out >= floor}
        before, version = self._candidates.read()
        report, verdict = sum_up(seen, young, held, prefixes, before, now, self._age_microseconds)
        if dry_run:
            return report
        if strangers.lost:
            raise lost(strangers.lost)
        removed = self._remove(term, verdict.doomed, floor)
        self._candidates.remember(verdict.candidates, version)
        if removed:
            _log.info("removed %d files that no table names", len(removed))
        return replace(report, removed=tuple(removed))

    def _named(self, tables: dict[str, TableConfig]) -> Counter[str] | None:
        """Return how many tables name each file; None if a table is not as its configuration says (any more)."""
        named: Counter[str] = Counter()
        for table_id, config in tables.items():
            if not config.is_there:
                continue
            try:
                metadata = self._current(table_id, config)
            except UnknownTable:
                return None
            if metadata.txnid != config.metadata_txnid:
                return None
            named.update(set(metadata.files()))
        return named

    def _current(self, table_id: str, config: TableConfig) -> TableMetadata:
        if config.is_deleted:
            return self._metadata.store.load(table_id, config.metadata_txnid)
        return self._metadata.refresh(table_id)

    def _remove(self, term: Term, doomed: tuple[str, ...], floor: int) -> list[str]:
        """Remove files unless a table names them after all, once none can begin to."""
        if not doomed:
            return []
        losing = {path.split("/")[1] for path in doomed if file_microseconds(path) is not None}
        if losing:
            self._floor.raise_to(floor)
        for table_id in losing & self._metadata.directory.configs().keys():
            with contextlib.suppress(UnknownTable):  # it is gone, and nothing changes it any more
                self._naming.raise_file_floor(table_id, floor)
        named = self._named(self._metadata.directory.configs())
        if named is None:
            raise Unavailable("tables changed while all of them were read: nothing was removed, try again")
        removed: list[str] = []
        for path in doomed:
            if term.is_over:
                raise Unavailable(f"this master leads no more, {len(removed)} files were removed: ask another")
            if path not in named:
                with contextlib.suppress(OSError):  # the next round tries again
                    self._root.delete(path)
                    removed.append(path)
        return removed
