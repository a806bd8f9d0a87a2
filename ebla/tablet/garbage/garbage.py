"""Garbage: fragments that no METADATA names any more, METADATA of tables that were dropped, and when they may go.

A file may go when all of this holds:

    no table names it                            METADATA of every table is read, after the files were listed
    it is not about to be named                  flushes and compactions say so before they make a file, jobs by intents
    nobody reads it by its name                  jobs hold such files, with their snapshot (pins.py)
    it was a candidate before, long enough ago   whoever still reads it with older METADATA gets that long to finish

The order matters: what is about to be named, or held, is asked first, files are listed second, METADATA is read last;
then the tables are listed once more. If anything changed in between, or cannot be read, nothing is removed: an error
means keep.

METADATA goes when its table is known to have been dropped, or its creation was given up, and two rounds said so. Then
the node of the table goes, too, and its id is on record among others (`metadata.dropped`). METADATA of a table that the
catalog lacks without a drop tells that the catalog is not whole: then nothing goes at all (`lost_tables`). A table that
has lost its name and can be brought back is there like any other, until it is purged. What a table
names for the sake of a snapshot is no garbage: compaction has left it there. A clone names its files like any table.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, StoreError, Unavailable, UnknownTable
from ebla.metadata.server.dropped import DroppedTables
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.server.metadata_store import CREATING, MetadataStore
from ebla.metadata.values.table_config import TABLES, TableConfig
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.retry import RACES
from ebla.service.job_orders import Sweep, SweepResult, SweepTerms
from ebla.service.reports import GarbageReport
from ebla.storage.files.files import FileInfo, Files
from ebla.tablet.flush.pending_files import FRAGMENTS, PendingFiles
from ebla.tablet.garbage.candidates import Candidates
from ebla.tablet.garbage.garbage_report import Seen, sum_up
from ebla.tablet.garbage.job_intents import list_intents
from ebla.tablet.garbage.job_merges import JobMerges
from ebla.tablet.garbage.lost_tables import METADATA, Strangers, look_at_strangers, lost, saved_metadata, went_back
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.write.passing_txns import PassingTxns
from ebla.timing import now_seconds

__all__ = ["Garbage", "GarbageReport", "PendingFiles"]

_log = logging.getLogger(__name__)


class Garbage:
    """Finds and removes fragments that nobody names."""

    def __init__(
        self,
        coordination: CoordinationService,
        metadata: MetadataAccess,
        files: Files,
        clock: Clock,
        pending: PendingFiles,
        pins: Pins,
        tables: OpenTables,
        lifecycle: TableLifecycle,
        passing: PassingTxns,
        merges: JobMerges,
        server: str,
        age_seconds: float,
    ) -> None:
        self._coordination = coordination
        self._metadata = metadata
        self._files = files
        self._clock = clock
        self._pending = pending
        self._pins = pins
        self._tables = tables
        self._lifecycle = lifecycle
        self._passing = passing
        self._merges = merges
        self._server = server
        self._candidates = Candidates(coordination, files)
        self._dropped = DroppedTables(coordination)
        self._saved = MetadataStore(files)
        self._age_microseconds = round(age_seconds * 1_000_000)
        self._lock = threading.Lock()
        # Written by whoever holds _lock, read by others.
        self.last: GarbageReport | None = None
        self.removed_files = 0
        self.removed_bytes = 0
        self.failure: str | None = None

    def stats(self) -> dict[str, object]:
        """Return what the last round found, and what was removed so far."""
        found = None
        if self.last is not None:
            found = {
                name: len(value) if isinstance(value, tuple) else value for name, value in asdict(self.last).items()
            }
        return {
            "removed_files": self.removed_files,
            "removed_bytes": self.removed_bytes,
            "failure": self.failure,
            "last_round": found,
        }

    def collect(self, *, dry_run: bool) -> GarbageReport:
        """Look at all files once. Raises without having removed anything if something cannot be read."""
        with self._lock:
            for _ in RACES:
                try:
                    if not dry_run:
                        self._lifecycle.purge_due()  # before a round that may remove their files
                    report = self._round(dry_run)
                except OSError as error:
                    self.failure = f"files cannot be listed: {error}"
                    raise StoreError(f"files cannot be listed: {error}: nothing was removed, retry") from error
                except EblaError as error:
                    self.failure = str(error)
                    raise
                if report is not None:
                    self.failure = None
                    self.last = report
                    return report
        raise Unavailable("tables changed faster than all of them could be read: nothing was removed, try again")

    def _round(self, dry_run: bool) -> GarbageReport | None:
        """Look once; None if a table changed meanwhile."""
        began = now_seconds()
        young = self._pending.paths()
        now = self._clock.microseconds()
        prefixes = tuple(i.prefix for i in list_intents(self._coordination) if i.expires_microseconds > now)
        held = self._pins.files()
        listed = {info.path: info.size for d in self._files.list_directories(FRAGMENTS) for info in self._files.list(d)}
        saved = saved_metadata(self._files)
        tables = self._metadata.directory.configs()
        named: Counter[str] = Counter()
        for table_id, config in tables.items():
            if config.is_there:
                try:
                    metadata = self._metadata.refresh(table_id)
                except UnknownTable:
                    return None
                if metadata.txnid != config.metadata_txnid:
                    return None
                went_back(self._saved, table_id, saved.get(table_id, ()), (metadata.txnid, metadata.sequence))
                named.update(set(metadata.files()))
        if self._metadata.directory.configs() != tables:
            return None
        before, version = self._candidates.read()
        unnamed = {path: size for path, size in listed.items() if path not in named}
        gone = self._dropped.ids()  # behind the tables: a node goes when its id comes
        strangers = look_at_strangers(self._files, saved, tables, gone, unnamed)
        ended = [table_id for table_id, config in tables.items() if not config.is_there]
        dropped = {
            info.path: info.size
            for table_id in (*ended, *strangers.dropped, *strangers.abandoned)
            for info in saved.get(table_id, ())
        }
        seen = Seen.of(listed, named, dropped, strangers)
        report, verdict = sum_up(seen, young, held, prefixes, before, now, self._age_microseconds)
        if dry_run:
            return report
        if strangers.lost:
            raise lost(strangers.lost)
        removed = self._remove_unnamed(verdict.doomed)
        waiting = self._bury([table_id for table_id in ended if not saved.get(table_id)], before, now)
        self._candidates.remember({**verdict.candidates, **waiting}, version)
        self._tidy(tables, saved, strangers)
        sizes = {**listed, **dropped}
        self._count(removed, sum(sizes[path] for path in removed), began)
        return replace(report, removed=tuple(removed))

    def _bury(self, table_ids: Sequence[str], before: Mapping[str, int], now: int) -> dict[str, int]:
        """Remove the nodes of dropped tables without METADATA, as old as files must be; return those that wait."""
        since = {f"{TABLES}/{table_id}": before.get(f"{TABLES}/{table_id}") for table_id in table_ids}
        self._dropped.bury(
            [
                path.removeprefix(f"{TABLES}/")
                for path, first in since.items()
                if first is not None and now - first >= self._age_microseconds
            ]
        )
        return {path: now if first is None else first for path, first in since.items()}  # who went is not looked for

    def _tidy(
        self, tables: Mapping[str, TableConfig], saved: Mapping[str, Sequence[FileInfo]], strangers: Strangers
    ) -> None:
        """Remove marks of creations that were finished, and empty directories of tables that are gone for good."""
        for table_id, infos in saved.items():
            mark = f"{METADATA}/{table_id}/{CREATING}"
            if table_id in tables and any(info.path == mark for info in infos):
                with contextlib.suppress(OSError):
                    self._files.delete(mark)
        for table_id in strangers.dropped:
            for directory in (f"{METADATA}/{table_id}", f"{FRAGMENTS}/{table_id}"):
                with contextlib.suppress(OSError):  # it is not empty
                    self._files.remove_directory(directory)

    # --- rounds that a job makes ---

    def terms(self) -> SweepTerms:
        """Return what a round that is made elsewhere must know before it looks at anything."""
        young = tuple(sorted(self._pending.paths()))
        return SweepTerms(young, self._clock.microseconds(), self._age_microseconds)

    def sweep(self, order: Sweep) -> SweepResult:
        """Remove what a round found, as far as that is true from here, too. Nothing, if a table cannot be read.

        The job looked some time ago, and others may have named a file since, late as that is.
        """
        with self._lock:
            began = now_seconds()
            before, _ = self._candidates.read()
            now = self._clock.microseconds()
            # Its own memory must say so as well: what was no candidate for long enough stays, whoever asks.
            old = {path for path in order.doomed if path in before and now - before[path] >= self._age_microseconds}
            sizes = self._sizes(old)
            removed = set(self._remove_unnamed(sorted(old)))
            if order.candidates is not None:
                waiting = {path: since for path, since in before.items() if path.startswith(f"{TABLES}/")}
                self._candidates.remember({**order.candidates, **waiting}, order.version)
            self._count(removed, sum(sizes.get(path, 0) for path in removed), began)
            return SweepResult(tuple(place for place, path in enumerate(order.doomed) if path not in removed))

    def _sizes(self, paths: Iterable[str]) -> dict[str, int]:
        sizes = {}
        for path in paths:
            with contextlib.suppress(OSError):  # somebody else removed it
                sizes[path] = self._files.size(path)
        return sizes

    def _count(self, removed: Collection[str], size: int, began_seconds: float) -> None:
        self.removed_files += len(removed)
        self.removed_bytes += size
        if removed:
            _log.info(
                "removed %d files that nobody names, %d bytes, in %.3f s",
                len(removed),
                size,
                now_seconds() - began_seconds,
            )

    def _remove_unnamed(self, doomed: Sequence[str]) -> list[str]:
        """Remove files unless somebody names them after all, while nobody can."""
        if not doomed:
            return []
        with self._nothing_adopted():
            named = self._named_of(frozenset(doomed))
            return self._remove(path for path in doomed if path not in named)

    @contextlib.contextmanager
    def _nothing_adopted(self) -> Iterator[None]:
        """Keep jobs from making METADATA name files that were there before, while those are judged."""
        with self._passing.lock, self._merges.lock:
            yield

    def _take_over(self, metadata: TableMetadata) -> None:
        """Read what METADATA names before what it does not name is removed: who reads an older one would miss files.

        A compaction may be in it that was interrupted, or of unknown outcome.
        """
        table = self._tables.find(metadata.table_id)
        if table is None or table.damage or metadata.schema.version != table.view.parts.version:
            return  # a schema in doubt is settled by others, and takes no file away
        with self._tables.lock:
            table.use_metadata(metadata, self._server)

    def _named_of(self, paths: Collection[str]) -> set[str]:
        """Return those of the paths that may not go: fragments that a table names, METADATA of one that is there.

        Raises `Corruption` if the catalog is not whole.
        """
        listed = saved_metadata(self._files)
        tables = self._metadata.directory.configs()
        strangers = look_at_strangers(self._files, listed, tables, self._dropped.ids(), paths)
        if strangers.lost:
            raise lost(strangers.lost)
        gone = {table_id for table_id, config in tables.items() if not config.is_there} | set(strangers.dropped)
        named = set()
        for table_id, saved in _by_table(paths).items():
            # Of a creation that is given up here, nothing can become a table any more, however late.
            if table_id in strangers.abandoned and not self._metadata.settle("", table_id):
                gone.add(table_id)
            if table_id not in gone:
                named.update(saved)
        for table_id, config in tables.items():
            if config.is_there:
                with contextlib.suppress(UnknownTable):  # dropped since
                    metadata = self._metadata.refresh(table_id)
                    went_back(self._saved, table_id, listed.get(table_id, ()), (metadata.txnid, metadata.sequence))
                    self._take_over(metadata)
                    named.update(path for path in metadata.files() if path in paths)
        return named

    def _remove(self, doomed: Iterable[str]) -> list[str]:
        removed = []
        for path in doomed:
            with contextlib.suppress(OSError):  # the next round tries again
                if self._pending.remove(path, self._files.delete):
                    removed.append(path)
                    if path.startswith(f"{METADATA}/") and path.endswith(".meta"):
                        _, table_id, name = path.split("/")
                        self._metadata.discard(table_id, name.removesuffix(".meta"))
        return removed


def _by_table(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return those of the paths that are METADATA, by the ids of their tables."""
    found: dict[str, list[str]] = {}
    for path in paths:
        if path.startswith(f"{METADATA}/"):
            found.setdefault(path.split("/")[1], []).append(path)
    return found
