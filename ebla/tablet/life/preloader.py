"""Preloading: the blocks of in-memory groups are brought into the cache before anybody asks for them.

    classify    which class of the cache each file is in, from METADATA and schema of all tables        pure
    load        the files of classes 1 to 3 that are new, class by class, as far as they fit

A store that has no in-memory group has no such worker. It looks once a second whether METADATA of any table is another,
as after a load, a flush, a compaction or a change of the schema. A file that cannot be read is left out: whoever needs
it is told why. Of a table that is taken offline nothing is kept; what it shared with a clone is loaded again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ebla.errors import EblaError
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata
from ebla.service.listener import TabletListener, Unloaded
from ebla.storage.cache.block_cache import BlockCache, class_of
from ebla.tablet.life.loader import is_unloaded
from ebla.tablet.tables.table_state import TableState
from ebla.threads.worker import Worker

_log = logging.getLogger(__name__)


def classify(tables: Sequence[TableMetadata]) -> dict[str, int]:
    """Return the class of every file that some in-memory group refers to.

    A file counts for every group that refers to it, in whichever tablet or table.
    """
    groups: dict[str, dict[int, bool]] = {}
    for table in tables:
        in_memory = {group.id: group.in_memory for group in table.schema.groups}
        for tablet in table.tablets:
            for state in tablet.groups:
                for fragment in state.current:
                    # Groups of a clone have the ids of those of its origin: to a file they are the same.
                    known = groups.setdefault(fragment.file, {})
                    known[state.group] = known.get(state.group, False) or in_memory.get(state.group, False)
    return {file: class_of(list(known.values())) for file, known in groups.items() if any(known.values())}


class Preloader(TabletListener):
    """Keeps the cache's classes up to date, and fills it. Safe to use from several threads."""

    def __init__(self, tables: Callable[[], list[TableState]], cache: BlockCache) -> None:
        # Set once.
        self._tables = tables
        self._cache = cache
        self._lock = threading.Lock()
        self._worker = Worker("ebla-preload", lambda is_idle: self.round(), self._failed, doing="preloading")
        self._starting = threading.Lock()
        # Guarded by _starting.
        self._is_started = False
        # Set by whoever hears of it: blocks of files that were loaded may have gone.
        self._is_stale = False
        # Guarded by _lock.
        self._seen: list[tuple[str, str]] = []
        self._loaded: set[str] = set()
        # Written by whoever holds _lock, read by others.
        self.blocks_loaded = 0
        self.is_full = False
        self.failure: EblaError | None = None

    def start(self, table: TableState) -> None:
        """Begin to work in the background, if the table has a group for it."""
        with self._starting:
            if not self._is_started and any(group.in_memory for group in table.view.schema.groups):
                self._is_started = True
                self._worker.start()
            if self._is_started:
                self._worker.wake()

    def on_unloaded(self, event: Unloaded) -> None:
        """Note that files were let go of, which others may have in common with that table."""
        self._is_stale = True

    def stop(self) -> None:
        """Stop working. Idempotent."""
        self._worker.stop()

    def stats(self) -> dict[str, object]:
        """Return how much was loaded, and whether there was not enough room."""
        return {
            "files": len(self._loaded),
            "blocks": self.blocks_loaded,
            "is_full": self.is_full,
            "failure": None if self.failure is None else str(self.failure),
        }

    def round(self) -> None:
        """Classify all files and load what is new, if anything is another than before."""
        with self._lock:
            tables = self._tables()
            seen = [(table.id, table.view.metadata.txnid) for table in tables]
            if self._is_stale:
                self._is_stale = False
                self._loaded.clear()
            elif seen == self._seen:
                return
            tables = [table for table in tables if not is_unloaded(table.view.metadata)]
            classes = classify([table.view.metadata for table in tables])
            self._cache.set_classes(classes)
            self._loaded &= classes.keys()
            self.is_full = False
            places = {
                fragment.file: (table, fragment)
                for table in tables
                for tablet in table.view.metadata.tablets
                for state in tablet.groups
                for fragment in state.current
                if fragment.file in classes
            }
            for file in sorted(places, key=lambda one: (classes[one], one)):
                if self._worker.is_stopping:
                    return
                if file not in self._loaded and self._load(*places[file]):
                    self._loaded.add(file)
            self._seen = seen

    def _load(self, table: TableState, ref: FragmentRef) -> bool:
        try:
            fragment = table.reader.fragment(ref)
            size_bytes = 0
            for number in range(len(fragment.block_rows)):
                if self._worker.is_stopping:
                    return False
                if fragment.cached_block(number) is not None:
                    continue
                # Blocks of a file are about as large as each other.
                if not self._cache.has_room(ref.file, size_bytes):
                    self.is_full = True
                    return True
                size_bytes = max(size_bytes, fragment.block(number).bytes)
                self.blocks_loaded += 1
        except EblaError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: EblaError) -> None:
        _log.warning("a file of an in-memory group was not loaded: %s", error)
        self.failure = error
