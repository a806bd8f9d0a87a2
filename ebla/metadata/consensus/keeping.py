"""Keeping the transactions that others store: each is made anew here, compared, saved, and only then said to be stored.

    Store --> its base is held? --> the same changes lead to the same bytes? --> save --> Stored
                 no: "behind", and it is fetched    no: "differs"

What is being saved has those who want to hear of it: this server's own transactions go the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

from ebla.errors import EblaError
from ebla.metadata.consensus.protocol import Committed, NotStored, Save, Store, Stored
from ebla.metadata.values.changes import update
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import Record, encode, make_record

if TYPE_CHECKING:
    from ebla.metadata.consensus.peer import MetadataPeer

__all__ = ["Keeping"]


class Keeping:
    """What one server is writing of one table."""

    def __init__(self, peer: MetadataPeer) -> None:
        self._peer = peer
        # By txnid: the record, its outcome, and who wants to hear of it.
        self._saving: dict[str, tuple[Record, TableMetadata, set[str]]] = {}

    def save(self, record: Record, outcome: TableMetadata, waiting: str | None, content: bytes | None = None) -> None:
        """Have a record saved, and tell `waiting` when it is."""
        saving = self._saving.get(record.txnid)
        if saving is None:
            saving = self._saving[record.txnid] = (record, outcome, set())
            self._peer.emit(Save(record.txnid, encode(record) if content is None else content))
        if waiting is not None:
            saving[2].add(waiting)

    def saved(self, txnid: str) -> bool:
        """Take note that a file is durable, and tell those who wait for it. False: nobody here wrote it."""
        saving = self._saving.pop(txnid, None)
        if saving is None:
            return False
        record, outcome, waiting = saving
        self._peer.history.add(record, outcome)
        for server in waiting:
            self._tell(server, txnid)
        return True

    def not_saved(self, txnid: str) -> None:
        """Take note that a file could not be written."""
        self._saving.pop(txnid, None)

    def _tell(self, server: str, txnid: str) -> None:
        peer = self._peer
        if not peer.history.holds(txnid):
            return  # what it builds on was damaged meanwhile
        if server == peer.server:
            peer.coordinator.stored(server, txnid)
        else:
            peer.send(server, Stored(txnid))

    def store(self, sender: str, message: Store) -> None:
        """Keep what another server wants to commit, if it comes to the same here."""
        peer = self._peer
        txnid = message.txnid
        if txnid in peer.history:
            if peer.history.holds(txnid):
                peer.send(sender, Stored(txnid))
            return
        if txnid in self._saving:
            self._saving[txnid][2].add(sender)
            return
        if peer.current is not None and message.sequence <= peer.current.sequence:
            # From long ago: it can be committed no more, which its sender seems not to know.
            assert peer.config is not None
            peer.send(sender, Committed(peer.config, peer.version))
            return
        base = peer.history.load(message.base)
        if base is None:
            peer.send(sender, NotStored(txnid, "behind"))
            peer.catching_up.fetch(message.base, sender)
            return
        agreed = self._agreed(message, base)
        if agreed is None:
            peer.send(sender, NotStored(txnid, "differs"))
            return
        self.save(*agreed, sender)

    def _agreed(self, message: Store, base: TableMetadata) -> tuple[Record, TableMetadata] | None:
        """Return what the message describes if it leads here where its sender says."""
        try:
            outcome = update(base, message.changes).with_txnid(message.txnid, base.sequence + 1)
        except EblaError:
            return None
        if (outcome.sequence, outcome.checksum) != (message.sequence, message.checksum):
            return None
        record = make_record(message.base, outcome, message.changes, message.requests, snapshot=message.is_snapshot)
        return (record, outcome) if google_crc32c.value(encode(record)) == message.content_crc else None

    def drop(self, txnid: str) -> None:
        """Remove what certainly was not committed."""
        peer = self._peer
        current = None if peer.config is None else peer.config.metadata_txnid
        if txnid in peer.history and txnid != current:
            peer.discard(txnid)
