"""Joining and leaving the servers of a table, by compare-and-set of the list.

    joining   read the node -> fetch what is current -> set the list with us in it        outrun: from the beginning
    leaving   read the node -> ask the others whether they hold what is current
                            -> a majority of them does: set the list without us           outrun: from the beginning

The set names the version that was read, so that it succeeds only while the same transaction is current. One whose
outcome is unknown may land late: it is as right then as it was before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ebla.metadata.consensus.protocol import Holds, HoldsReply
from ebla.metadata.values.table_config import majority

if TYPE_CHECKING:
    from ebla.metadata.consensus.peer import MetadataPeer

__all__ = ["Membership"]


class Membership:
    """What one server wants to be to one table."""

    def __init__(self, peer: MetadataPeer) -> None:
        self._peer = peer
        self.wish: Literal["joining", "leaving"] | None = None
        self.refusal = ""  # why a wish was given up
        self._tag = 0
        self._is_switching = False
        self._is_paused = False  # until the next tick: something failed
        self._holders: set[str] = set()
        self._asked_at = 0  # the version that the others were asked at

    def begin(self, wish: Literal["joining", "leaving"]) -> None:
        """Want something."""
        self.wish = wish
        self.refusal = ""
        self._again()

    def _again(self) -> None:
        self._tag = self._peer.fresh_tag()
        self._asked_at = 0

    def go_on(self) -> None:
        """Take the next step, if it can be taken."""
        peer = self._peer
        if self.wish is None or self._is_switching or self._is_paused or not peer.is_fresh(self._tag):
            return
        if peer.is_gone:
            self.wish, self.refusal = None, "there is no such table"
        elif peer.is_member == (self.wish == "joining"):
            self.wish = None
        elif peer.config is None or peer.current is None:
            return  # it is being fetched
        elif self.wish == "joining":
            self._switch((*peer.config.metadata_servers, peer.server))
        else:
            self._leave(tuple(peer.others()))

    def _leave(self, rest: tuple[str, ...]) -> None:
        peer = self._peer
        if not rest:
            self.wish, self.refusal = None, "the last server of a table cannot leave"
            return
        if self._asked_at != peer.version:
            self._holders = set()
            self._ask(rest)
        elif len(self._holders & set(rest)) >= majority(len(rest)):
            self._switch(rest)

    def _ask(self, rest: tuple[str, ...]) -> None:
        assert self._peer.current is not None
        self._asked_at = self._peer.version
        for server in rest:
            if server not in self._holders:
                self._peer.send(server, Holds(self._peer.current.txnid))

    def holds(self, sender: str, message: HoldsReply) -> None:
        """Take in what another server said."""
        current = self._peer.current
        if current is not None and message.txnid == current.txnid and self._asked_at == self._peer.version:
            if message.holds:
                self._holders.add(sender)
            else:
                self._holders.discard(sender)

    def _switch(self, servers: tuple[str, ...]) -> None:
        peer = self._peer
        assert peer.config is not None
        config = msgspec.structs.replace(peer.config, metadata_servers=servers)
        self._is_switching = True

        def then(outcome: str, version: int) -> None:
            self._is_switching = False
            if outcome == "done":
                peer.adopt(config, version)
            self._is_paused = outcome in ("failed", "unknown")
            self._again()

        peer.switch(config, then)

    def tick(self) -> None:
        """Look again: others may hold by now what they did not hold before."""
        self._is_paused = False
        if self.wish == "leaving" and self._asked_at == self._peer.version and self._peer.current is not None:
            self._ask(tuple(self._peer.others()))
