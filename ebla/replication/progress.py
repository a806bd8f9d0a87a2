"""A replica as its leader knows it: document 003's map from (server, assignment id) to how far it is replicated."""

from __future__ import annotations

from ebla.replication.configuration import Replica
from ebla.replication.messages import Ack

__all__ = ["Progress"]


class Progress:
    """How far one replica has acknowledged this epoch, in which log, and what is sent to it next."""

    __slots__ = (
        "_mark",
        "_marked_at",
        "acked",
        "assignment_id",
        "heard_at",
        "log_id",
        "next",
        "sent_at",
        "server",
        "stamp",
        "start",
    )

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
        self._mark = next - 1  # an index that the log had at this time; another is chosen once the replica has it
        self._marked_at = now

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

    def mark(self, last: int, now: float) -> None:
        """Note where the log ends now, unless the replica is yet to come to where it ended before.

        By one mark at a time it is known how long a replica has lacked something, without a time for every entry.
        """
        if self.acked >= self._mark:
            self._mark = last
            self._marked_at = now

    def behind_seconds(self, now: float) -> float:
        """Return for how long the replica has lacked something that the log has; 0 if it has all that was marked."""
        return 0.0 if self.acked >= self._mark else now - self._marked_at
