"""METADATA that groups of servers keep, behind the interface of one server: a group for each table.

    commit --> group of the table (group.py) --> a server of it --> majority --> coordination service

Which servers of a group are here, one of many or all of them, is said by who makes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, OutcomeUnknown
from ebla.metadata.server.group import MetadataGroup
from ebla.metadata.server.group_commit import Request
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.retry import PATIENCE, Retries

__all__ = ["CommitRequest", "GroupedMetadata"]

_log = logging.getLogger(__name__)

CommitRequest: TypeAlias = Request[tuple[Change, ...], TableMetadata]


class GroupedMetadata(MetadataServer):
    """Coordinates the METADATA transactions of all tables through a group of servers for each."""

    def __init__(
        self,
        coordination: CoordinationService,
        store: MetadataStore,
        clock: Clock,
        *,
        server_id: str,
        new_id: Callable[[], str],
        retries: Retries = PATIENCE,
    ) -> None:
        super().__init__(coordination, store, clock, server_id=server_id, new_id=new_id, retries=retries)
        self._groups_lock = threading.Lock()
        self._groups: dict[str, MetadataGroup] = {}  # guarded by _groups_lock

    def start(self) -> None:
        """Take part in all tables, and have what is lacking fetched."""
        for table_id in [*(table_id for _, table_id in self.list_tables()), *self.directory.retained()]:
            try:
                self._group(table_id)
            except EblaError as error:  # the table is damaged; that is told to those who ask for it
                _log.warning("the METADATA of table %s cannot be kept here yet: %s", table_id, error)

    def _group(self, table_id: str) -> MetadataGroup:
        with self._groups_lock:
            group = self._groups.get(table_id)
            if group is None:
                group = self._groups[table_id] = self._started(table_id)
        return group

    def _started(self, table_id: str) -> MetadataGroup:
        """Return the group of a table, with those of its servers that are here."""
        raise NotImplementedError

    def _commit_through(
        self, server: str, table_id: str, requests: Sequence[CommitRequest]
    ) -> list[tuple[CommitRequest, EblaError]]:
        """Have a server commit what is asked for, and answer what it did; return what was refused, and why."""
        base = self._current.look(table_id).metadata.txnid
        outcomes = self._group(table_id).commit_all([request.asked for request in requests], base, server=server)
        pairs = list(zip(requests, outcomes, strict=True))
        self._answer(table_id, [request for request, outcome in pairs if isinstance(outcome, str)])
        return [(request, outcome) for request, outcome in pairs if not isinstance(outcome, str)]

    def _answer(self, table_id: str, done: Sequence[CommitRequest]) -> None:
        """Give those whose changes were made the metadata with them in it."""
        if not done:
            return
        try:
            metadata = self._current.look(table_id).metadata
        except EblaError as error:
            unknown = OutcomeUnknown(f"METADATA of table {table_id} was changed and cannot be read: read it again")
            unknown.__cause__ = error
            for request in done:
                request.fail(unknown)
            return
        for request in done:
            request.answer(metadata)

    def _let_go(self, table_id: str) -> None:
        super()._let_go(table_id)
        self._stop(table_id)

    def _stop(self, table_id: str) -> None:
        with self._groups_lock:
            self._groups.pop(table_id, None)
