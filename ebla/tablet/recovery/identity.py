"""Who a store is, as it says itself in the coordination service: its cluster, its server, the format of its files."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ebla.coordination.service import CoordinationService, NodeExists
from ebla.errors import Corruption, FormatTooNew, StoreNotFound

__all__ = ["IDENTITY_NODE", "Identity", "own_identity", "read_identity"]

FORMAT_VERSION = 1
IDENTITY_NODE = "store"


class Identity(msgspec.Struct, frozen=True):
    """What a store says of itself in the coordination service."""

    format_version: int
    cluster: str
    server: str


def own_identity(coordination: CoordinationService, new_id: Callable[[], str], read_only: bool) -> Identity:
    """Return who a store is, making it somebody if it is new and may be written."""
    try:
        return read_identity(coordination)
    except StoreNotFound:
        if read_only:
            raise
        made = Identity(FORMAT_VERSION, new_id(), new_id())
        try:
            coordination.create(IDENTITY_NODE, msgspec.json.encode(made))
        except NodeExists:
            return read_identity(coordination)
        return made


def read_identity(coordination: CoordinationService) -> Identity:
    """Return who a store is; `StoreNotFound` if it was never opened for writing."""
    node = coordination.read(IDENTITY_NODE)
    if node is None:
        raise StoreNotFound("there is no store here yet: open it once for writing")
    try:
        identity = msgspec.json.decode(node.value, type=Identity)
    except msgspec.MsgspecError as error:
        raise Corruption(IDENTITY_NODE, f"the identity of the store cannot be read: {error}") from error
    if identity.format_version > FORMAT_VERSION:
        raise FormatTooNew(
            f"the store has format {identity.format_version}, and this version of Ebla knows up to {FORMAT_VERSION}: "
            "open it with a newer version of Ebla"
        )
    return identity
