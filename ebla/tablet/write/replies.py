"""What clients were told, so that a request repeated after a lost reply is answered and not carried out again.

A client numbers its requests; the last reply to each client is remembered. Replies go into the log with the commits
they answer. When that part of the log is about to be removed, those that stand nowhere else are logged once more.
"""

from __future__ import annotations

from ebla.storage.log.log_entry import Reply

REPLIES_MAX = 10_000
REPLY_BYTES = 64  # about so many in the log


class Replies:
    """The last reply to each of many clients. Guarded by the commit lock."""

    def __init__(self) -> None:
        self._replies: dict[str, tuple[int, int]] = {}
        # Where the log has a reply again: the txn of that entry.
        self._logged_again: dict[str, int] = {}

    def restore(self, replies: dict[str, tuple[int, int]]) -> None:
        """Take over what a replay of the log found: sequence number and txn by client."""
        self._replies.update(replies)

    def find(self, request: tuple[str, int]) -> int | None:
        """Return the txn that a request was answered with before, or None if it is new."""
        known = self._replies.get(request[0])
        return known[1] if known is not None and known[0] >= request[1] else None

    def remember(self, request: tuple[str, int], txn: int) -> Reply:
        """Note the answer to a request, and return it for the log."""
        client, sequence = request
        self._replies.pop(client, None)
        self._replies[client] = (sequence, txn)
        self._logged_again.pop(client, None)
        while len(self._replies) > REPLIES_MAX:
            forgotten = next(iter(self._replies))
            del self._replies[forgotten]
            self._logged_again.pop(forgotten, None)
        return Reply(client, sequence, txn)

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

    def logged_again(self, replies: list[Reply], txn: int) -> None:
        """Note that the log has these replies once more, at `txn`."""
        self._logged_again.update((reply.client, txn) for reply in replies)
