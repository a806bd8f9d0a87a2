"""The balancer: which tablets should be elsewhere, or be led by another of their servers. Pure; a dry run is its plan.

In this order, and no more than so many moves in a round:
1. **replicas**: from the server with most to the one with fewest, while they differ by more than is tolerated. So a new
   server takes its share, a few tablets at a time.
2. **leaders**: from the server that leads most to a replica of the same tablet that leads fewest.

A leader is one that has the tablet: what moves to `target` is led by another replica. A tablet with a single replica is
*offered* to the target, which takes it over when its leader has resigned. (What a dead server led, and who keeps its
replicas in its place, is decided elsewhere: `failover.py`, `replicas.py`.)

One change per tablet at a time: a tablet is left alone until every replica has reported the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Move", "Placed", "plan_moves"]


class Placed(NamedTuple):
    """A running tablet, as far as balancing goes."""

    tablet: str
    leader: str
    servers: tuple[str, ...]  # of its replicas, the leader among them
    is_settled: bool  # every replica that is alive has reported the tablet as METADATA has it


@dataclass(frozen=True, slots=True)
class Move:
    """A tablet gets another leader, or `target` in the place of `source`, or both."""

    tablet: str
    leader: str
    source: str | None
    target: str | None
    reason: str

    def __str__(self) -> str:
        if self.source is None:
            return f"tablet {self.tablet}: led by {self.leader} ({self.reason})"
        return f"tablet {self.tablet}: from {self.source} to {self.target}, led by {self.leader} ({self.reason})"


def plan_moves(
    tablets: Iterable[Placed],
    hosts: Mapping[str, str],
    *,
    moves_max: int,
    imbalance_tolerated: int = 1,
) -> list[Move]:
    """Return at most so many moves; `hosts` has the servers that are alive."""
    plan = _Plan([*tablets], hosts, moves_max, max(1, imbalance_tolerated))
    plan.even_out()
    plan.spread_leaders()
    return plan.moves


class _Plan:
    """The moves so far, and the loads as they will be after them."""

    def __init__(self, tablets: list[Placed], hosts: Mapping[str, str], moves_max: int, tolerated: int) -> None:
        self.moves: list[Move] = []
        self._tablets = tablets
        self._hosts = hosts
        self._moves_max = moves_max
        self._tolerated = tolerated
        self._touched: set[str] = set()
        self._replicas = dict.fromkeys(hosts, 0)
        self._leaders = dict.fromkeys(hosts, 0)
        for placed in tablets:
            for server in placed.servers:
                if server in hosts:
                    self._replicas[server] += 1
            if placed.leader in hosts:
                self._leaders[placed.leader] += 1

    @property
    def _is_full(self) -> bool:
        return len(self.moves) >= self._moves_max

    def _take(self, placed: Placed, move: Move) -> None:
        self.moves.append(move)
        self._touched.add(placed.tablet)
        for loads, gone, new in (
            (self._leaders, placed.leader, move.leader),
            (self._replicas, move.source, move.target),
        ):
            if gone in loads:
                loads[gone] -= 1
            if new in loads:
                loads[new] += 1

    def _is_free(self, placed: Placed) -> bool:
        return placed.is_settled and placed.tablet not in self._touched

    # --- replicas ---

    def even_out(self) -> None:
        """Move replicas from the servers with most to that with fewest."""
        by_server: dict[str, list[Placed]] = {server: [] for server in self._hosts}
        for placed in self._tablets:
            if self._is_free(placed):
                for server in placed.servers:
                    if server in by_server:
                        by_server[server].append(placed)
        while not self._is_full and self._even_one(by_server):
            pass

    def _even_one(self, by_server: dict[str, list[Placed]]) -> bool:
        target = min(self._hosts, key=lambda server: self._replicas[server], default=None)
        if target is None:
            return False
        # The fullest server may have nothing that can go: then the next one gives.
        for source in sorted(self._hosts, key=lambda server: -self._replicas[server]):
            if self._replicas[source] - self._replicas[target] <= self._tolerated:
                return False
            for placed in by_server[source]:
                if self._is_free(placed) and target not in placed.servers and self._spreads(placed, source, target):
                    leader = self._leader_without(placed, source, target)
                    if leader is None:
                        continue
                    self._take(placed, Move(placed.tablet, leader, source, target, f"{source} has too many"))
                    return True
        return False

    def _leader_without(self, placed: Placed, source: str, target: str) -> str | None:
        """Return who leads a tablet when one replica moves: with several, one that has it already; None if none can."""
        if placed.leader != source:
            return placed.leader
        if len(placed.servers) == 1:
            return target
        others = [server for server in placed.servers if server != source and server in self._hosts]
        return min(others, key=lambda server: self._leaders[server], default=None)

    def _spreads(self, placed: Placed, source: str, target: str) -> bool:
        """Whether a move leaves the replicas on as many hosts as before."""
        before = {self._hosts.get(server, server) for server in placed.servers}
        after = {self._hosts.get(server, server) for server in placed.servers if server != source}
        return len(after | {self._hosts[target]}) >= len(before)

    # --- leaders ---

    def spread_leaders(self) -> None:
        """Let other replicas lead where one server leads too many."""
        for placed in self._tablets:
            if self._is_full:
                return
            candidates = [server for server in placed.servers if server in self._hosts]
            if not self._is_free(placed) or placed.leader not in candidates:
                continue
            target = min(candidates, key=lambda server: self._leaders[server])
            if self._leaders[placed.leader] - self._leaders[target] > self._tolerated:
                self._take(placed, Move(placed.tablet, target, None, None, f"{placed.leader} leads too many"))
