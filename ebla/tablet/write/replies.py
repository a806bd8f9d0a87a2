"""What clients were told, so that a request repeated after a lost reply is answered and not carried out again.

A client numbers its requests; every tablet remembers the last reply to each client that touched it, so that replies go
with a tablet wherever it goes, and a request that meets tablets which know it and others is carried out in the others
alone. Replies go into the log with the commits they answer, in the part of the tablet. When that part of the log is
about to be removed, those that stand nowhere else are logged once more (kept_replies.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ebla.storage.log.log_entry import Reply

REPLIES_MAX = 10_000
REPLY_BYTES = 64  # about so many in the log


class Replies:
    """The last reply of one tablet to each of many clients. Guarded by the commit lock."""

    def __init__(self) -> None:
        self._replies: dict[str, tuple[int, int]] = {}
        # Where the log has a reply again: the txn of that entry.
        self._logged_again: dict[str, int] = {}

    def restore(self, replies: Iterable[Reply]) -> None:
        """Take over what a replay of the log found, in its order, or what other tablets knew whose rows these were."""
        for reply in replies:
            known = self._replies.get(reply.client)
            if known is None or known[0] <= reply.sequence:
                self.remember(reply)

    def find(self, request: tuple[str, int]) -> int | None:
        """Return the txn that a request was answered with before, or None if it is new."""
        known = self._replies.get(request[0])
        return known[1] if known is not None and known[0] >= request[1] else None

    def remember(self, reply: Reply) -> None:
        """Note the answer to a request."""
        self._replies.pop(reply.client, None)
        self._replies[reply.client] = (reply.sequence, reply.txn)
        self._logged_again.pop(reply.client, None)
        while len(self._replies) > REPLIES_MAX:
            forgotten = next(iter(self._replies))
            del self._replies[forgotten]
            self._logged_again.pop(forgotten, None)

    def only_below(self, txn: int) -> list[Reply]:
        """Return the replies that the log has nowhere at or above `txn`."""
        return [
            Reply(client, sequence, answered)
            for client, (sequence, answered) in self._replies.items()
            if self._logged_again.get(client, answered) < txn
        ]

    def all(self) -> list[Reply]:
        """Return all replies."""
        return [Reply(client, sequence, txn) for client, (sequence, txn) in self._replies.items()]

    def logged_txns(self) -> list[int]:
        """Return the txns of the newest entries of the log that have the replies."""
        return [self._logged_again.get(client, answered) for client, (_, answered) in self._replies.items()]

    def logged_again(self, replies: Iterable[Reply], txn: int) -> None:
        """Note that the log has these replies once more, at `txn`."""
        self._logged_again.update((reply.client, txn) for reply in replies)
