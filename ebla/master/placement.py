"""Which servers get a tablet, and which of them leads it. Pure.

Two different servers are drawn at random and the one with fewer replicas takes it (*the power of two choices*): nearly
as even as always asking everybody, and many tablets placed at the same moment do not all go to the one server that was
empty.
Replicas of one tablet go to different hosts as long as there are hosts that have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

__all__ = ["Loads", "choose_replicas"]


@dataclass(slots=True)
class Loads:
    """How much every candidate has; choosing adds to it."""

    hosts: Mapping[str, str]  # server -> host; only these can be chosen
    replicas: dict[str, int]
    leaders: dict[str, int]


def choose_replicas(loads: Loads, count: int, random: Random) -> tuple[str, ...] | None:
    """Return so many servers for one tablet, its leader first, and add them to the loads; None if there are too few."""
    if len(loads.hosts) < count:
        return None
    chosen: list[str] = []
    candidates = list(loads.hosts)
    for _ in range(count):
        if chosen:
            used = {loads.hosts[server] for server in chosen}
            left = [server for server in loads.hosts if server not in chosen]
            candidates = [server for server in left if loads.hosts[server] not in used] or left
        drawn = random.sample(candidates, min(2, len(candidates)))
        chosen.append(min(drawn, key=lambda server: loads.replicas[server]))
    leader = min(chosen, key=lambda server: loads.leaders[server])
    for server in chosen:
        loads.replicas[server] += 1
    loads.leaders[leader] += 1
    return (leader, *(server for server in chosen if server != leader))
