"""What a commit writes to the log: one entry for everything that becomes durable together, as bytes and back.

    commit    | u32 length | EntryPreamble (msgpack) | zeros | Arrow record batch | Arrow record batch | ...

log_format.py has the frame around it. As there, nothing here does I/O, and a `ValueError` means damaged bytes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from ebla.storage.files.files import BytesLike
from ebla.storage.log.log_format import ALIGNMENT_BYTES

__all__ = [
    "BlockHeader",
    "EntryPreamble",
    "ErasureHeader",
    "LogBlock",
    "LogEntry",
    "Reply",
    "Slice",
    "TabletPosition",
    "decode_entry",
    "encode_entry",
]

_LENGTH = struct.Struct("<I")


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """The rows [begin, end) of a block, which are one tablet's, and its epoch and index for them."""

    tablet: str
    epoch: int
    index: int
    begin: int
    end: int


class TabletPosition(msgspec.Struct, frozen=True, array_like=True):
    """A tablet that an erasure touches, and its epoch and index for it."""

    tablet: str
    epoch: int
    index: int


class ErasureHeader(msgspec.Struct, frozen=True, array_like=True):
    """An erasure of the encoded rows [first, last); `last` None has no end."""

    table: str
    first: bytes
    last: bytes | None
    txn: int
    tablets: tuple[TabletPosition, ...]


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a client was told, so that its retry is told the same."""

    client: str
    sequence: int
    txn: int


class LogBlock(msgspec.Struct, frozen=True):
    """Sorted records of one group of one table, as they are in memory.

    `schema` is ``records.schema.serialize()`` as bytes; the caller keeps it, since making it costs more than writing a
    row does. `txn` is the largest txn of the records, and the txn of all of them if they have no ``_txn`` column.
    A block of one row may bring its records as `body`, serialized already and without a ``_txn`` column; `records` is
    None then.
    """

    table: str
    group: int
    schema_version: int
    txn: int
    txn_min: int
    slices: tuple[Slice, ...]
    schema: bytes
    records: Any  # pa.RecordBatch
    body: bytes | None = None

    @property
    def rows(self) -> int:
        """The number of records."""
        return 1 if self.body is not None else int(self.records.num_rows)

    @property
    def has_txn_column(self) -> bool:
        """Whether the records carry their own txns."""
        return self.body is None and bool(self.records.schema.get_field_index("_txn") >= 0)


class LogEntry(msgspec.Struct, frozen=True):
    """One group commit: everything that becomes durable together."""

    txn_max: int
    blocks: tuple[LogBlock, ...] = ()
    erasures: tuple[ErasureHeader, ...] = ()
    replies: tuple[Reply, ...] = ()

    @property
    def txn_min(self) -> int:
        """The smallest txn in the entry."""
        smallest = self.txn_max
        for block in self.blocks:
            smallest = min(smallest, block.txn_min)
        for erasure in self.erasures:
            smallest = min(smallest, erasure.txn)
        return smallest


class BlockHeader(msgspec.Struct, frozen=True, array_like=True):
    """A `LogBlock` on disk; its records are `body_length` bytes at `body_offset` after the preamble."""

    table: str
    group: int
    schema_version: int
    txn: int
    txn_min: int
    has_txn_column: bool
    rows: int
    slices: tuple[Slice, ...]
    schema: bytes
    body_offset: int
    body_length: int


class EntryPreamble(msgspec.Struct, frozen=True, array_like=True):
    """Everything in a commit but the records. Fields are only ever added at the end, with a default."""

    txn_max: int
    blocks: tuple[BlockHeader, ...]
    erasures: tuple[ErasureHeader, ...]
    replies: tuple[Reply, ...]


_encode_preamble = msgspec.msgpack.Encoder().encode
_decode_preamble = msgspec.msgpack.Decoder(EntryPreamble).decode


def encode_entry(entry: LogEntry) -> list[BytesLike]:
    """Return the payload of a commit, as buffers to be written one after the other. Arrow copies records once."""
    bodies = []
    headers = []
    offset = 0
    for block in entry.blocks:
        body = _body_of(block)
        length = len(body)
        assert length % ALIGNMENT_BYTES == 0, "Arrow pads its messages"
        headers.append(
            BlockHeader(
                block.table,
                block.group,
                block.schema_version,
                block.txn,
                block.txn_min,
                block.has_txn_column,
                block.rows,
                block.slices,
                block.schema,
                offset,
                length,
            )
        )
        bodies.append(body)
        offset += length
    preamble = _encode_preamble(EntryPreamble(entry.txn_max, tuple(headers), entry.erasures, entry.replies))
    used = _LENGTH.size + len(preamble)
    return [b"".join((_LENGTH.pack(len(preamble)), preamble, bytes(-used % ALIGNMENT_BYTES))), *bodies]


def _body_of(block: LogBlock) -> Any:
    if block.body is not None:
        return block.body
    if not block.records.schema.equals(_read_schema(block.schema)):
        raise ValueError("the schema given with a log block is not that of its records")
    return block.records.serialize()


def decode_entry(payload: Any) -> LogEntry:
    """Return the commit that `payload` (a `pa.Buffer`) holds. The records point into it; nothing is copied."""
    if payload.size < _LENGTH.size:
        raise ValueError("a commit without a preamble")
    view = memoryview(payload)
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    preamble = _decode_preamble(view[_LENGTH.size : end])
    base = end + -end % ALIGNMENT_BYTES
    blocks = tuple([_decode_block(header, payload, base) for header in preamble.blocks])
    return LogEntry(preamble.txn_max, blocks, preamble.erasures, preamble.replies)


def _decode_block(header: BlockHeader, payload: Any, base: int) -> LogBlock:
    begin = base + header.body_offset
    if header.body_offset < 0 or header.body_length < 0 or begin + header.body_length > payload.size:
        raise ValueError("a block reaches beyond its entry")
    records = pa.ipc.read_record_batch(payload.slice(begin, header.body_length), _read_schema(header.schema))
    if records.num_rows != header.rows:
        raise ValueError(f"a block of {records.num_rows} records that should have {header.rows}")
    return LogBlock(
        header.table,
        header.group,
        header.schema_version,
        header.txn,
        header.txn_min,
        header.slices,
        header.schema,
        records,
    )


@lru_cache(maxsize=1024)
def _read_schema(serialized: bytes) -> Any:
    """Return the Arrow schema; refuse dictionaries, whose values would not be in the record batch's own message."""
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    for field in schema:
        if _has_dictionary(field.type):
            raise ValueError(f"column {field.name!r} is dictionary-encoded, which the log cannot hold")
    return schema


def _has_dictionary(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))
