"""How masters and tablet servers call each other: the messages of `messages.py` as requests over the wire.

    server  --SendHeartbeat-->  master    answered by the one that leads; others raise `StaleRoute`, and say who leads
    master  --SendRequests--->  server    taken, and carried out later: what came of it is in the server's reports
    master  --CloseGate, OpenGate-->  server    its part in a bulk commit over all servers of a table
    master  --UnloadHere----->  server    tablets flushed, given up, and offline when it is answered

All may be repeated: reports are numbered, requests say what should be, and the attempt of a bulk commit has an id.
"""

from __future__ import annotations

import msgspec

from ebla.access.rights import ServersOnly, always
from ebla.master.messages import Heartbeat, HeartbeatReply, Requests
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.rpc.methods import Asks, Method, Methods

__all__ = [
    "HEARTBEAT_METHODS",
    "REQUEST_METHODS",
    "CloseGate",
    "OpenGate",
    "SendHeartbeat",
    "SendRequests",
    "UnloadHere",
]


class SendHeartbeat(msgspec.Struct, Asks[HeartbeatReply], frozen=True):
    """A server's heartbeat, with its report."""

    heartbeat: Heartbeat


class SendRequests(msgspec.Struct, Asks[None], frozen=True):
    """What a master asks of a server; answered when it is queued."""

    requests: Requests


class CloseGate(msgspec.Struct, Asks[int], frozen=True):
    """Close the gate for an attempt of a bulk commit; answered with the first of so many txns that are reserved.

    `tablets` are those of the table that the server leads. With `unchanged_since` it is refused if a row of the
    `fragments`, which are not part of the table yet, has changed since. With `is_flushed`, all that the tablets have
    is in files when it is answered.
    """

    attempt: str
    table: str
    tablets: tuple[TabletAt, ...]
    layers: int
    unchanged_since: int | None = None
    fragments: tuple[FragmentRef, ...] = ()
    is_flushed: bool = False


class OpenGate(msgspec.Struct, Asks[None], frozen=True):
    """METADATA has the outcome of an attempt: look, and open the gate."""

    attempt: str


class UnloadHere(msgspec.Struct, Asks[None], frozen=True):
    """Flush tablets of a table that the server leads, give them up, and have METADATA say that they are offline."""

    table: str
    tablets: tuple[TabletAt, ...]


# What a master answers, and what a tablet server answers.
HEARTBEAT_METHODS = Methods(
    [Method(SendHeartbeat, is_repeatable=True, needs=lambda request: (ServersOnly(request.heartbeat.instance.uuid),))]
)
_SERVERS = always(ServersOnly())
REQUEST_METHODS = Methods(
    [
        Method(SendRequests, is_repeatable=True, is_quick=True, needs=_SERVERS),
        Method(CloseGate, is_repeatable=True, needs=_SERVERS),
        Method(OpenGate, is_repeatable=True, needs=_SERVERS),
        Method(UnloadHere, is_repeatable=True, needs=_SERVERS),
    ]
)
