"""What the coordination service knows of a table: the TableConfig, and the index of names.

    tables/<table id>    name, state, current METADATA transaction, servers that hold it         (JSON, for people too)
    names/<name>         the table id

The node of a table stays when the table is dropped, and its versions go on counting, until garbage collection has
removed its METADATA. Its id is never used again (`dropped`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ebla.coordination.service import Node
from ebla.errors import Corruption

__all__ = [
    "NAMES",
    "TABLES",
    "TableConfig",
    "TableEntry",
    "config_path",
    "decode_config",
    "encode_config",
    "majority",
    "name_path",
    "table_id_of",
]

TABLES = "tables"
NAMES = "names"


class TableConfig(msgspec.Struct, frozen=True):
    """The node of a table."""

    name: str
    state: Literal["running", "deleted"]
    metadata_txnid: str  # empty: an id that was used up without becoming a table
    metadata_servers: tuple[str, ...]
    deleted_microseconds: int = 0  # when it was deleted, if it can be brought back; 0: it was dropped at once
    named_txn: int = 0  # since when it has its name; 0: not known, as older versions named it
    kept_until_microseconds: int = 0  # a deleted table may be purged from then on; 0: nobody has said
    file_floor_microseconds: int = 0  # no file whose name is older becomes a part of the table any more
    is_expired: bool = False  # a deleted table that cannot be brought back any more: its replicas are being removed

    @property
    def is_deleted(self) -> bool:
        """Whether the table has no name any more, be it retained, dropped at once, or purged."""
        return self.state == "deleted"

    @property
    def is_retained(self) -> bool:
        """Whether the table has no name any more, and is still there: it can be brought back until it is purged."""
        return self.is_deleted and self.deleted_microseconds > 0 and bool(self.metadata_txnid)

    @property
    def is_there(self) -> bool:
        """Whether the table has METADATA that counts: it has a name, or is retained."""
        return not self.is_deleted or self.is_retained


class TableEntry(NamedTuple):
    """A table in a listing."""

    name: str
    table_id: str


_decoder = msgspec.json.Decoder(TableConfig)


def majority(count: int) -> int:
    """Return how many of `count` servers are a majority."""
    return count // 2 + 1


def encode_config(config: TableConfig) -> bytes:
    """Return the value of a table's node."""
    return msgspec.json.encode(config)


def decode_config(path: str, node: Node) -> TableConfig:
    """Read the value of a table's node."""
    try:
        return _decoder.decode(node.value)
    except msgspec.MsgspecError as error:
        raise Corruption(path, f"not a table's configuration: {error}") from error


def table_id_of(node: Node) -> str:
    """Read the value of a name's node; what is not the id of any table stays so."""
    return node.value.decode("utf-8", "replace")


def config_path(table_id: str) -> str:
    """Return where the configuration of a table is."""
    return f"{TABLES}/{table_id}"


def name_path(name: str) -> str:
    """Return where the id of the table of that name is."""
    return f"{NAMES}/{name}"
