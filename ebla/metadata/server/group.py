"""The metadata servers of one table that run in this process: the thin driver of `MetadataPeer`.

    commit, read, join, leave (any thread)
        | letter to a server                           whoever finds nobody driving drives, for everybody
        v
    inbox --> peer --> actions --> files, coordination service, letters to others --> inbox ...

Files and coordination are real and are waited for; letters between servers of this process are delivered in order and
never lost. A server can be stopped and started again. Where the others run in processes of their own, `post` takes what
is for them, and `deliver` brings what they sent: any of it may be lost, and is sent again with the next tick.

What is waiting when a transaction begins goes into it together, so threads that commit at the same time share the cost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ebla.clock import Clock
from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import EblaError, OutcomeUnknown, RequestError, Unavailable
from ebla.metadata.consensus.peer import MetadataPeer
from ebla.metadata.consensus.protocol import (
    Action,
    AskConfig,
    AskSwitch,
    Became,
    ChangeRequest,
    Discard,
    Message,
    ReadRequest,
    Reply,
    Save,
    Send,
)
from ebla.metadata.consensus.reading import metadata_after
from ebla.metadata.consensus.refusals import error_of
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_config import config_path, decode_config, encode_config
from ebla.metadata.values.table_metadata import TableMetadata

__all__ = ["MetadataGroup"]

_Letter: TypeAlias = tuple[str, str, Message]  # from, to, what


class MetadataGroup:
    """The servers of one table. Safe to use from several threads."""

    def __init__(
        self,
        coordination: CoordinationService,
        table_id: str,
        clock: Clock,
        *,
        new_id: Callable[[], str],
        snapshot_every: int = 32,
        attempts_max: int = 64,
        pause_seconds: float = 0.05,
        on_change: Callable[[str, TableMetadata], None] | None = None,
        post: Callable[[str, str, Message], None] | None = None,
    ) -> None:
        """`on_change` is told, by server, of every transaction that becomes current; it must not call back.

        `post` sends what one server here has to say to one elsewhere; it does not wait. Without it all are here.
        """
        # Set once.
        self._coordination = coordination
        self._table_id = table_id
        self._clock = clock
        self._new_id = new_id
        self._snapshot_every = snapshot_every
        self._attempts_max = attempts_max
        self._pause_seconds = pause_seconds
        self._on_change = on_change
        self._post = post
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._inbox: deque[_Letter] = deque()
        self._replies: dict[str, Reply] = {}
        self._is_driven = False
        # Used by whoever drives.
        self._stores: dict[str, MetadataStore] = {}
        self._peers: dict[str, MetadataPeer] = {}

    # --- servers ---------------------------------------------------------------------------------

    def start(self, server: str, store: MetadataStore) -> None:
        """Start a server with the files that it has; damaged ones are fetched again from the others."""
        with self._driving():
            records, damaged = store.intact(self._table_id)
            for txnid in damaged:
                store.set_aside(self._table_id, txnid)
            self._stores[server] = store
            self._peers[server] = MetadataPeer(
                server,
                self._table_id,
                records,
                new_id=self._new_id,
                snapshot_every=self._snapshot_every,
                patience_ticks=self._attempts_max,
            )
            self._do(server, self._peers[server].config_changed())
            self._drive()

    def stop(self, server: str) -> None:
        """Stop a server, as a crash would: its files stay."""
        with self._driving():
            del self._peers[server]
            del self._stores[server]

    def scrub(self, server: str) -> list[str]:
        """Read all files of a server again; return those that were damaged, and have been fetched again if possible."""
        with self._driving():
            _, damaged = self._stores[server].intact(self._table_id)
            for txnid in damaged:
                self._stores[server].set_aside(self._table_id, txnid)
                self._do(server, self._peers[server].damaged(txnid))
            self._drive()
        return damaged

    def catch_up(self, ticks_max: int) -> list[str]:
        """Let servers that lack what is current fetch it; return those that lack it still."""
        with self._driving():
            for _ in range(ticks_max):
                self._drive()
                if not self._behind():
                    return []
                self._tick()
            self._drive()
            return self._behind()

    def _behind(self) -> list[str]:
        return [name for name, peer in self._peers.items() if peer.current is None and not peer.is_gone]

    def join(self, server: str) -> None:
        """Make a started server one of the table's; `Unavailable` if that cannot be done now."""
        self._wish(server, lambda peer: peer.join())

    def leave(self, server: str) -> None:
        """Let a server cease to be one of the table's; `Unavailable` while the others cannot do without it."""
        self._wish(server, lambda peer: peer.leave())

    def _wish(self, server: str, begin: Callable[[MetadataPeer], list[Action]]) -> None:
        with self._driving():
            peer = self._peers[server]
            self._do(server, begin(peer))
            for _ in range(self._attempts_max):
                self._drive()
                if peer.membership.wish is None:
                    if peer.membership.refusal:
                        raise RequestError(f"{server}: {peer.membership.refusal}")
                    return
                self._tick()
            peer.membership.wish = None
            raise Unavailable(f"{server}: the other servers lack what is current, or do not answer: try again")

    # --- requests --------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], base: str, *, server: str, request_id: str | None = None) -> str:
        """Have changes made through `server`, on top of a transaction that the caller has seen; return the new txnid.

        `Conflict` or another error of the change itself if it does not fit, `Unavailable` if nothing was changed for
        another reason, `OutcomeUnknown` if it cannot be told: then ask again with the same `request_id`, anywhere.
        """
        asked = ChangeRequest(request_id or self._new_id(), base, tuple(changes))
        return _txnid(self._ask(server, asked.request_id, asked))

    def commit_all(self, requests: Sequence[Sequence[Change]], base: str, *, server: str) -> list[str | EblaError]:
        """Have several requests carried out together, each all or nothing by itself; return what became of each."""
        asked = [ChangeRequest(self._new_id(), base, tuple(changes)) for changes in requests]
        with self._changed:
            for request in asked:
                self._inbox.append(("", server, request))
        outcomes: list[str | EblaError] = []
        for request in asked:
            try:
                outcomes.append(_txnid(self._ask(server, request.request_id, None)))
            except EblaError as error:
                outcomes.append(error)
        return outcomes

    def answer(self, server: str, request: ChangeRequest | ReadRequest) -> Reply:
        """Have a request carried out that came from elsewhere, and return what is to be told of it."""
        return self._ask(server, request.request_id, request)

    def read(self, server: str) -> TableMetadata:
        """Return the metadata as it is now, from one server; `Unavailable` if it is behind, or no server of it."""
        for _ in range(self._attempts_max):
            request_id = self._new_id()
            reply = self._ask(server, request_id, ReadRequest(request_id))
            if reply.outcome == "read" and reply.txnid is not None:
                return metadata_after(self._table_id, reply.contents, None)
            if reply.outcome != "unavailable":
                break
            with self._driving():
                self._tick()
        raise Unavailable(f"{server} does not serve the table: {reply.reason or reply.outcome}")

    def _ask(self, server: str, request_id: str, message: Message | None) -> Reply:
        if server not in self._peers:
            raise Unavailable(f"{server} does not run")
        with self._changed:
            if message is not None:
                self._inbox.append(("", server, message))
            while self._is_driven and request_id not in self._replies:
                self._changed.wait()
            reply = self._replies.pop(request_id, None)
        if reply is not None:
            return reply
        with self._driving():
            # So many ticks that the peers have given up before.
            ticks = 0
            while ticks < 2 * self._attempts_max + 8:
                self._drive()
                with self._changed:
                    reply = self._replies.pop(request_id, None)
                if reply is not None:
                    return reply
                ticks += self._tick()
        raise OutcomeUnknown(f"{server} did not answer {request_id}: ask again with the same id")

    # --- letters from elsewhere ------------------------------------------------------------------

    def deliver(self, sender: str, to: str, message: Message) -> None:
        """Take in what a server elsewhere has sent to one here."""
        with self._changed:
            self._inbox.append((sender, to, message))
            if self._is_driven:
                self._changed.notify_all()  # whoever drives sees to it
                return
            self._is_driven = True
        self._drive_on()

    def tick(self) -> None:
        """Let some time pass, unless somebody drives: what was lost is tried again."""
        with self._changed:
            if self._is_driven:
                return
            self._is_driven = True
        try:
            self._tick_peers()
        finally:
            self._drive_on()

    # --- driving ---------------------------------------------------------------------------------

    def _driving(self) -> _Driving:
        return _Driving(self)

    def _drive(self) -> None:
        """Deliver letters until there are none."""
        while True:
            with self._changed:
                letters = list(self._inbox)
                self._inbox.clear()
            if not letters:
                return
            # The first request begins a transaction; the others wait behind it, and go into the next together.
            doing: dict[str, list[Action]] = {}
            for sender, to, message in letters:
                peer = self._peers.get(to)
                if peer is not None:
                    doing.setdefault(to, []).extend(peer.receive(sender, message))
            for server, actions in doing.items():
                self._do(server, actions)

    def _drive_on(self) -> None:
        """End driving when there is nothing to be delivered; this thread drives."""
        while True:
            with self._changed:
                if not self._inbox:
                    self._is_driven = False
                    self._changed.notify_all()
                    return
            try:
                self._drive()
            except BaseException:
                with self._changed:
                    self._is_driven = False
                    self._changed.notify_all()
                raise

    def _tick(self) -> bool:
        """Wait for letters; if none come, let the servers try again what was lost, and return True."""
        if self._post is None:
            self._clock.sleep(self._pause_seconds)
        else:
            with self._changed:
                has_letters = self._changed.wait_for(lambda: len(self._inbox) > 0, self._pause_seconds)
            if has_letters:
                return False
        self._tick_peers()
        return True

    def _tick_peers(self) -> None:
        for server, peer in list(self._peers.items()):
            self._do(server, peer.tick())

    def _do(self, server: str, actions: list[Action]) -> None:
        peer, store = self._peers[server], self._stores[server]
        todo = deque(actions)
        while todo:
            match todo.popleft():
                case Send("", Reply() as reply):
                    with self._changed:
                        self._replies[reply.request_id] = reply
                        self._changed.notify_all()
                case Send(to, message):
                    if self._post is not None and to not in self._peers:
                        self._post(server, to, message)
                        continue
                    with self._changed:
                        self._inbox.append((server, to, message))
                case Save(txnid, content):
                    try:
                        store.write(self._table_id, txnid, content)
                    except EblaError:
                        todo.extend(peer.not_saved(txnid))
                    else:
                        todo.extend(peer.saved(txnid))
                case Discard(txnid):
                    store.discard(self._table_id, txnid)
                case AskConfig(tag):
                    todo.extend(self._read_config(peer, tag))
                case AskSwitch() as ask:
                    todo.extend(self._switch(peer, ask))
                case Became(metadata):
                    if self._on_change is not None:
                        self._on_change(server, metadata)

    def _read_config(self, peer: MetadataPeer, tag: int) -> list[Action]:
        path = config_path(self._table_id)
        try:
            node = self._coordination.read(path)
            if node is None:
                return peer.config_read(tag, None, 0)
            return peer.config_read(tag, decode_config(path, node), node.version)
        except EblaError:
            return peer.config_failed(tag)

    def _switch(self, peer: MetadataPeer, ask: AskSwitch) -> list[Action]:
        try:
            version = self._coordination.compare_and_set(
                config_path(self._table_id), encode_config(ask.config), ask.expected_version
            )
        except CoordinationConflict:
            return peer.switch_refused(ask.tag)
        except OutcomeUnknown:
            return peer.switch_unknown(ask.tag)
        except EblaError:
            return peer.switch_failed(ask.tag)
        return peer.switch_done(ask.tag, version)


class _Driving:
    """Being the one who drives."""

    def __init__(self, group: MetadataGroup) -> None:
        self._group = group

    def __enter__(self) -> None:
        with self._group._changed:
            while self._group._is_driven:
                self._group._changed.wait()
            self._group._is_driven = True

    def __exit__(self, *error: object) -> None:
        self._group._drive_on()


def _txnid(reply: Reply) -> str:
    """Return the transaction that a request was done in, or raise what became of it."""
    match reply.outcome:
        case "committed" if reply.txnid is not None:
            return reply.txnid
        case "refused":
            raise error_of(reply.refusal, reply.reason)
        case "unknown":
            raise OutcomeUnknown(reply.reason)
        case "elsewhere":
            raise Unavailable(f"{reply.reason}: ask one of {', '.join(reply.servers)}")
    raise Unavailable(reply.reason)
