"""The change requests that came to one server, and the transaction that they are being made with.

    queue --> apply each to what is current --> storing --> switching --> committed
                |  it does not fit: refused,       |            |  refused by the node: rebase, on what is current now
                |  once the base is known to       |            |  unknown: ask for the very same switch again; when it
                |  be current                      |            |  is refused, settle: look for it among the ancestors
                `-- it was done before: say so     `-- no majority in time: abort, nothing happened

Requests that wait while one transaction is under way go into the next one together. Each is all or nothing by itself,
and one that does not fit fails alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import google_crc32c
import msgspec

from ebla.errors import EblaError, UnknownTable
from ebla.metadata.consensus.history import NotOnRecord
from ebla.metadata.consensus.protocol import ChangeRequest, Committed, Drop, NotStored, Outcome, Reply, Store
from ebla.metadata.consensus.refusals import refusal_of
from ebla.metadata.values.changes import update
from ebla.metadata.values.file_names import check_floor
from ebla.metadata.values.table_config import TableConfig, majority
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import encode, is_snapshot, make_record

if TYPE_CHECKING:
    from ebla.metadata.consensus.peer import MetadataPeer

__all__ = ["Coordinator"]

# So many requests become one transaction at most.
BATCH_MAX = 1024


@dataclass(slots=True)
class _Waiting:
    client: str
    asked: ChangeRequest
    ticks: int = 0
    tag: int = 0  # the answer about the table's node from which on a "no" counts; 0: not asked for yet


@dataclass(slots=True)
class _Proposal:
    """The transaction under way."""

    accepted: list[_Waiting]
    refused: list[tuple[_Waiting, EblaError]]
    config: TableConfig  # with the new transaction in it
    version: int  # of the node that it was built on
    metadata: TableMetadata
    store: Store
    phase: Literal["storing", "switching", "settling"] = "storing"
    stored: set[str] = field(default_factory=set)
    differing: set[str] = field(default_factory=set)
    is_unsure: bool = False  # a switch was asked for and its outcome is unknown
    is_asked: bool = False  # a switch is under way
    ticks: int = 0
    tag: int = 0


class Coordinator:
    """Carries out requests for one table at one server, one transaction at a time."""

    def __init__(self, peer: MetadataPeer) -> None:
        self._peer = peer
        self._by_id: dict[str, _Waiting] = {}  # all that are not answered yet
        self._queue: list[_Waiting] = []
        self._proposal: _Proposal | None = None

    # --- requests --------------------------------------------------------------------------------

    def request(self, client: str, asked: ChangeRequest) -> None:
        """Take in a request; one that is being worked on already is not taken twice."""
        known = self._by_id.get(asked.request_id)
        if known is not None:
            known.client = client
            return
        waiting = self._by_id[asked.request_id] = _Waiting(client, asked)
        self._queue.append(waiting)
        self.go_on()

    def _reply(
        self,
        waiting: _Waiting,
        outcome: Outcome,
        reason: str = "",
        txnid: str | None = None,
        error: EblaError | None = None,
    ) -> None:
        config = self._peer.config
        asked = waiting.asked
        del self._by_id[asked.request_id]
        servers = config.metadata_servers if config is not None and outcome == "elsewhere" else ()
        contents = () if txnid is None else self._peer.contents_since(txnid, asked.base)
        kind = "" if error is None else refusal_of(error)
        self._peer.send(waiting.client, Reply(asked.request_id, outcome, txnid, reason, kind, servers, contents))

    def go_on(self) -> None:
        """Take the next step, if it can be taken."""
        proposal = self._proposal
        if proposal is not None and proposal.phase == "settling":
            self._settle(proposal)
        elif proposal is not None and proposal.phase == "storing" and self._peer.version > proposal.version:
            self._rebase(proposal)  # it could not be committed any more, and nobody was asked to
        while self._proposal is None and self._queue:
            if not self._propose():
                return

    def _is_certain(self, waiting: _Waiting) -> bool:
        """Whether what is known here is newer than the request, so that a "no" counts; if not, have it made so."""
        if not waiting.tag:
            waiting.tag = self._peer.fresh_tag()
        return self._peer.is_fresh(waiting.tag)

    def _propose(self) -> bool:
        """Begin a transaction with what is in the queue. False: there is something to wait for first."""
        peer = self._peer
        if not peer.is_caught_up or not peer.is_member:
            return self._turn_away()
        assert peer.current is not None
        asked, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
        accepted: list[_Waiting] = []
        refused: list[tuple[_Waiting, EblaError]] = []
        later: list[_Waiting] = []
        metadata = peer.current
        for waiting in asked:
            request = waiting.asked
            try:
                done = peer.history.find_request(peer.current.txnid, request.base, request.request_id)
                if done is not None:
                    self._reply(waiting, "committed", txnid=done)
                    continue
                if peer.config is not None:  # switched at that version, or asked again
                    check_floor(request.changes, peer.config.file_floor_microseconds)
                metadata = update(metadata, request.changes)
            except NotOnRecord:
                if self._is_certain(waiting):
                    self._reply(waiting, "too old", "its base is no longer on record: read, then ask anew")
                else:
                    later.append(waiting)
            except EblaError as unfit:
                refused.append((waiting, unfit))
            else:
                accepted.append(waiting)
        if accepted:
            self._queue = later + self._queue
            self._begin(metadata, accepted, refused)
            return True
        for waiting, error in refused:
            if self._is_certain(waiting):
                self._reply(waiting, "refused", str(error), error=error)
            else:
                later.append(waiting)
        self._queue = later + self._queue
        return not later

    def _turn_away(self) -> bool:
        """Answer those that this server cannot serve, for certain. False: the others wait."""
        peer = self._peer
        waiting = []
        for request in self._queue:
            if not self._is_certain(request) or not (peer.is_gone or not peer.is_member):
                waiting.append(request)
            elif peer.is_gone:
                self._reply(request, "refused", "there is no such table", error=UnknownTable("gone"))
            else:
                self._reply(request, "elsewhere", "this server does not keep the table")
        self._queue = waiting
        return False

    # --- storing ---------------------------------------------------------------------------------

    def _begin(
        self, metadata: TableMetadata, accepted: list[_Waiting], refused: list[tuple[_Waiting, EblaError]]
    ) -> None:
        peer = self._peer
        assert peer.current is not None
        assert peer.config is not None
        base = peer.current
        metadata = metadata.with_txnid(peer.new_id(), base.sequence + 1)
        changes = tuple(change for waiting in accepted for change in waiting.asked.changes)
        requests = tuple(waiting.asked.request_id for waiting in accepted)
        is_whole = is_snapshot(metadata.sequence, peer.snapshot_every)
        record = make_record(base.txnid, metadata, changes, requests, snapshot=is_whole)
        content = encode(record)
        store = Store(
            metadata.txnid,
            base.txnid,
            metadata.sequence,
            metadata.checksum,
            google_crc32c.value(content),
            is_whole,
            changes,
            requests,
        )
        config = msgspec.structs.replace(peer.config, metadata_txnid=metadata.txnid)
        self._proposal = _Proposal(accepted, refused, config, peer.version, metadata, store)
        peer.keeping.save(record, metadata, peer.server, content)
        for server in peer.others():
            peer.send(server, store)

    def stored(self, server: str, txnid: str) -> None:
        """Take note that a server has stored a transaction."""
        proposal = self._proposal
        if proposal is None or proposal.metadata.txnid != txnid or server not in proposal.config.metadata_servers:
            return
        proposal.stored.add(server)
        if proposal.phase == "storing" and self._is_stored(proposal):
            proposal.phase = "switching"
            proposal.ticks = 0
            self._switch(proposal)

    def _is_stored(self, proposal: _Proposal) -> bool:
        """Whether a majority has it, this server included."""
        needed = majority(len(proposal.config.metadata_servers))
        return self._peer.server in proposal.stored and len(proposal.stored) >= needed

    def not_stored(self, server: str, message: NotStored) -> None:
        """Take note that a server did not store a transaction; one that is behind is asked again with the next tick."""
        proposal = self._proposal
        if proposal is None or proposal.metadata.txnid != message.txnid or message.reason == "behind":
            return
        proposal.differing.add(server)
        servers = set(proposal.config.metadata_servers)
        if proposal.phase == "storing" and len(servers - proposal.differing) < majority(len(servers)):
            self._give_up(proposal, "the servers come to different outcomes: run the same version of Ebla on all")

    def not_saved(self, txnid: str) -> None:
        """Take note that this server could not save a transaction."""
        proposal = self._proposal
        if proposal is not None and proposal.metadata.txnid == txnid and proposal.phase == "storing":
            self._give_up(proposal, "the transaction could not be written: make room or repair the disk")

    def _give_up(self, proposal: _Proposal, reason: str) -> None:
        """Abort before the switch was asked for: certainly nothing happened."""
        self._drop(proposal)
        for waiting in (*proposal.accepted, *(waiting for waiting, _ in proposal.refused)):
            self._reply(waiting, "unavailable", reason)

    def _drop(self, proposal: _Proposal) -> None:
        """Forget a transaction that certainly was not committed and never will be, here and elsewhere."""
        peer = self._peer
        self._proposal = None
        peer.discard(proposal.metadata.txnid)
        for server in proposal.config.metadata_servers:
            if server != peer.server:
                peer.send(server, Drop(proposal.metadata.txnid))

    # --- switching -------------------------------------------------------------------------------

    def _switch(self, proposal: _Proposal) -> None:
        proposal.is_asked = True

        def then(outcome: str, version: int) -> None:
            proposal.is_asked = False
            if proposal is not self._proposal:
                return
            match outcome:
                case "done":
                    self._committed(proposal, version)
                case "refused":
                    self._refused(proposal)
                case "unknown":
                    proposal.is_unsure = True

        self._peer.ask_switch(proposal.config, proposal.version, then)

    def _committed(self, proposal: _Proposal, version: int | None) -> None:
        peer = self._peer
        self._proposal = None
        if version is not None:
            peer.adopt(proposal.config, version)
            for server in peer.others():
                peer.send(server, Committed(proposal.config, version))
        for waiting in proposal.accepted:
            self._reply(waiting, "committed", txnid=proposal.metadata.txnid)
        for waiting, error in proposal.refused:
            self._reply(waiting, "refused", str(error), error=error)

    def _refused(self, proposal: _Proposal) -> None:
        if proposal.is_unsure:
            proposal.phase = "settling"
            proposal.ticks = 0
            proposal.tag = self._peer.fresh_tag()
        else:
            self._rebase(proposal)

    def _rebase(self, proposal: _Proposal) -> None:
        """Begin again with the same requests, on what is current now."""
        self._drop(proposal)
        again = [*proposal.accepted, *(waiting for waiting, _ in proposal.refused)]
        tag = self._peer.outrun()
        for waiting in again:
            waiting.tag = tag
        self._queue = again + self._queue

    def _settle(self, proposal: _Proposal) -> None:
        """After an unknown outcome and a refusal: tell whether it was committed, once that can be told."""
        peer = self._peer
        if not peer.is_fresh(proposal.tag):
            return
        if peer.is_gone:
            self._stay_unsure(proposal)
        elif peer.current is not None:
            try:
                is_ancestor = peer.history.is_ancestor(proposal.metadata, peer.current.txnid)
            except NotOnRecord:
                self._stay_unsure(proposal)
                return
            if is_ancestor:
                self._committed(proposal, None)
            else:
                self._rebase(proposal)

    def _stay_unsure(self, proposal: _Proposal) -> None:
        """Stop trying, and keep the files: it may be that others have built upon them."""
        self._proposal = None
        for waiting in proposal.accepted:
            self._reply(waiting, "unknown", "it is not known whether it was done: ask again")
        for waiting, _ in proposal.refused:
            self._reply(waiting, "unavailable", "it is not known what is current: ask again")
        self._peer.outrun()

    def tick(self) -> None:
        """Try again what was lost, and give up what takes too long."""
        self._tick_queue()
        proposal = self._proposal
        if proposal is None:
            return
        proposal.ticks += 1
        is_late = proposal.ticks > self._peer.patience_ticks
        match proposal.phase:
            case "storing":
                if is_late:
                    self._give_up(proposal, "no majority of the servers answered in time: try again")
                    return
                for server in proposal.config.metadata_servers:
                    if server != self._peer.server and server not in proposal.stored | proposal.differing:
                        self._peer.send(server, proposal.store)
            case "switching" if not proposal.is_asked:
                if not is_late:
                    self._switch(proposal)
                elif proposal.is_unsure:
                    self._stay_unsure(proposal)
                else:
                    self._give_up(proposal, "the coordination service does not answer: try again")
            case "settling":
                if is_late:
                    self._stay_unsure(proposal)

    def _tick_queue(self) -> None:
        kept = []
        for waiting in self._queue:
            waiting.ticks += 1
            if waiting.ticks > self._peer.patience_ticks:
                self._reply(waiting, "unavailable", "this server is behind, or cannot tell whether it is: try again")
            else:
                kept.append(waiting)
        self._queue = kept
