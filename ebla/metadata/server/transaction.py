"""Changing METADATA: a transaction is stored durably first, and becomes current by one compare-and-set.

    commit(changes)
      1. apply them to the current metadata                    (pure; a requirement may fail)
      2. save the transaction on the metadata servers          (durable, but nobody looks at it)
      3. compare-and-set tables/<id> to the new txnid          (now it is current, for everybody)

    3 conflicts            somebody else was faster: load what they made, go back to 1
    3 outcome unknown      repeat the very same compare-and-set. It succeeds, or it conflicts; then the transaction
                           is found among the ancestors of the current one, or it never will be

A crash before 3 leaves a file that nobody refers to, a crash after 3 a finished transaction. With several metadata
servers, step 2 waits for a majority of them; everything else stays.

Requests from several threads for one table become one transaction; each is all or nothing by itself, and one that does
not fit fails alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import Corruption, EblaError, OutcomeUnknown, Unavailable, UnknownTable
from ebla.metadata.server.current import Current, CurrentMetadata
from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.server.group_commit import CommitQueue, Request
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.pruner import Pruner
from ebla.metadata.values.changes import Change, update
from ebla.metadata.values.table_config import TableConfig, TableEntry, config_path, encode_config, name_path
from ebla.metadata.values.table_metadata import InvalidMetadata, TableMetadata
from ebla.retry import PATIENCE, Retries
from ebla.timing import Timing, now_seconds

__all__ = ["MetadataServer"]

_CommitRequest: TypeAlias = Request[tuple[Change, ...], TableMetadata]

_log = logging.getLogger(__name__)


class MetadataServer:
    """Coordinates the METADATA transactions of all tables. Safe to use from several threads, and beside others."""

    def __init__(
        self,
        coordination: CoordinationService,
        store: MetadataStore,
        clock: Clock,
        *,
        server_id: str,
        new_id: Callable[[], str],
        retries: Retries = PATIENCE,
        prune_in_background: bool = True,
    ) -> None:
        """`new_id` gives out transaction ids that are never given out again, by whomever (128 random bits, say).

        `retries` bounds the attempts after lost races and lost replies; only after the latter it pauses.
        Old transactions are removed by a thread of their own unless `prune_in_background` is false.
        """
        # Set once.
        self.directory = TableDirectory(coordination, clock, retries=retries)
        self._current = CurrentMetadata(self.directory, store, retries.attempts_max)
        self._coordination = coordination
        self._store = store
        self._clock = clock
        self._server_ids: tuple[str, ...] = (server_id,)  # those who keep tables that are made here
        self._new_id = new_id
        self._retries = retries
        self._pruner = Pruner(store, in_background=prune_in_background)
        self._lock = threading.Lock()
        self.committing = Timing(_log, "a METADATA transaction")
        self._queues: dict[str, CommitQueue[tuple[Change, ...], TableMetadata]] = {}  # guarded by _lock

    # --- reading ---------------------------------------------------------------------------------

    def find(self, name: str) -> str:
        """Return the id of the table called `name`; `UnknownTable` if there is none."""
        return self.directory.find(name)

    def list_tables(self) -> list[TableEntry]:
        """Return the tables that are there, sorted by name."""
        return self.directory.list_tables()

    def read(self, table_id: str) -> TableMetadata:
        """Return the metadata as this server saw it last; it asks only if it knows nothing of the table yet."""
        return self._current.get(table_id).metadata

    def refresh(self, table_id: str) -> TableMetadata:
        """Return the metadata as it is now, whoever changed it; `UnknownTable` if the table was dropped."""
        return self._current.look(table_id).metadata

    def reload(self, table_id: str) -> None:
        """Forget what is known of a table: somebody has changed it past this server."""
        self._current.forget(table_id)

    def read_named(self, name: str, table_id: str) -> TableMetadata:
        """Return the metadata of a table as it is now, if it is the one that `name` means.

        `UnknownTable` if it was dropped or renamed meanwhile; `Corruption` if the name means what it should not.
        """
        try:
            current = self._current.look(table_id)
            if current.config.name == name:
                return current.metadata
            problem = f"it means table {table_id}, which is called {current.config.name!r}"
        except UnknownTable:
            problem = f"it means table {table_id}, which is not there"
        if self.directory.find(name) == table_id:
            raise Corruption(name_path(name), problem)
        raise UnknownTable(f"there is no table {name!r} any more")

    def named_txn(self, table_id: str) -> int:
        """Return since when a table has its name, as this server saw it last; 0 if that is not known."""
        return self._current.get(table_id).config.named_txn

    def read_in_part(self, table_id: str) -> TableMetadata:
        """Return metadata that breaks its invariants, if its tablets can be told apart and found by their rows.

        It is for reading alone: it is not remembered, and no change is committed upon it. `Corruption` if it cannot be.
        """
        config, _ = self.directory.read(table_id)
        metadata, problem = self._store.load_anyway(table_id, config.metadata_txnid)
        if problem or not metadata.is_searchable:
            raise Corruption(f"METADATA of table {table_id}", problem or "its tablets are not in order")
        return metadata

    # --- committing ------------------------------------------------------------------------------

    def commit(self, table_id: str, changes: Sequence[Change]) -> TableMetadata:
        """Apply the changes in one transaction, all or none of them, and return the metadata with them in it.

        Raises `RequirementFailed` or `InvalidMetadata` if they do not fit, `UnknownTable` if the table was dropped,
        `MetadataNotSaved` or `Unavailable` if nothing was changed for another reason, and `OutcomeUnknown` if it cannot
        be told: then read before repeating it.
        """
        if not changes:
            return self.read(table_id)
        began = now_seconds()
        done = self._queue(table_id).submit(tuple(changes))
        self.committing.add(now_seconds() - began)
        return done

    def commit_all(self, table_id: str, requests: Sequence[Sequence[Change]]) -> list[TableMetadata | EblaError]:
        """Carry out several requests in one transaction; return, for each, the metadata with it in it, or its error.

        Each is all or nothing by itself, as if it had come to `commit` from a thread of its own.
        """
        outcomes: list[TableMetadata | EblaError] = []
        for request in self._queue(table_id).submit_all([tuple(changes) for changes in requests]):
            if request.error is None:
                outcomes.append(request.result())
            elif isinstance(request.error, EblaError):
                outcomes.append(request.error)
            else:
                raise request.error
        return outcomes

    def _queue(self, table_id: str) -> CommitQueue[tuple[Change, ...], TableMetadata]:
        with self._lock:
            queue = self._queues.get(table_id)
            if queue is None:
                queue = CommitQueue(lambda requests: self._carry_out(table_id, requests))
                self._queues[table_id] = queue
            return queue

    def _carry_out(self, table_id: str, requests: list[_CommitRequest]) -> None:
        for _ in range(self._retries.attempts_max):
            current = self._current.get(table_id, keep=True)
            metadata, accepted, refused = _apply_each(current.metadata, requests)
            if not accepted:
                # Refused on what may be old news: that counts only if it still is the current metadata.
                if self._current.look(table_id, keep=True).version != current.version:
                    continue
                _refuse(refused)
                return
            metadata = metadata.with_txnid(self._new_id(), current.metadata.sequence + 1)
            changes = [change for request in accepted for change in request.asked]
            self._store.save(current.metadata, metadata, changes, whole=current.invalid is not None)
            if not self._switch(table_id, current, metadata):
                continue
            _refuse(refused)
            for request in accepted:
                request.answer(metadata)
            if self._store.is_snapshot(metadata):
                self._pruner.wish(table_id, metadata.txnid)
            return
        raise Unavailable(f"others changed table {table_id} faster each time: nothing was changed, try again")

    def _switch(self, table_id: str, current: Current, metadata: TableMetadata) -> bool:
        """Make a saved transaction the current one. False: it is not, never will be, and its file is gone."""
        config = msgspec.structs.replace(current.config, metadata_txnid=metadata.txnid)
        unknown: OutcomeUnknown | None = None
        for _ in self._retries.attempts(self._clock):
            try:
                version = self._coordination.compare_and_set(
                    config_path(table_id), encode_config(config), current.version
                )
            except OutcomeUnknown as error:
                unknown = error
            except CoordinationConflict:
                if unknown is not None and self._is_committed(table_id, metadata, unknown):
                    self._current.forget(table_id)  # others have built upon it: the next one to ask loads that
                    return True
                self._store.discard(table_id, metadata.txnid)
                self._current.look(table_id, keep=True)
                return False
            except EblaError as error:
                if unknown is not None and isinstance(error, Unavailable):
                    continue
                if unknown is not None:
                    raise self._unknown(table_id, metadata) from error
                self._store.discard(table_id, metadata.txnid)
                raise
            else:
                self._current.remember(table_id, Current(config, version, metadata))
                return True
        raise self._unknown(table_id, metadata) from unknown

    def _is_committed(self, table_id: str, metadata: TableMetadata, unknown: OutcomeUnknown) -> bool:
        """After an unknown outcome and a conflict: tell whether the transaction was committed and built upon."""
        try:
            config = self.directory.config(table_id)
            if config is not None:
                return self._store.is_ancestor(metadata, config.metadata_txnid)
        except EblaError as error:
            raise self._unknown(table_id, metadata) from error
        raise self._unknown(table_id, metadata) from unknown

    def _unknown(self, table_id: str, metadata: TableMetadata) -> OutcomeUnknown:
        self._current.forget(table_id)
        return OutcomeUnknown(
            f"it is not known whether the transaction {metadata.txnid} of table {table_id} was committed: "
            "read the table's metadata before repeating it"
        )

    def finish_pruning(self) -> None:
        """Return when no old transaction is being removed any more, before the files are left to somebody else."""
        self._pruner.wait()

    # --- tables ----------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        table_id: str,
        initial: TableMetadata,
        *,
        replacing: str | None = None,
        named_txn: int = 0,
    ) -> TableMetadata:
        """Create a table that has the metadata `initial`; `TableExists` if the name is taken.

        `replacing` is the id of the table that has the name now and is dropped in the same step. It is found by its
        name since `named_txn`.
        """
        if initial.table_id != table_id:
            raise InvalidMetadata(f"the metadata is that of table {initial.table_id}, not {table_id}")
        if replacing is None:
            self.directory.check_free(name)
        self.directory.check_unused(table_id)
        metadata = initial.with_txnid(self._new_id(), 1)
        metadata.check()
        config = TableConfig(name, "running", metadata.txnid, self._server_ids, named_txn=named_txn)
        self._store.announce(table_id, has_files=next(iter(metadata.files()), None) is not None)
        try:
            self._store.save(None, metadata, ())
            if replacing is None:
                version = self.directory.create(table_id, config)
            else:
                version = self.directory.replace(replacing, table_id, config)
        except OutcomeUnknown:
            raise
        except EblaError:
            self._store.discard(table_id, metadata.txnid)
            self._store.announced(table_id)
            raise
        self._store.announced(table_id)
        if replacing is not None:
            self._let_go(replacing)
        if version is None:
            # It is there, but the reply with its version was lost: the next use looks it up. Asking now could fail,
            # and then a table that was made would be said not to be.
            return metadata
        return self._current.remember(table_id, Current(config, version, metadata)).metadata

    def drop_table(self, name: str) -> str:
        """Drop the table called `name` and return its id. Its METADATA stays until somebody cleans up."""
        table_id = self.directory.drop(name)
        self._let_go(table_id)
        return table_id

    def unlink_table(self, name: str, microseconds: int, kept_until_microseconds: int) -> str:
        """Take the name from a table, and return its id: it is there until it is purged, or gets a name again."""
        table_id = self.directory.find(name)
        try:
            return self.directory.unlink(name, microseconds, kept_until_microseconds)
        finally:
            self._current.forget(table_id)  # its version is another by now, or may be

    def undelete_table(self, table_id: str, name: str, named_txn: int = 0) -> None:
        """Give a table that was unlinked a name again; `TableExists` if it is taken, `UnknownTable` if it is purged."""
        try:
            self.directory.undelete(table_id, name, named_txn)
        finally:
            self._current.forget(table_id)

    def purge_table(self, table_id: str) -> None:
        """Let go of a table that was unlinked. Its METADATA stays until somebody cleans up."""
        self.directory.purge(table_id)
        self._let_go(table_id)

    def rename_table(self, table_id: str, name: str, named_txn: int = 0) -> None:
        """Give a table another name, which it has since `named_txn`; `TableExists` if it is taken."""
        try:
            self.directory.rename(table_id, name, named_txn)
        finally:
            self._current.forget(table_id)  # its version is another by now, or may be

    def is_retained(self, table_id: str) -> bool:
        """Tell whether a table has lost its name and can be brought back."""
        config = self.directory.config(table_id)
        return config is not None and config.is_retained

    def name_of(self, table_id: str) -> str:
        """Return what a table is called now; `UnknownTable` if it was dropped."""
        return self.directory.read(table_id)[0].name

    def _let_go(self, table_id: str) -> None:
        self._current.let_go(table_id)
        with self._lock:
            self._queues.pop(table_id, None)

    def discard(self, table_id: str, txnid: str) -> None:
        """Remove the file of a transaction of a table that is gone for good, wherever it is kept."""
        self._store.discard(table_id, txnid)

    def settle(self, name: str, table_id: str) -> bool:
        """After a creation or drop of unknown outcome: tell whether the table is there, for good."""
        self._current.forget(table_id)  # what is known of its version will be old news
        return self.directory.settle(table_id, name)


def _apply_each(
    metadata: TableMetadata, requests: list[_CommitRequest]
) -> tuple[TableMetadata, list[_CommitRequest], list[tuple[_CommitRequest, EblaError]]]:
    """Apply the requests one after the other; return the outcome, those that fitted, and those that did not."""
    accepted, refused = [], []
    for request in requests:
        try:
            metadata = update(metadata, request.asked)
        except EblaError as error:
            refused.append((request, error))
        else:
            accepted.append(request)
    return metadata, accepted, refused


def _refuse(refused: list[tuple[_CommitRequest, EblaError]]) -> None:
    for request, error in refused:
        request.fail(error)
