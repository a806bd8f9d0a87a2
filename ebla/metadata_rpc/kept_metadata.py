"""METADATA as a master keeps it: its own files, and letters to the other masters.

    commit --> group of the table (one server of it is here) --letters--> the others --> majority --> coordination
    create --> file here, and at a majority of the masters          --> coordination
    load   --> the files here; what is missing is fetched from the others first

Every master is a metadata server of every table. One that was away, or is new, fetches what it lacks and joins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from ebla.access.credentials import NOTHING, Credentials
from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import Corruption, EblaError, MissingFile, Unavailable, UnknownTable
from ebla.metadata.consensus.letters import decode_message, encode_message
from ebla.metadata.consensus.protocol import ChangeRequest, ReadRequest, Reply
from ebla.metadata.consensus.refusals import refusal_of
from ebla.metadata.server.group import MetadataGroup
from ebla.metadata.server.grouped import CommitRequest, GroupedMetadata
from ebla.metadata.server.metadata_store import MetadataNotSaved, MetadataStore
from ebla.metadata.values.table_config import majority
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata_rpc.calls import AskMetadata, KeepTransaction, Tell
from ebla.metadata_rpc.in_sync_check import put_as_known
from ebla.metadata_rpc.lines import Lines
from ebla.metadata_rpc.sender_check import check_sender
from ebla.retry import PATIENCE, Retries
from ebla.storage.files.files import Files

__all__ = ["KeptMetadata"]

# Without a majority a change is given up after so many pauses of this length.
PATIENCE_TICKS = 40
PAUSE_SECONDS = 0.05
TICK_SECONDS = 0.5

_log = logging.getLogger(__name__)


class KeptMetadata(GroupedMetadata):
    """One master's part in the METADATA of all tables. Safe to use from several threads."""

    def __init__(
        self,
        coordination: CoordinationService,
        files: Files,
        clock: Clock,
        *,
        own: str,
        masters: Callable[[], tuple[str, ...]],
        address_of: Callable[[str], str | None],
        new_id: Callable[[], str],
        retries: Retries = PATIENCE,
        credentials: Credentials = NOTHING,
    ) -> None:
        """`own` is the uuid of this master, `masters` those of all that keep METADATA."""
        # Set once.
        self._own = own
        self._masters = masters
        self._lines = Lines(own, address_of, credentials)
        self._own_store = MetadataStore(files)
        shared = _SharedStore(files, self)
        super().__init__(coordination, shared, clock, server_id=own, new_id=new_id, retries=retries)
        self._stopping = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="ebla-metadata-ticks", daemon=True)
        self._ticker.start()

    @property
    def store(self) -> MetadataStore:
        """The files, as those who read METADATA see them."""
        return self._store

    def close(self) -> None:
        """Take part no more. What was committed is on a majority of the masters' disks."""
        self._stopping.set()
        self._ticker.join()
        self._lines.close()
        self.finish_pruning()

    @property
    def transactions_written(self) -> int:
        """How many transactions of METADATA this master has made durable since it was started."""
        return self._own_store.written

    # --- what other masters say ------------------------------------------------------------------

    def told(self, request: Tell) -> None:
        """Take in letters of another master."""
        for letter in request.letters:
            message = decode_message(letter.message)
            try:
                group = self._group(letter.table)
            except UnknownTable:
                continue
            group.deliver(request.sender, self._own, message)

    def keep(self, request: KeepTransaction) -> None:
        """Keep a file for a table that another master is making."""
        try:
            self._own_store.write(request.table, request.txnid, request.content)
        except MetadataNotSaved:
            if not self._has(request):
                raise

    def _has(self, request: KeepTransaction) -> bool:
        try:
            return self._own_store.record(request.table, request.txnid).txnid == request.txnid
        except EblaError:
            return False

    # --- what tablet servers ask -----------------------------------------------------------------

    def asked(self, request: AskMetadata) -> bytes:
        """Answer a change request or a read of a tablet server."""
        message = decode_message(request.request)
        if isinstance(message, ReadRequest):
            reply = self._group(request.table).answer(self._own, message)
        elif isinstance(message, ChangeRequest):
            reply = self._changed_for(request.sender, request.table, message)
        else:
            reply = Reply("", "refused", reason=f"{type(message).__name__} is nothing that a tablet server asks")
        return encode_message(reply)

    def _changed_for(self, sender: str, table_id: str, asked: ChangeRequest) -> Reply:
        group = self._group(table_id)
        try:
            # What this master knows may be old: then the epoch that the change names does not fit, where it is applied.
            check_sender(self.read(table_id), sender, asked.changes)
        except EblaError as stale:
            try:
                check_sender(self.refresh(table_id), sender, asked.changes)
            except EblaError as error:
                if isinstance(error, Unavailable):
                    return Reply(asked.request_id, "unavailable", reason=str(error))
                _log.warning("a change of %s was refused: %s", sender, stale)
                return Reply(asked.request_id, "refused", reason=str(error), refusal=refusal_of(error))
        try:
            asked = msgspec.structs.replace(asked, changes=put_as_known(self._coordination, asked.changes))
        except Unavailable as error:
            return Reply(asked.request_id, "unavailable", reason=str(error))
        reply = group.answer(self._own, asked)
        if reply.outcome == "committed":
            self._current.forget(table_id)
        return reply

    # --- groups ----------------------------------------------------------------------------------

    def _started(self, table_id: str) -> MetadataGroup:
        config = self.directory.config(table_id)
        if config is None or not config.is_there:
            raise UnknownTable(f"there is no table of id {table_id}")
        group = MetadataGroup(
            self._coordination,
            table_id,
            self._clock,
            new_id=self._new_id,
            attempts_max=PATIENCE_TICKS,
            pause_seconds=PAUSE_SECONDS,
            post=lambda sender, to, message: self._lines.post(to, table_id, encode_message(message)),
        )
        group.start(self._own, self._own_store)
        if self._own not in config.metadata_servers:
            threading.Thread(target=self._join, args=(table_id, group), name="ebla-metadata-join", daemon=True).start()
        return group

    def _join(self, table_id: str, group: MetadataGroup) -> None:
        try:
            group.join(self._own)
        except EblaError as error:  # it is tried again when the master is started again
            _log.warning("table %s: this master does not keep its METADATA yet: %s", table_id, error)

    def fetched(self, table_id: str) -> TableMetadata:
        """Return what is current, once this master has fetched what it lacks of it; `Unavailable` if it cannot."""
        return self._group(table_id).read(self._own)

    def _tick(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            with self._groups_lock:
                groups = [*self._groups.values()]
            for group in groups:
                try:
                    group.tick()
                except Exception:
                    _log.exception("a metadata server could not go on")

    def _carry_out(self, table_id: str, requests: list[CommitRequest]) -> None:
        for request, error in self._commit_through(self._own, table_id, requests):
            request.fail(error)

    def create_table(
        self, name: str, table_id: str, initial: TableMetadata, *, replacing: str | None = None, named_txn: int = 0
    ) -> TableMetadata:
        """Create a table whose METADATA all masters keep."""
        self._server_ids = self._masters()
        return super().create_table(name, table_id, initial, replacing=replacing, named_txn=named_txn)

    def spread(self, table_id: str, txnid: str, content: bytes) -> None:
        """Have the first transaction of a table kept by a majority of the masters, this one included."""
        masters = self._masters()
        kept, reasons = 1, []
        for master in masters:
            if master == self._own:
                continue
            try:
                self._lines.keep(master, KeepTransaction(table_id, txnid, content))
                kept += 1
            except EblaError as error:
                reasons.append(f"{master}: {error}")
        if kept < majority(len(masters)):
            raise Unavailable(
                f"{kept} of {len(masters)} masters have the new METADATA, which is no majority ({'; '.join(reasons)}): "
                "start the others, then retry"
            )


class _SharedStore(MetadataStore):
    """The files of this master, as those who read METADATA see them: what is missing is fetched, what is new spread."""

    def __init__(self, files: Files, kept: KeptMetadata) -> None:
        super().__init__(files)
        self._kept = kept

    def load(self, table_id: str, txnid: str, known: TableMetadata | None = None) -> TableMetadata:
        try:
            return super().load(table_id, txnid, known)
        except (MissingFile, Corruption):  # not here yet, still being written, or damaged: others may have it
            fetched = self._kept.fetched(table_id)
            if fetched.txnid == txnid:
                return fetched
            raise  # there is a newer one by now: who reads looks again

    def write(self, table_id: str, txnid: str, content: bytes) -> None:
        super().write(table_id, txnid, content)
        try:
            self._kept.spread(table_id, txnid, content)
        except EblaError:
            self.discard(table_id, txnid)
            raise
