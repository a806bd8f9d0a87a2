"""Several metadata servers in one process, behind the interface of one: METADATA of a store on several disks.

    commit --> group of the table (group.py) --> any server that runs --> majority --> coordination service
    read   --> the file, from whichever directory has it whole (copies.py)

The servers of a table are started when the store is opened, with what their directories have: what is damaged or
missing there is fetched from the others before a server takes part again. A server whose directory is not there does
not run; the others go on while they are a majority, and refuse every change when they are not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, OutcomeUnknown, Unavailable
from ebla.metadata.server.copies import MetadataCopies
from ebla.metadata.server.group import MetadataGroup
from ebla.metadata.server.group_commit import Request
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.retry import PATIENCE, Retries

__all__ = ["MetadataServers"]

# Without a majority a change is given up after so many pauses.
PATIENCE_TICKS = 20
# So long it is waited for servers that lack something: each of the others is asked in it.
CATCH_UP_TICKS = 8

_log = logging.getLogger(__name__)

_CommitRequest: TypeAlias = Request[tuple[Change, ...], TableMetadata]


class MetadataServers(MetadataServer):
    """Coordinates the METADATA transactions of all tables through servers of their own."""

    def __init__(
        self,
        coordination: CoordinationService,
        copies: MetadataCopies,
        clock: Clock,
        *,
        server_ids: Sequence[str],
        new_id: Callable[[], str],
        retries: Retries = PATIENCE,
    ) -> None:
        """`server_ids` are all servers, those included whose directories are not there."""
        super().__init__(coordination, copies, clock, server_id=server_ids[0], new_id=new_id, retries=retries)
        # Set once.
        self._server_ids = tuple(server_ids)
        self._copies = copies
        self._groups_lock = threading.Lock()
        self._groups: dict[str, MetadataGroup] = {}  # guarded by _groups_lock

    def start(self) -> None:
        """Start the servers of all tables, and have what they lack fetched."""
        for table_id in [*(table_id for _, table_id in self.list_tables()), *self.directory.retained()]:
            try:
                self._group(table_id)
            except EblaError as error:  # the table is damaged; that is told to those who ask for it
                _log.warning("the metadata servers of table %s cannot be started: %s", table_id, error)

    def _group(self, table_id: str) -> MetadataGroup:
        with self._groups_lock:
            group = self._groups.get(table_id)
            if group is None:
                group = self._groups[table_id] = self._started(table_id)
        return group

    def _started(self, table_id: str) -> MetadataGroup:
        config, _ = self.directory.read(table_id)
        group = MetadataGroup(
            self._coordination,
            table_id,
            self._clock,
            new_id=self._new_id,
            snapshot_every=self._copies.snapshot_every,
            attempts_max=PATIENCE_TICKS,
            pause_seconds=self._retries.pause_seconds,
        )
        running = []
        for name, store in self._copies.stores.items():
            try:
                group.start(name, store)
                running.append(name)
            except (EblaError, OSError) as error:
                _log.warning("the metadata server %s does not run: %s", name, error)
        # The first to start found nobody to ask.
        for name in group.catch_up(CATCH_UP_TICKS):
            _log.warning("the metadata server %s of table %s lacks what is current", name, table_id)
        for name in running:
            if name not in config.metadata_servers:
                try:
                    group.join(name)
                except EblaError as error:  # it is tried again when the store is opened again
                    _log.warning("the metadata server %s is no server of table %s yet: %s", name, table_id, error)
        return group

    def _mend(self, table_id: str, group: MetadataGroup) -> None:
        """Let servers that were found to lack something look through their files."""
        for server in [name for name, table in self._copies.suspects if table == table_id]:
            self._copies.suspects.discard((server, table_id))
            try:
                group.scrub(server)
            except (EblaError, OSError, KeyError) as error:
                _log.warning("the metadata server %s could not be mended: %s", server, error)

    def _carry_out(self, table_id: str, requests: list[_CommitRequest]) -> None:
        self._keep_valid_schema(table_id)
        group = self._group(table_id)
        if self._copies.suspects:
            self._mend(table_id, group)
        waiting = list(requests)
        refusal: EblaError | None = None
        for server in self._copies.stores:
            base = self._current.look(table_id).metadata.txnid
            outcomes = group.commit_all([request.asked for request in waiting], base, server=server)
            again: list[_CommitRequest] = []
            done: list[_CommitRequest] = []
            for request, outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, str):
                    done.append(request)
                elif isinstance(outcome, Unavailable):
                    refusal = outcome
                    again.append(request)  # nothing was changed: another server may do it
                else:
                    request.fail(outcome)
            self._answer(table_id, done)
            waiting = again
            if not waiting:
                return
        raise Unavailable(f"METADATA of table {table_id} was not changed: {refusal}") from refusal

    def _keep_valid_schema(self, table_id: str) -> None:
        """If METADATA has a schema that cannot be, put the last valid one back before anybody builds upon it.

        No server of the table loads such METADATA, so it is not changed through them: what is kept is saved in a
        majority of the directories as a whole, and the servers are started anew with it.
        """
        for _ in range(self._retries.attempts_max):
            current = self._current.look(table_id, keep=True)
            if current.invalid is None:
                return
            metadata = current.metadata.with_txnid(self._new_id(), current.metadata.sequence + 1)
            self._store.save(current.metadata, metadata, (), whole=True)
            if self._switch(table_id, current, metadata):
                self._stop(table_id)
                return
        raise Unavailable(f"others changed table {table_id} faster each time: nothing was changed, try again")

    def _answer(self, table_id: str, done: list[_CommitRequest]) -> None:
        """Give those whose changes were made the metadata with them in it."""
        try:
            metadata = self._current.look(table_id).metadata if done else None
        except EblaError as error:
            unknown = OutcomeUnknown(f"METADATA of table {table_id} was changed and cannot be read: read it again")
            unknown.__cause__ = error
            for request in done:
                request.fail(unknown)
            return
        for request in done:
            assert metadata is not None
            request.answer(metadata)

    def reload(self, table_id: str) -> None:
        """Forget what is known of a table, and start its servers anew, with what is on their disks now."""
        super().reload(table_id)
        self._stop(table_id)

    def _let_go(self, table_id: str) -> None:
        super()._let_go(table_id)
        self._stop(table_id)

    def _stop(self, table_id: str) -> None:
        with self._groups_lock:
            self._groups.pop(table_id, None)
