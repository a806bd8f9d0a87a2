"""METADATA as a tablet server sees it: kept by the masters, read and changed through any of them.

    read      which transaction is current, from the coordination service; what is new in it, from a master
    commit    a change request with an id, to one master after the other, until its outcome is known

The same id is sent again until a master says what became of it: it is done once, whoever carried it out. Tables are
made, named and dropped by the masters alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from ebla.access.credentials import NOTHING, Credentials
from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import Corruption, EblaError, OutcomeUnknown, RequestError, StaleRoute, Unavailable, UnknownTable
from ebla.metadata.consensus.letters import decode_message, encode_message
from ebla.metadata.consensus.protocol import ChangeRequest, ReadRequest, Reply
from ebla.metadata.consensus.reading import metadata_after
from ebla.metadata.consensus.refusals import error_of
from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_config import TableEntry, name_path
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata_rpc.calls import METADATA_METHODS, AskMetadata
from ebla.retry import PATIENCE, Retries
from ebla.rpc.channel import Channel
from ebla.timing import Timing, now_seconds

__all__ = ["RemoteMetadata"]

CALL_SECONDS = 5.0

_log = logging.getLogger(__name__)


class RemoteMetadata:
    """METADATA of all tables, kept by masters. Safe to use from several threads."""

    def __init__(
        self,
        coordination: CoordinationService,
        clock: Clock,
        *,
        server: str,
        masters: Callable[[], Sequence[str]],
        new_id: Callable[[], str],
        retries: Retries = PATIENCE,
        credentials: Credentials = NOTHING,
    ) -> None:
        """`server` is who asks; `masters` tells the addresses of the masters, any of which may be away."""
        # Set once.
        self.directory = TableDirectory(coordination, clock, retries=retries)
        self.committing = Timing(_log, "a METADATA transaction")
        self._clock = clock
        self._server = server
        self._credentials = credentials
        self._masters = masters
        self._new_id = new_id
        self._retries = retries
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._known: dict[str, TableMetadata] = {}
        self._channels: dict[str, Channel] = {}
        self._turn = 0  # which master is asked first

    def close(self) -> None:
        """Let go of all connections."""
        with self._lock:
            channels, self._channels = [*self._channels.values()], {}
        for channel in channels:
            channel.close()

    # --- reading ---------------------------------------------------------------------------------

    def list_tables(self) -> list[TableEntry]:
        """Return the tables that are there, sorted by name."""
        return self.directory.list_tables()

    def read(self, table_id: str) -> TableMetadata:
        """Return the metadata as it was seen last; it is asked for only if nothing is known of the table yet."""
        with self._lock:
            known = self._known.get(table_id)
        return known or self.refresh(table_id)

    def refresh(self, table_id: str) -> TableMetadata:
        """Return the metadata as it is now, whoever changed it; `UnknownTable` if the table was dropped."""
        try:
            config, _ = self.directory.read(table_id)
        except UnknownTable:
            self.reload(table_id)
            raise
        with self._lock:
            known = self._known.get(table_id)
        if known is not None and known.txnid == config.metadata_txnid:
            return known
        for _ in self._retries.attempts(self._clock):
            request = ReadRequest(self._new_id(), None if known is None else known.txnid)
            reply = self._ask(table_id, request)
            match reply.outcome:
                case "read":
                    try:
                        return self._remember(metadata_after(table_id, reply.contents, known))
                    except Corruption:
                        if known is None:
                            raise
                        known = None  # what is known here does not fit what the masters have: read all of it
                case "refused":
                    self.reload(table_id)
                    raise error_of(reply.refusal, reply.reason)
        raise Unavailable(f"no master could tell the METADATA of table {table_id}: {reply.reason}")

    def reload(self, table_id: str) -> None:
        """Forget what is known of a table."""
        with self._lock:
            self._known.pop(table_id, None)

    def _remember(self, metadata: TableMetadata) -> TableMetadata:
        with self._lock:
            known = self._known.get(metadata.table_id)
            if known is not None and known.sequence > metadata.sequence:
                return known
            self._known[metadata.table_id] = metadata
        return metadata

    def read_named(self, name: str, table_id: str) -> TableMetadata:
        """Return the metadata of a table as it is now, if it is the one that `name` means."""
        try:
            if self.name_of(table_id) == name:
                return self.refresh(table_id)
            problem = f"it means table {table_id}, which has another name"
        except UnknownTable:
            problem = f"it means table {table_id}, which is not there"
        if self.directory.find(name) == table_id:
            raise Corruption(name_path(name), problem)
        raise UnknownTable(f"there is no table {name!r} any more")

    def read_in_part(self, table_id: str) -> TableMetadata:
        """Masters refuse METADATA that breaks its invariants, and so does this."""
        return self.refresh(table_id)

    def named_txn(self, table_id: str) -> int:
        """Return since when a table has its name."""
        return self.directory.read(table_id)[0].named_txn

    def is_retained(self, table_id: str) -> bool:
        """Tell whether a table has lost its name and can be brought back."""
        config = self.directory.config(table_id)
        return config is not None and config.is_retained

    def name_of(self, table_id: str) -> str:
        """Return what a table is called now; `UnknownTable` if it was dropped."""
        return self.directory.read(table_id)[0].name

    # --- changing one table ----------------------------------------------------------------------

    def commit(self, table_id: str, changes: Sequence[Change]) -> TableMetadata:
        """Apply the changes in one transaction, all or none of them, and return the metadata with them in it."""
        if not changes:
            return self.read(table_id)
        began = now_seconds()
        known = self.read(table_id)
        request = ChangeRequest(self._new_id(), known.txnid, tuple(changes))
        is_unsure = False
        for _ in self._retries.attempts(self._clock):
            try:
                reply = self._ask(table_id, request)
            except OutcomeUnknown:
                is_unsure = True
                continue
            match reply.outcome:
                case "committed":
                    self.committing.add(now_seconds() - began)
                    return self._after(table_id, reply, known)
                case "refused":
                    raise error_of(reply.refusal, reply.reason)
                case "unknown":
                    is_unsure = True
                case "too old" if is_unsure:
                    break  # it may have been done, and nobody can tell any more
                case "too old":
                    known = self.refresh(table_id)
                    request = ChangeRequest(self._new_id(), known.txnid, tuple(changes))
        if is_unsure:
            raise OutcomeUnknown(
                f"it is not known whether METADATA of table {table_id} was changed: read it before repeating the change"
            )
        raise Unavailable(f"METADATA of table {table_id} was not changed, for no master could do it: retry")

    def _after(self, table_id: str, reply: Reply, known: TableMetadata) -> TableMetadata:
        """Return the metadata with a change in it that was committed."""
        try:
            return self._remember(metadata_after(table_id, reply.contents, known))
        except Corruption:
            pass  # the history between was pruned: read all of it
        try:
            self.reload(table_id)
            return self.refresh(table_id)
        except EblaError as error:
            raise OutcomeUnknown(
                f"METADATA of table {table_id} was changed, and cannot be read: read it again"
            ) from error

    def _ask(self, table_id: str, request: ChangeRequest | ReadRequest) -> Reply:
        """Ask one master after the other once; return the first answer that says something."""
        content = encode_message(request)
        addresses = list(self._masters())
        problem: Reply | None = None
        for _ in addresses:
            address = addresses[self._turn % len(addresses)]
            try:
                answer = self._channel(address).call(
                    AskMetadata(self._server, table_id, content), timeout_seconds=CALL_SECONDS
                )
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(request, ChangeRequest) and not isinstance(error, StaleRoute):
                    problem = Reply(request.request_id, "unknown", reason=str(error))
                else:
                    problem = problem or Reply(request.request_id, "unavailable", reason=str(error))
            else:
                reply = decode_message(answer)
                if not isinstance(reply, Reply):
                    raise RequestError(f"{address} answers with {type(reply).__name__}: is it a master?")
                if reply.outcome not in ("unavailable", "elsewhere"):
                    return reply
                problem = problem or reply
            self._turn += 1
        return problem or Reply(request.request_id, "unavailable", reason="no master is known")

    def _channel(self, address: str) -> Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = Channel(
                    METADATA_METHODS, address, client=self._server, credentials=self._credentials
                )
            return channel

    def finish_pruning(self) -> None:
        """Masters remove old transactions."""

    def discard(self, table_id: str, txnid: str) -> None:
        """Masters remove old transactions."""

    # --- tables come and go ----------------------------------------------------------------------

    def create_table(
        self, name: str, table_id: str, initial: TableMetadata, *, replacing: str | None = None, named_txn: int = 0
    ) -> TableMetadata:
        """A master makes tables."""
        _for_a_master("create a table")

    def drop_table(self, name: str) -> str:
        """A master drops tables."""
        _for_a_master("drop a table")

    def unlink_table(self, name: str, microseconds: int, kept_until_microseconds: int) -> str:
        """A master drops tables."""
        _for_a_master("drop a table")

    def undelete_table(self, table_id: str, name: str, named_txn: int = 0) -> None:
        """A master brings tables back."""
        _for_a_master("bring back a table")

    def purge_table(self, table_id: str) -> None:
        """A master purges tables."""
        _for_a_master("purge a table")

    def rename_table(self, table_id: str, name: str, named_txn: int = 0) -> None:
        """A master names tables."""
        _for_a_master("rename a table")

    def settle(self, name: str, table_id: str) -> bool:
        """Tell whether a table is there, for good."""
        return self.directory.settle(table_id, name)


def _for_a_master(doing: str) -> NoReturn:
    raise RequestError(f"a tablet server does not {doing}: ask a master")
