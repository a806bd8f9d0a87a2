"""A replica as its leader knows it: document 003's map from (server, assignment id) to how far it is replicated."""

from __future__ import annotations

from ebla.replication.configuration import Replica
from ebla.replication.messages import Ack

__all__ = ["Progress"]


class Progress:
    """How far one replica has acknowledged this epoch, in which log, and what is sent to it next."""

    __slots__ = ("acked", "assignment_id", "heard_at", "log_id", "next", "sent_at", "server", "stamp", "start")

    def __init__(self, member: Replica, next: int, now: float) -> None:
        self.server = member.server
        self.assignment_id = member.assignment_id
        self.log_id = ""  # not heard of yet
        self.start = 0
        self.acked = 0
        self.next = next
        self.heard_at = now
        self.sent_at = now
        self.stamp = -1.0  # the replica's own clock, to be echoed

    def takes(self, ack: Ack, epoch: int) -> bool:
        """Tell whether an acknowledgement counts: of this epoch and assignment, of no earlier run of its server."""
        return ack.epoch == epoch and ack.assignment_id == self.assignment_id and ack.start >= self.start

    def take(self, ack: Ack, now: float) -> None:
        """Note an acknowledgement that counts. What another log of the server had is forgotten."""
        if ack.log_id != self.log_id:
            self.log_id = ack.log_id
            self.acked = 0
        self.start = ack.start
        self.acked = max(self.acked, ack.index)
        self.heard_at = now
        self.stamp = max(self.stamp, ack.stamp) if ack.start == self.start else ack.stamp

    def acked_as(self, member: Replica) -> int:
        """Return how far the replica has acknowledged in the log that is on record for it."""
        return self.acked if self.log_id == member.log_id else 0
