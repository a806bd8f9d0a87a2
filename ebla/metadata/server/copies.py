"""The METADATA files of several directories as one store: written to a majority, read from whichever has them whole.

    write     to every directory; enough is a majority of all, those included that are not there
    read      the first one that has the file, every byte of it checked; one that has not is noted, to be mended

A transaction is on a majority before it can become current. So as long as any majority can be read, what is current is
found; and what is found is never an older state, since the coordination service says which transaction it must be.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from ebla.errors import Corruption, EblaError, MissingFile, StoreError, TooManyFiles
from ebla.metadata.server.metadata_store import MetadataNotSaved, MetadataStore
from ebla.metadata.values.table_config import majority
from ebla.metadata.values.transaction_file import Record

__all__ = ["MetadataCopies"]

_log = logging.getLogger(__name__)


class MetadataCopies(MetadataStore):
    """Several stores by the names of their servers, of `count` in all. Safe to use from several threads."""

    def __init__(self, stores: Mapping[str, MetadataStore], count: int, snapshot_every: int = 32) -> None:
        """At least one of them must be there."""
        if not stores or count < len(stores):
            raise ValueError("copies need at least one store, and no more than there are in all")
        super().__init__(next(iter(stores.values()))._files, snapshot_every)
        self.stores = dict(stores)
        self._count = count
        self.suspects: set[tuple[str, str]] = set()
        """Servers and tables of which a file was found missing or damaged; taken out by whoever mends it."""

    def write(self, table_id: str, txnid: str, content: bytes) -> None:
        """Make the file of a transaction durable in a majority; `MetadataNotSaved`, and no file, if that fails."""
        failures: dict[str, MetadataNotSaved | TooManyFiles] = {}
        for name, store in self.stores.items():
            try:
                store.write(table_id, txnid, content)
            except (MetadataNotSaved, TooManyFiles) as error:
                failures[name] = error
        written = len(self.stores) - len(failures)
        if written < majority(self._count):
            for name, store in self.stores.items():
                if name not in failures:
                    store.discard(table_id, txnid)
            reason = next(iter(failures.values()), "the others are not there")
            raise MetadataNotSaved(
                f"METADATA can be written to {written} of {self._count} directories only, which is no majority "
                f"({reason}): bring the others back, then retry"
            )
        for name, failure in failures.items():
            _log.warning("%s has no copy of transaction %s yet: %s", name, txnid, failure)
            self.suspects.add((name, table_id))

    def record(self, table_id: str, txnid: str) -> Record:
        """Read the file of one transaction from the first directory that has it whole."""
        problems: dict[str, StoreError] = {}
        for name, store in self.stores.items():
            try:
                record = store.record(table_id, txnid)
            except (Corruption, MissingFile) as error:
                problems[name] = error
            except StoreError as error:
                if isinstance(error.__cause__, OSError):
                    problems[name] = error  # it cannot be read here, and perhaps elsewhere
                else:
                    raise
            else:
                self.suspects.update((suspect, table_id) for suspect in problems)
                return record
        # Damage tells more than absence.
        raise next((e for e in problems.values() if isinstance(e, Corruption)), next(iter(problems.values())))

    def intact(self, table_id: str) -> tuple[list[Record], list[str]]:
        """Copies are looked through one by one."""
        raise NotImplementedError("ask one of the stores")

    def discard(self, table_id: str, txnid: str) -> None:
        """Remove the file of a transaction everywhere."""
        for store in self.stores.values():
            store.discard(table_id, txnid)

    def remove_table(self, table_id: str) -> int:
        """Remove all transactions of a table that is gone for good, everywhere."""
        removed = 0
        for store in self.stores.values():
            with contextlib.suppress(OSError):
                removed += store.remove_table(table_id)
        return removed

    def prune(self, table_id: str, current_txnid: str) -> list[str]:
        """Remove what nobody can need, everywhere; a directory that lacks something is left alone."""
        removed: list[str] = []
        for store in self.stores.values():
            with contextlib.suppress(EblaError, OSError):
                removed += store.prune(table_id, current_txnid)
        return sorted(set(removed))
