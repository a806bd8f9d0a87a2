"""Changes of METADATA that the machine asks for, carried out by a thread of its own: one of a tablet at a time.

What comes of a change is seen in METADATA: it is read after every attempt, and the machine told at once, which asks
again until it knows. Whatever goes wrong with an attempt, the next one of that tablet is made.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ebla.errors import EblaError
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.replicating import ChangeInSync
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.replication.actions import Change
from ebla.replication.changes import ChangeInSync as WantedInSync
from ebla.tablet_server.replicas.live_host import split_name

__all__ = ["ChangeAsker"]

_log = logging.getLogger(__name__)


class ChangeAsker:
    """Asks for changes of who is in sync. Safe to use from several threads."""

    def __init__(
        self,
        metadata: MetadataAccess,
        learn: Callable[[TableMetadata], object],
        look: Callable[[str], None],
    ) -> None:
        """`learn` tells the machine what METADATA says; `look` has the rest of the run look at it. Neither waits."""
        # Set once.
        self._metadata = metadata
        self._learn = learn
        self._look = look
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="ebla-replica-metadata")
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._under_way: set[str] = set()

    def ask(self, table: str, change: Change) -> None:
        """Have a change made, unless one of the same tablet is under way. Does not wait."""
        assert isinstance(change, WantedInSync), "nothing else is asked for by a leader here"
        with self._lock:
            if change.tablet in self._under_way:
                return
            self._under_way.add(change.tablet)
        try:
            self._threads.submit(self._change, table, change)
        except RuntimeError:  # the run is over
            self._end(change.tablet)

    def close(self) -> None:
        """Ask for nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _change(self, table: str, wanted: WantedInSync) -> None:
        try:
            self._commit(table, wanted)
            self._read(table)
        except Exception:  # else nothing would ever be asked for this tablet again
            _log.exception("who is in sync for tablet %s was not changed, which is tried again", wanted.tablet)
        finally:
            self._end(wanted.tablet)
        self._look(table)

    def _commit(self, table: str, wanted: WantedInSync) -> None:
        tablet = split_name(wanted.tablet)[1]
        change = ChangeInSync(tablet, wanted.epoch, wanted.number, wanted.put, wanted.put_start, wanted.out)
        try:
            self._metadata.commit(table, [change])
            put, out = change.put, change.out
            _log.info(
                "tablet %s: in sync %s, no longer %s", tablet, (put and put.server) or "-", (out and out.server) or "-"
            )
        except EblaError as error:
            _log.warning("who is in sync for tablet %s was not changed: %s", tablet, error)

    def _read(self, table: str) -> None:
        try:
            self._learn(self._metadata.refresh(table))
        except EblaError as error:
            _log.warning("METADATA of table %s could not be read: %s", table, error)

    def _end(self, tablet: str) -> None:
        with self._lock:
            self._under_way.discard(tablet)
