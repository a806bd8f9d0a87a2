"""How masters talk about METADATA with each other, and tablet servers with masters.

    master         --Tell-->            master    letters between metadata servers; any of them may be lost
    master         --KeepTransaction--> master    the first transaction of a table that is being made
    tablet server  --AskMetadata-->     master    a change or a read, to any of them; the same id may be sent again

What they carry are the messages of `ebla.metadata.consensus`, as bytes.
"""

from __future__ import annotations

import msgspec

from ebla.access.rights import ServersOnly, always
from ebla.rpc.methods import Asks, Method, Methods

__all__ = ["METADATA_METHODS", "AskMetadata", "KeepTransaction", "Letter", "Tell"]


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """A message about one table."""

    table: str
    message: bytes


class Tell(msgspec.Struct, Asks[None], frozen=True):
    """Letters of one master to another, in order."""

    sender: str
    letters: tuple[Letter, ...]


class KeepTransaction(msgspec.Struct, Asks[None], frozen=True):
    """Please keep this file; answered when it is on disk. Who has the very same already says so, too."""

    table: str
    txnid: str
    content: bytes


class AskMetadata(msgspec.Struct, Asks[bytes], frozen=True):
    """A `ChangeRequest` or a `ReadRequest` of a tablet server; answered with a `Reply`."""

    sender: str  # the uuid of the tablet server
    table: str
    request: bytes


METADATA_METHODS = Methods(
    [
        Method(Tell, is_repeatable=True, needs=lambda request: (ServersOnly(request.sender),)),
        Method(KeepTransaction, is_repeatable=True, needs=always(ServersOnly())),
        # A change has an id, by which it happens once.
        Method(AskMetadata, is_repeatable=True, needs=lambda request: (ServersOnly(request.sender),)),
    ]
)
