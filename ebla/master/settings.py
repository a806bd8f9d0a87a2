"""How the master decides, as a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MasterSettings"]


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Times, limits and choices of a master. The defaults suit a cluster on one network."""

    # Servers that keep the log of a new table's tablets, unless the request says otherwise.
    replication: int = 1
    # A table is created with so many tablets at most.
    tablets_per_table_max: int = 100_000
    # A report has so many tablets at most; longer ones are sent in chunks.
    report_tablets_max: int = 200_000

    # (When a server's lease is over, others lead what it led: coordination/server_lease.py has those seconds.)
    # A server that was not heard for so long gets nothing new.
    silent_after_seconds: float = 6.0
    # A tablet that its leader does not report in this time gives way to a new one, and one that was offered to a server
    # and not taken over is offered to another.
    assignment_timeout_seconds: float = 30.0
    # A server that was not heard for so long is dead: others keep its replicas in its place.
    replace_after_seconds: float = 300.0
    # A replica that was chosen to lead, and does not serve in this time, is asked to let another lead.
    serve_timeout_seconds: float = 3.0
    # A deleted table can be brought back for so long.
    retention_seconds: float = 3600.0

    # A request to a server is repeated after the first delay, then after twice as long, up to the longest.
    retry_seconds_min: float = 1.0
    retry_seconds_max: float = 60.0
    # So many requests go to one server in one round.
    requests_per_server_max: int = 1_000

    # One round of the balancer changes so many tablets at most, and leaves differences up to this as they are.
    moves_max: int = 16
    imbalance_tolerated: int = 1
    # Where any server can read a dead server's log, a tablet with a single replica need not wait for its server.
    is_log_shared: bool = False
