"""Fragments and their records, for planners and tasks that look into files themselves."""

from __future__ import annotations

import msgspec

from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.schema import TableSchema, decode_hook, encode_hook
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.fragment.fragment_format import Tail
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.fragment.row_index import places_of
from ebla.storage.record.records import ROW, TXN, Block, Run
from ebla.tablet.check.inspection import inspect

__all__ = [
    "ROW",
    "TXN",
    "Block",
    "BlockCache",
    "Fragment",
    "Run",
    "fragment_at",
    "inspect",
    "pack_schema",
    "places_of",
    "unpack_schema",
]


def fragment_at(root: str, ref: FragmentRef) -> Fragment:
    """Open a file that METADATA names, for one look; nothing of it is cached."""
    tail = Tail(ref.tail_bytes, ref.tail_crc) if ref.tail_bytes else None
    return Fragment(LocalFiles(root), ref.file, BlockCache(0), ref.txn, tail)


def pack_schema(schema: TableSchema) -> bytes:
    """Return a schema as bytes: a task takes nothing along that was worked out from it."""
    return msgspec.msgpack.encode(schema, enc_hook=encode_hook)


def unpack_schema(packed: bytes) -> TableSchema:
    """Return the schema that was packed."""
    return msgspec.msgpack.decode(packed, type=TableSchema, dec_hook=decode_hook)
