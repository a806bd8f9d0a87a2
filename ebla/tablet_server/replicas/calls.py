"""What servers send each other of the tablets that they keep together: messages of replication, many in one call.

A call is answered when what its messages brought is on disk, with what is to be said about them: acknowledgements go
back as the answer to a push. Any call, and any answer, may be lost.
"""

from __future__ import annotations

import msgspec

from ebla.access.rights import ServersOnly
from ebla.replication.messages import BetweenServers
from ebla.rpc.methods import Asks, Method, Methods

__all__ = ["REPLICA_METHODS", "Deliver"]


class Deliver(msgspec.Struct, Asks[tuple[BetweenServers, ...]], frozen=True):
    """Messages of a server, in the order in which they are meant; answered with messages to it."""

    sender: str
    messages: tuple[BetweenServers, ...]


REPLICA_METHODS = Methods(
    [
        Method(
            Deliver,
            is_repeatable=True,
            is_quick=True,
            needs=lambda request: (ServersOnly(request.sender),),
        )
    ]
)
