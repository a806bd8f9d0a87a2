"""Catching up: a server that lacks a transaction fetches it, and what it builds on, from one that has it.

fetch(txnid) --Fetch--> one server --Fetched--> checked, every one applied, saved --> held
                ^-- the next server, if there is no answer for a while, or not a whole one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.errors import EblaError
from ebla.metadata.consensus.history import outcome_of
from ebla.metadata.consensus.protocol import Fetch, Fetched
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import Record, decode

if TYPE_CHECKING:
    from ebla.metadata.consensus.peer import MetadataPeer

__all__ = ["CatchingUp"]

# Another server is asked if nothing has come in so many ticks.
ANSWER_TICKS = 2


class CatchingUp:
    """What one server lacks of one table, one transaction at a time."""

    def __init__(self, peer: MetadataPeer) -> None:
        self._peer = peer
        self._wanted: str | None = None
        self._unsaved: list[tuple[Record, TableMetadata, bytes]] = []  # the newest first; the last is being saved
        self._ticks = 0
        self._turn = 0  # whose turn it is to be asked

    def fetch(self, txnid: str, source: str | None = None) -> None:
        """See that a transaction is held, asking `source` first."""
        if txnid == self._wanted and source is None:
            return
        if self._peer.history.holds(txnid):
            return
        self._wanted = txnid
        self._ask(source)

    def _ask(self, source: str | None = None) -> None:
        others = self._peer.others()
        self._ticks = 0
        if source is None and others:
            self._turn += 1
            source = others[self._turn % len(others)]
        if source is None or self._wanted is None:
            return
        current = self._peer.current
        self._peer.send(source, Fetch(self._wanted, None if current is None else current.txnid))

    def fetched(self, message: Fetched) -> None:
        """Check what came, and save what is new in it."""
        peer = self._peer
        if message.txnid != self._wanted or self._unsaved:
            return
        outcome: TableMetadata | None = None
        new = []
        for content in message.contents:
            try:
                record = decode(content, message.txnid)
            except EblaError:
                return  # damaged on the way or there: the next one is asked
            if outcome is None and record.base is not None:
                outcome = peer.history.load(record.base)
            elif outcome is not None and record.base != outcome.txnid:
                return
            outcome = outcome_of(record, outcome)
            if outcome is None or record.table_id != peer.table_id:
                return
            if record.txnid not in peer.history:
                new.append((record, outcome, content))
        if outcome is None or outcome.txnid != self._wanted:
            return
        self._unsaved = new[::-1]
        self.saved()

    def saved(self) -> None:
        """Take note that something was saved, and save the next."""
        while self._unsaved:
            record, metadata, content = self._unsaved[-1]
            if record.txnid not in self._peer.history:
                self._peer.keeping.save(record, metadata, None, content)
                return
            self._unsaved.pop()
        if self._wanted is not None and self._peer.history.holds(self._wanted):
            self._wanted = None

    def not_saved(self, txnid: str) -> None:
        """Take note that something could not be."""
        if self._unsaved and self._unsaved[-1][0].txnid == txnid:
            self._unsaved.clear()

    def tick(self) -> None:
        """Ask the next one if it takes too long, or nobody if nobody wants it any more."""
        config = self._peer.config
        if self._wanted is None or self._unsaved:
            return
        if config is not None and self._peer.current is not None:
            self._wanted = None  # what is current is here: what was wanted besides is asked for again if need be
            return
        self._ticks += 1
        if self._ticks >= ANSWER_TICKS:
            self._ask()
