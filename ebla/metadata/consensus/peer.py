"""One metadata server's part in the METADATA of one table: a state machine without I/O, time or chance.

    messages, answers, ticks  -->  MetadataPeer  -->  actions (protocol.py)        a driver carries them out

    MetadataPeer            what is current, serving reads, notifying
    |-- Coordinator         the change requests that came here, and the one transaction that they are made with
    |-- Keeping             saving what this server and others want to commit
    |-- CatchingUp          fetching what this server lacks
    `-- Membership          joining and leaving the list of servers

The rules that keep every committed change, whatever gets lost, late, doubled, or cut off:
1. A server says that it stored a transaction only when it is on its disk *and* everything that it builds on is.
2. The switch (the compare-and-set of the table's node) names the version that the transaction was built on, list of
   servers included, and is asked for only after a majority of that list, the asker among them, has stored it.
3. A transaction is dropped only if its switch was never sent, or was refused and never unknown, or if it is certainly
   not among the ancestors of a transaction that was current after the refusal.
4. A server answers a read only from what the coordination service called current after the read had come.
5. A server leaves only while a majority of the others holds what is current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ebla.metadata.consensus.catching_up import CatchingUp
from ebla.metadata.consensus.coordinator import Coordinator
from ebla.metadata.consensus.history import History
from ebla.metadata.consensus.keeping import Keeping
from ebla.metadata.consensus.membership import Membership
from ebla.metadata.consensus.protocol import (
    Action,
    AskConfig,
    AskSwitch,
    Became,
    Changed,
    ChangeRequest,
    Committed,
    Discard,
    Drop,
    Fetch,
    Fetched,
    Holds,
    HoldsReply,
    Message,
    NotStored,
    ReadRequest,
    Reply,
    Send,
    Store,
    Stored,
    Subscribe,
)
from ebla.metadata.consensus.refusals import GONE
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import Record, encode, is_snapshot

__all__ = ["MetadataPeer"]

# The table's node is read again after so many ticks without any news, in case one was missed.
POLL_TICKS = 4


class MetadataPeer:
    """The state machine. Every method takes in one thing that happened and returns what is to be done about it."""

    def __init__(
        self,
        server: str,
        table_id: str,
        records: Iterable[Record],
        *,
        new_id: Callable[[], str],
        snapshot_every: int = 32,
        patience_ticks: int = 20,
    ) -> None:
        """Begin with the intact files that are on disk. `patience_ticks` bounds how long anything is tried."""
        # Set once.
        self.server = server
        self.table_id = table_id
        self.new_id = new_id
        self.snapshot_every = snapshot_every
        self.patience_ticks = patience_ticks
        self.history = History(records)
        self.coordinator = Coordinator(self)
        self.keeping = Keeping(self)
        self.catching_up = CatchingUp(self)
        self.membership = Membership(self)
        # What the table's node was when it was seen last; nothing at first.
        self.config: TableConfig | None = None
        self.version = 0
        self.current: TableMetadata | None = None  # loaded, and called current by `config`
        self.is_gone = False  # the table was dropped, or is not there
        # Answers from the coordination service: numbered, one question for the node at a time.
        self._tag = 0
        self._asked: int | None = None
        self._answered = 0
        self._wanted = 0
        self._outrun_tag = 0
        self._switches: dict[int, Callable[[str, int], None]] = {}
        self._reads: list[tuple[str, ReadRequest, int]] = []
        self._watchers: dict[str, str] = {}
        self._quiet_ticks = 0
        self._actions: list[Action] = []

    # --- what happens ----------------------------------------------------------------------------

    def receive(self, sender: str, message: Message) -> list[Action]:
        """Take in a message."""
        handler = _HANDLERS.get(type(message))
        if handler is not None:  # else it is a reply to something that nobody here asked
            handler(self, sender, message)
        return self._taken()

    def saved(self, txnid: str) -> list[Action]:
        """Take note that a file is durable."""
        if self.keeping.saved(txnid):
            self.catching_up.saved()
            self._settle()
        return self._taken()

    def not_saved(self, txnid: str) -> list[Action]:
        """Take note that a file could not be written: a full disk, say."""
        self.keeping.not_saved(txnid)
        self.coordinator.not_saved(txnid)
        self.catching_up.not_saved(txnid)
        return self._taken()

    def config_read(self, tag: int, config: TableConfig | None, version: int) -> list[Action]:
        """Take in the table's node; no config: there is no such table."""
        if tag == self._asked:
            self._asked = None
            self._answered = tag
            self.is_gone = config is None or not config.is_there
            if config is not None:
                self.adopt(config, version)
            self._settle()
        return self._taken()

    def config_failed(self, tag: int) -> list[Action]:
        """Take note that the coordination service did not answer. It is asked again with the next tick."""
        if tag == self._asked:
            self._asked = None
        return self._taken()

    def switch_done(self, tag: int, version: int) -> list[Action]:
        """Take note that the node was set."""
        return self._switched(tag, "done", version)

    def switch_refused(self, tag: int) -> list[Action]:
        """Take note that the node has another version by now."""
        return self._switched(tag, "refused", 0)

    def switch_failed(self, tag: int) -> list[Action]:
        """Take note that nothing was sent."""
        return self._switched(tag, "failed", 0)

    def switch_unknown(self, tag: int) -> list[Action]:
        """Take note that the node may have been set, or may be yet."""
        return self._switched(tag, "unknown", 0)

    def _switched(self, tag: int, outcome: str, version: int) -> list[Action]:
        then = self._switches.pop(tag, None)
        if then is not None:
            then(outcome, version)
            self._settle()
        return self._taken()

    def damaged(self, txnid: str) -> list[Action]:
        """Take note that a file was found missing or damaged: it is fetched again from another server."""
        self.history.remove(txnid)
        if self.current is not None and not self.history.holds(self.current.txnid):
            self.current = None
        self._settle()
        return self._taken()

    def config_changed(self) -> list[Action]:
        """Take note that a watch of the table's node fired."""
        self.ask_config()
        return self._taken()

    def join(self) -> list[Action]:
        """Become one of the servers of the table, however long it takes."""
        self.membership.begin("joining")
        return self._taken()

    def leave(self) -> list[Action]:
        """Cease to be one, as soon as the others can do without."""
        self.membership.begin("leaving")
        return self._taken()

    def tick(self) -> list[Action]:
        """Let some time pass: what was lost is tried again."""
        self._quiet_ticks += 1
        if self._quiet_ticks >= POLL_TICKS or self._wanted > self._answered:
            self.ask_config()
        self.coordinator.tick()
        self.catching_up.tick()
        self.membership.tick()
        self._settle()
        return self._taken()

    # --- what is current -------------------------------------------------------------------------

    @property
    def is_caught_up(self) -> bool:
        """Whether what was current when the node was seen last is loaded here, and nothing says that it is old."""
        return self.current is not None and not self.is_gone and self.is_fresh(self._outrun_tag)

    @property
    def is_member(self) -> bool:
        """Whether this server was one of the table's when the node was seen last."""
        return self.config is not None and self.server in self.config.metadata_servers

    def others(self) -> list[str]:
        """Return the other servers of the table."""
        return [] if self.config is None else [name for name in self.config.metadata_servers if name != self.server]

    def fresh_tag(self) -> int:
        """Have the node read from now on, and return which answer is the first that counts: see `is_fresh`."""
        self._wanted = self._tag + 1
        self.ask_config()
        return self._wanted

    def is_fresh(self, tag: int) -> bool:
        """Whether the answer that `fresh_tag` spoke of, or a later one, has come."""
        return self._answered >= tag

    def outrun(self) -> int:
        """Take note that what is known of the node is old; return the answer from which on it is not."""
        self._outrun_tag = self.fresh_tag()
        return self._outrun_tag

    def ask_config(self) -> None:
        """Have the node read, unless that is under way."""
        if self._asked is None:
            self._tag += 1
            self._asked = self._tag
            self._quiet_ticks = 0
            self.emit(AskConfig(self._tag))

    def adopt(self, config: TableConfig, version: int) -> None:
        """Take over what the node says, unless it is old news."""
        if version < self.version or not config.is_there:
            return
        self.config, self.version = config, version
        txnid = config.metadata_txnid
        if self.current is None or self.current.txnid != txnid:
            self.current = self.history.load(txnid)
            if self.current is not None:
                self._became(self.current)

    def _became(self, metadata: TableMetadata) -> None:
        self.emit(Became(metadata))
        for watcher, known in self._watchers.items():
            if known != metadata.txnid:
                self.send(watcher, Changed(metadata.txnid))
                self._watchers[watcher] = metadata.txnid
        if is_snapshot(metadata.sequence, self.snapshot_every):
            for txnid in self.history.prunable(metadata):
                self.discard(txnid)

    def _settle(self) -> None:
        """See what can go on, now that something is known that was not before."""
        if self.config is not None and self.current is None and not self.is_gone:
            self.adopt(self.config, self.version)
            if self.current is None:
                self.catching_up.fetch(self.config.metadata_txnid)
        self._serve_reads()
        self.coordinator.go_on()
        self.membership.go_on()
        if self._wanted > max(self._answered, self._asked or 0):
            self.ask_config()

    # --- for the parts ---------------------------------------------------------------------------

    def emit(self, action: Action) -> None:
        """Have something done."""
        self._actions.append(action)

    def send(self, to: str, message: Message) -> None:
        """Have a message sent."""
        self._actions.append(Send(to, message))

    def discard(self, txnid: str) -> None:
        """Have a file removed."""
        self.history.remove(txnid)
        self.emit(Discard(txnid))

    def switch(self, config: TableConfig, then: Callable[[str, int], None]) -> None:
        """Have the node set if it still is what was seen last."""
        self.ask_switch(config, self.version, then)

    def ask_switch(self, config: TableConfig, version: int, then: Callable[[str, int], None]) -> None:
        """Have the node set if it has this version; `then` gets the outcome and the new version."""
        self._tag += 1
        self._switches[self._tag] = then
        self.emit(AskSwitch(self._tag, config, version))

    def _taken(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    # --- messages --------------------------------------------------------------------------------

    def _on_read(self, sender: str, message: ReadRequest) -> None:
        self._reads.append((sender, message, self.fresh_tag()))
        self._serve_reads()

    def _serve_reads(self) -> None:
        if not self._reads:
            return
        waiting = []
        for client, asked, tag in self._reads:
            request_id = asked.request_id
            if not self.is_fresh(tag):
                waiting.append((client, asked, tag))
            elif self.is_gone:
                self.send(client, Reply(request_id, "refused", reason="there is no such table", refusal=GONE))
            elif not self.is_member:
                servers = () if self.config is None else self.config.metadata_servers
                self.send(client, Reply(request_id, "elsewhere", servers=servers))
            elif self.current is None:
                reason = "this server is behind and fetches what it lacks"
                self.send(client, Reply(request_id, "unavailable", reason=reason))
            else:
                txnid = self.current.txnid
                self.send(client, Reply(request_id, "read", txnid, contents=self.contents_since(txnid, asked.known)))
        self._reads = waiting

    def contents_since(self, txnid: str, known: str | None) -> tuple[bytes, ...]:
        """Return the files that lead from `known` to a transaction, or from the newest snapshot before it."""
        return tuple(map(encode, self.history.shortest(txnid, known)))

    def _on_subscribe(self, sender: str, message: Subscribe) -> None:
        self._watchers[sender] = message.known
        if self.current is not None and self.current.txnid != message.known:
            self._watchers[sender] = self.current.txnid
            self.send(sender, Changed(self.current.txnid))

    def _on_committed(self, sender: str, message: Committed) -> None:
        self.adopt(message.config, message.version)
        self._settle()

    def _on_fetch(self, sender: str, message: Fetch) -> None:
        records = self.history.since(message.txnid, message.known)
        self.send(sender, Fetched(message.txnid, tuple(map(encode, records))))

    def _on_fetched(self, sender: str, message: Fetched) -> None:
        self.catching_up.fetched(message)
        self._settle()

    def _on_holds(self, sender: str, message: Holds) -> None:
        self.send(sender, HoldsReply(message.txnid, self.history.holds(message.txnid)))

    def _on_holds_reply(self, sender: str, message: HoldsReply) -> None:
        self.membership.holds(sender, message)
        self._settle()


_HANDLERS: dict[type, Callable[[MetadataPeer, str, Any], None]] = {
    ChangeRequest: lambda peer, sender, message: peer.coordinator.request(sender, message),
    ReadRequest: MetadataPeer._on_read,
    Subscribe: MetadataPeer._on_subscribe,
    Store: lambda peer, sender, message: peer.keeping.store(sender, message),
    Stored: lambda peer, sender, message: peer.coordinator.stored(sender, message.txnid),
    NotStored: lambda peer, sender, message: peer.coordinator.not_stored(sender, message),
    Drop: lambda peer, sender, message: peer.keeping.drop(message.txnid),
    Committed: MetadataPeer._on_committed,
    Fetch: MetadataPeer._on_fetch,
    Fetched: MetadataPeer._on_fetched,
    Holds: MetadataPeer._on_holds,
    HoldsReply: MetadataPeer._on_holds_reply,
}
