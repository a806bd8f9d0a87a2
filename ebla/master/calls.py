"""How masters and tablet servers call each other: the messages of `messages.py` as requests over the wire.

    server  --SendHeartbeat-->  master    answered by the one that leads; others raise `StaleRoute`, and say who leads
    master  --SendRequests--->  server    taken, and carried out later: what came of it is in the server's reports

Both may be repeated: reports are numbered, and requests say what should be.
"""

from __future__ import annotations

import msgspec

from ebla.master.messages import Heartbeat, HeartbeatReply, Requests
from ebla.rpc.methods import Asks, Method, Methods

__all__ = ["HEARTBEAT_METHODS", "REQUEST_METHODS", "SendHeartbeat", "SendRequests"]


class SendHeartbeat(msgspec.Struct, Asks[HeartbeatReply], frozen=True):
    """A server's heartbeat, with its report."""

    heartbeat: Heartbeat


class SendRequests(msgspec.Struct, Asks[None], frozen=True):
    """What a master asks of a server; answered when it is queued."""

    requests: Requests


# What a master answers, and what a tablet server answers.
HEARTBEAT_METHODS = Methods([Method(SendHeartbeat, is_repeatable=True)])
REQUEST_METHODS = Methods([Method(SendRequests, is_repeatable=True, is_quick=True)])
