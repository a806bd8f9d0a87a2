"""What all replicas on a server share: who it is, its lease, its txns, its log, METADATA as it knows it, and the time.

A machine has no clock. Every event comes with the server's steady clock and its time of day, which are good for that
event; what is to be done is collected, and taken by the driver at the end of it.
"""

from __future__ import annotations

from ebla.replication.actions import Action, Answer, Change, ChangeMetadata, Outcome, ReadMetadata, Send, Write
from ebla.replication.configuration import Table
from ebla.replication.lease import Lease
from ebla.replication.messages import Message
from ebla.replication.server_log import Record, ServerLog
from ebla.replication.settings import ReplicationSettings
from ebla.replication.txns import Txns

__all__ = ["Host"]


class Host:
    """The server that a replica is on."""

    # Whether leaders number entries and begin epochs themselves; else entries come to them numbered.
    is_numbering = True

    __slots__ = (
        "_actions",
        "_changes",
        "_parts",
        "_reads_metadata",
        "lease",
        "log",
        "log_id",
        "name",
        "now",
        "settings",
        "start",
        "table",
        "txns",
        "wall",
    )

    def __init__(self, name: str, start: int, log_id: str, log: ServerLog, settings: ReplicationSettings) -> None:
        # Set once.
        self.name = name
        self.start = start
        self.log_id = log_id
        self.settings = settings
        self.log = log
        self.lease = Lease(settings.lease_seconds)
        self.txns = Txns(settings.bound_microseconds)
        # As of the last event.
        self.table: Table | None = None
        self.now = 0.0
        self.wall = 0
        self._actions: list[Action] = []
        self._parts: dict[str, list[Message]] = {}
        self._changes: list[Change] = []
        self._reads_metadata = False

    @property
    def version(self) -> int:
        """Of METADATA, as it is known here; 0 before it was read."""
        return 0 if self.table is None else self.table.version

    def version_of(self, tablet: str) -> int:
        """Return the version of METADATA that is known here of a tablet's table."""
        return self.version

    def write(self, record: Record) -> int:
        """Append to the log; return the number to wait for."""
        return self.log.append(record)

    def send(self, to: str, message: Message) -> None:
        """Send a message, with all others that go to the same server."""
        self._parts.setdefault(to, []).append(message)

    def act(self, action: Action) -> None:
        """Have something done."""
        self._actions.append(action)

    def change(self, change: Change) -> None:
        """Ask for a change of METADATA."""
        self._changes.append(change)

    def read_metadata(self) -> None:
        """Ask for METADATA as it is now."""
        self._reads_metadata = True

    def answer(
        self,
        client: str,
        token: int,
        tablet: str,
        outcome: Outcome,
        txn: int = 0,
        epoch: int = 0,
        lease: int = 0,
        number: int = 0,
    ) -> None:
        """Tell a client."""
        self._actions.append(Answer(client, token, tablet, outcome, txn, epoch, lease, number))

    def taken(self) -> list[Action]:
        """Return all that is to be done since the last call."""
        actions, self._actions = self._actions, []
        if self.log.records:
            first, records = self.log.taken()
            actions.append(Write(self.log.current, first, records))
        if self._parts:
            actions += [Send(to, tuple(parts)) for to, parts in self._parts.items()]
            self._parts = {}
        if self._changes:
            actions.append(ChangeMetadata(tuple(self._changes)))
            self._changes = []
        if self._reads_metadata:
            actions.append(ReadMetadata())
            self._reads_metadata = False
        return actions
