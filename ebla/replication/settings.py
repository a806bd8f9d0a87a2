"""How long replication waits for what, as values. Seconds are of the steady clock of whoever waits."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ReplicationSettings"]


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """What can be set, with the values of a real cluster."""

    lease_seconds: float = 3.0
    renew_seconds: float = 1.0
    lease_margin_seconds: float = 0.5  # a master waits so much longer: steady clocks do not run alike
    replica_timeout_seconds: float = 2.0  # a replica that acknowledged nothing for so long is taken out of sync
    stuck_seconds: float = 5.0  # a leader that could not commit for so long asks whether another could
    poll_seconds: float = 1.0  # METADATA is read so often if nobody tells of a change
    split_seconds: float = 10.0  # a split whose pause takes longer is given up
    gate_seconds: float = 30.0  # a bulk load that keeps a gate closed for longer is recorded as aborted
    replace_seconds: float = 300.0  # a server that is away for so long gets successors
    ahead_seconds: float = 10.0  # a read at a txn so far ahead of the clock is refused
    bound_microseconds: int = 5_000_000  # bounds are raised by so much at a time
    segment_records: int = 4096
    window_replies: int = 10_000
    push_entries: int = 1_000  # at most so many in one push
    push_bytes: int = 4 * 1024 * 1024  # and so many bytes, but one entry in any case
