"""Leases: how a server knows that it may answer, and a master that it no longer does.

    coordination   ServerNode: number, version, bound                    one node for each server
                      ^ renew: version + 1, if the number is still mine
    server  Lease ----'                valid until: when I asked + lease, on my steady clock
    master  LeaseWatch                 saw number and version unchanged for lease + margin, on its steady clock;
                                       then takes it: number + 1, if both are still the same

The server counts from before it asked, the master from after it saw: the server stops first. A lease has a number, and
what it covers is bound to that. **A lease once lost is lost for all its epochs**: the next has another number.

The bound of the server's txns stands in the same node, so that raising it checks the number: who reads a bound after
the lease was taken knows that no txn above it was given out under that lease.
"""

from __future__ import annotations

import msgspec

from ebla.replication.settings import ReplicationSettings

__all__ = ["Lease", "LeaseWatch", "ServerNode"]


class ServerNode(msgspec.Struct, frozen=True, gc=False):
    """What the coordination service has of a server: its lease, its bound, and which run and log these are of."""

    number: int = 0
    version: int = 0
    is_held: bool = False
    bound: int = 0
    start: int = 0
    log_id: str = ""


class Lease:
    """The lease of a server, as it knows it."""

    __slots__ = ("asked_at", "number", "seconds", "seen", "valid_until")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.number = 0  # 0: none yet
        self.seen = 0  # the highest number that the node is known to have had
        self.valid_until = 0.0
        self.asked_at: float | None = None  # when it was last asked for, or to be renewed

    def covers(self, number: int, now: float) -> bool:
        """Tell whether the lease is valid now, and of that number."""
        return number == self.number and now < self.valid_until

    def taken(self, number: int, asked_at: float) -> None:
        """A lease begins; an answer that was overtaken begins nothing."""
        if number > self.number:
            self.number = number
            self.valid_until = asked_at + self.seconds
            self.seen = max(self.seen, number)

    def refused(self, number: int) -> None:
        """The node has this number, not the one that the lease was asked for behind."""
        self.seen = max(self.seen, number)
        self.asked_at = None

    def renewed(self, number: int, asked_at: float) -> None:
        """The lease was renewed by what was asked then."""
        if number == self.number:
            self.valid_until = max(self.valid_until, asked_at + self.seconds)

    def lost(self, number: int) -> None:
        """The lease of this number is over."""
        if number == self.number:
            self.valid_until = 0.0
            self.asked_at = None


class LeaseWatch:
    """What a master saw of the leases, and since when on its own clock."""

    __slots__ = ("_seconds", "_seen", "nodes")

    def __init__(self, settings: ReplicationSettings) -> None:
        self._seconds = settings.lease_seconds + settings.lease_margin_seconds
        self._seen: dict[str, tuple[int, int, float]] = {}
        self.nodes: dict[str, ServerNode] = {}

    def see(self, nodes: dict[str, ServerNode], now: float) -> None:
        """Take in the nodes as they were read a moment ago."""
        self.nodes = nodes
        for server, node in nodes.items():
            seen = self._seen.get(server)
            if seen is None or seen[:2] != (node.number, node.version):
                self._seen[server] = (node.number, node.version, now)

    def has_run_out(self, server: str, now: float) -> bool:
        """Tell whether a lease that is held was not renewed for so long that its holder has stopped."""
        return self.nodes[server].is_held and now - self._seen[server][2] > self._seconds

    def is_over(self, server: str, number: int) -> bool:
        """Tell whether the lease of this number has ended: taken, or ended by the next run of its holder."""
        node = self.nodes.get(server)
        return node is not None and node.number > number

    def is_alive(self, server: str, now: float) -> bool:
        """Tell whether a server holds a lease that it has renewed lately."""
        node = self.nodes.get(server)
        return node is not None and node.is_held and now - self._seen[server][2] <= self._seconds

    def away_seconds(self, server: str, now: float) -> float:
        """How long a server has not renewed its lease, as far as was seen here."""
        seen = self._seen.get(server)
        return now - seen[2] if seen is not None else 0.0
