"""Who removes old METADATA files: a thread beside the transactions, which need not wait for it.

    transaction 33, a snapshot  --wish-->  table, newest txnid  --thread-->  MetadataStore.prune
    transaction 34 ...                     (one wish per table)

To remove a file takes about as long as to create one, and for each that comes one has to go. What is removed is what
nobody needs, so nobody waits for it, and a crash in the middle leaves only files that the next round removes.

There is at most one thread, and none while nothing is to be removed. Tests that count what happens on the disk let it
happen in the thread that asks.
"""

from __future__ import annotations

import logging
import threading

from ebla.errors import EblaError
from ebla.metadata.server.metadata_store import MetadataStore

__all__ = ["Pruner"]

_log = logging.getLogger(__name__)


class Pruner:
    """Removes the old transactions of all tables of a store. Safe to use from several threads."""

    def __init__(self, store: MetadataStore, *, in_background: bool) -> None:
        # Set once.
        self._store = store
        self._in_background = in_background
        self._lock = threading.Lock()
        self._wishes: dict[str, str] = {}  # the newest snapshots, by table; guarded by _lock
        self._thread: threading.Thread | None = None  # guarded by _lock; None: nothing is wished for

    def wish(self, table_id: str, txnid: str) -> None:
        """Have everything removed that nobody needs now that the snapshot `txnid` is committed."""
        if not self._in_background:
            self._prune(table_id, txnid)
            return
        with self._lock:
            self._wishes[table_id] = txnid
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ebla-metadata-prune", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being removed any more."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wishes:
                    self._thread = None
                    return
                table_id, txnid = self._wishes.popitem()
            self._prune(table_id, txnid)

    def _prune(self, table_id: str, txnid: str) -> None:
        try:
            self._store.prune(table_id, txnid)
        except (EblaError, OSError) as error:
            _log.warning("old METADATA of table %s stays for now: %s", table_id, error)
