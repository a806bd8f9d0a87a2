"""What metadata servers and those who ask them say to each other, and what a server wants done. Values only.

    requester   ChangeRequest, ReadRequest, Subscribe  -->  server  -->  Reply, Changed
    server      Store, Drop, Committed, Fetch, Holds   <->  server       Stored, NotStored, Fetched, HoldsReply

    server --action--> driver        Send, Save, Discard, AskConfig, AskSwitch, Became
    server <--call---  driver        receive, saved, config_read, switch_done, ..., tick

Any message may be lost, late, doubled or overtaken; none is trusted to be news. What a driver has to keep: a `Save` is
durable before `saved` is called, and every `AskConfig` and `AskSwitch` is answered once, if only by "unknown".
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata

__all__ = [
    "Action",
    "AskConfig",
    "AskSwitch",
    "Became",
    "ChangeRequest",
    "Changed",
    "Committed",
    "Discard",
    "Drop",
    "Fetch",
    "Fetched",
    "Holds",
    "HoldsReply",
    "Message",
    "NotStored",
    "Outcome",
    "ReadRequest",
    "Reply",
    "Save",
    "Send",
    "Store",
    "Stored",
    "Subscribe",
]

# What became of a request. Only after `committed` was it done; only after `unknown` may it have been, or be yet.
#   refused      it does not fit the metadata: `reason` says why
#   too old      its base is no longer on record, so that it cannot be told from a repetition: read, then ask anew
#   elsewhere    this server does not keep the table: ask one of those that `servers` names
#   unavailable  not now: no majority, or this server is behind
Outcome: TypeAlias = Literal["committed", "read", "refused", "too old", "elsewhere", "unavailable", "unknown"]


# --- requesters ----------------------------------------------------------------------------------


class ChangeRequest(msgspec.Struct, frozen=True):
    """Please make these changes, all or none. The same id may be sent again, to any server, and is done once.

    `base` is a transaction that the requester has seen: the request was first sent after it was committed.
    """

    request_id: str
    base: str
    changes: tuple[Change, ...]


class ReadRequest(msgspec.Struct, frozen=True):
    """Please tell me the metadata as it is now, or later. I have `known` already: what came after it will do."""

    request_id: str
    known: str | None = None


class Subscribe(msgspec.Struct, frozen=True):
    """Please tell me when another transaction than `known` is current. To be repeated: it is lost with the server."""

    known: str


class Reply(msgspec.Struct, frozen=True):
    """What became of a request. It can go over a wire: errors as words, and METADATA as what is new in it."""

    request_id: str
    outcome: Outcome
    txnid: str | None = None
    reason: str = ""
    refusal: str = ""  # of what kind a refusal is: `refusals.py` makes an error of it
    servers: tuple[str, ...] = ()
    contents: tuple[bytes, ...] = ()  # the files that lead from what the requester had seen to `txnid`, oldest first


class Changed(msgspec.Struct, frozen=True):
    """This transaction is current now, or was a moment ago."""

    txnid: str


# --- between servers -----------------------------------------------------------------------------


class Store(msgspec.Struct, frozen=True):
    """Please apply these changes to the base, see that you reach the same, and keep the transaction."""

    txnid: str
    base: str
    sequence: int
    checksum: int
    content_crc: int  # of the file: it must be the same everywhere, to the last bit
    is_snapshot: bool
    changes: tuple[Change, ...]
    requests: tuple[str, ...]


class Stored(msgspec.Struct, frozen=True):
    """The transaction, and all that it builds on, is on my disk."""

    txnid: str


class NotStored(msgspec.Struct, frozen=True):
    """I do not have the base yet (`behind`), or reach another outcome (`differs`)."""

    txnid: str
    reason: Literal["behind", "differs"]


class Drop(msgspec.Struct, frozen=True):
    """The transaction was aborted for certain: its file can go."""

    txnid: str


class Committed(msgspec.Struct, frozen=True):
    """The table's node has this value and version, or had."""

    config: TableConfig
    version: int


class Fetch(msgspec.Struct, frozen=True):
    """Please send the files from after `known`, or from the beginning of what you keep, up to `txnid`."""

    txnid: str
    known: str | None


class Fetched(msgspec.Struct, frozen=True):
    """The files, the oldest first; none: I do not have them."""

    txnid: str
    contents: tuple[bytes, ...]


class Holds(msgspec.Struct, frozen=True):
    """Do you hold this transaction?"""

    txnid: str


class HoldsReply(msgspec.Struct, frozen=True):
    """Whether I do, on disk, with all that it builds on."""

    txnid: str
    holds: bool


Message: TypeAlias = (
    ChangeRequest
    | ReadRequest
    | Subscribe
    | Reply
    | Changed
    | Store
    | Stored
    | NotStored
    | Drop
    | Committed
    | Fetch
    | Fetched
    | Holds
    | HoldsReply
)


# --- what a server wants done --------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """Send a message; it may get lost."""

    to: str
    message: Message


class Save(msgspec.Struct, frozen=True):
    """Write the file of a transaction, in place of a damaged one if need be; then call `saved` or `not_saved`."""

    txnid: str
    content: bytes


class Discard(msgspec.Struct, frozen=True):
    """Remove the file of a transaction that nobody needs. Failing to does no harm."""

    txnid: str


class AskConfig(msgspec.Struct, frozen=True):
    """Read the table's node; then call `config_read` or `config_failed` with the tag."""

    tag: int


class AskSwitch(msgspec.Struct, frozen=True):
    """Compare-and-set the table's node; then call one of the `switch_` methods with the tag."""

    tag: int
    config: TableConfig
    expected_version: int


class Became(msgspec.Struct, frozen=True):
    """This metadata is current now, as far as this server knows: for those in its own process."""

    metadata: TableMetadata


Action: TypeAlias = Send | Save | Discard | AskConfig | AskSwitch | Became
