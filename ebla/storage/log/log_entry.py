"""What a commit writes to the log: one entry for everything that becomes durable together, as bytes and back.

    commit    | u32 length | EntryPreamble (msgpack) | zeros | Arrow record batch | Arrow record batch | ...

    entry     part of tablet A | part of tablet B | ...          one part per tablet, so that whoever wants the commits
    part      blocks of groups, erasures of ranges, replies      of one tablet takes its parts, and needs no other

A put of rows of many tablets is one record batch, and is written as one: the blocks of its tablets are rows of it.

log_format.py has the frame around it. As there, nothing here does I/O, and a `ValueError` means damaged bytes.
former_entry.py reads what version 1 wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
import pyarrow as pa

from ebla.storage.files.files import BytesLike
from ebla.storage.log.log_format import ALIGNMENT_BYTES

__all__ = [
    "BlockHeader",
    "EntryPreamble",
    "LogBlock",
    "LogEntry",
    "LogErasure",
    "LogPart",
    "PartHeader",
    "Reply",
    "decode_entry",
    "encode_entry",
    "read_block",
    "split_payload",
]

_LENGTH = struct.Struct("<I")


class LogErasure(msgspec.Struct, frozen=True, array_like=True):
    """An erasure of the encoded rows [first, last), at an index of the tablet; `last` None has no end.

    Rows of the range that other tablets have are erased by their own parts.
    """

    first: bytes
    last: bytes | None
    txn: int
    index: int


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a client was told, so that its retry is told the same."""

    client: str
    sequence: int
    txn: int


class LogBlock(msgspec.Struct, frozen=True):
    """Sorted records of one group of one tablet, as they are in memory.

    `schema` is ``records.schema.serialize()`` as bytes; the caller keeps it, since making it costs more than writing a
    row does. `txn` is the largest txn of the records, and the txn of all of them if they have no ``_txn`` column;
    `index` is that of the tablet's newest commit among them.
    A block of one row may bring its records, `body_rows` of them, as `body`, serialized already and without a ``_txn``
    column; `records` is None then.
    Where `records` are a slice of a larger batch, from row `begin` on, that may be given as `whole`: if an
    entry has blocks of all its rows, it is written once, in their place.
    """

    group: int
    index: int
    txn: int
    txn_min: int
    schema: bytes
    records: Any  # pa.RecordBatch
    body: bytes | None = None
    whole: Any = None  # pa.RecordBatch | None
    begin: int = 0
    body_rows: int = 1

    @property
    def rows(self) -> int:
        """The number of records."""
        return self.body_rows if self.body is not None else int(self.records.num_rows)

    @property
    def has_txn_column(self) -> bool:
        """Whether the records carry their own txns."""
        return self.body is None and bool(self.records.schema.get_field_index("_txn") >= 0)


class LogPart(msgspec.Struct, frozen=True):
    """What an entry has of one tablet: its commits `index_min` to `index`, led at `epoch`, the newest at `txn`.

    The parts of a tablet follow one another without a gap in their indices. One that has replies alone, which were
    logged before, takes no index: its `index_min` is above its `index`.
    """

    table: str
    tablet: str
    epoch: int
    schema_version: int
    index_min: int
    index: int
    txn: int
    blocks: tuple[LogBlock, ...] = ()
    erasures: tuple[LogErasure, ...] = ()
    replies: tuple[Reply, ...] = ()

    @classmethod
    def of_replies(cls, table: str, tablet: str, txn: int, replies: Sequence[Reply]) -> LogPart:
        """Return a part that has nothing but replies that were logged before."""
        return cls(table, tablet, 0, 0, 1, 0, txn, replies=tuple(replies))


class LogEntry(msgspec.Struct, frozen=True):
    """One group commit: everything that becomes durable together.

    `replies` belong to no tablet: a version before this one logged them.
    """

    txn_max: int
    parts: tuple[LogPart, ...] = ()
    replies: tuple[Reply, ...] = ()

    @property
    def txn_min(self) -> int:
        """The smallest txn in the entry."""
        smallest = self.txn_max
        for part in self.parts:
            for block in part.blocks:
                smallest = min(smallest, block.txn_min)
            for erasure in part.erasures:
                smallest = min(smallest, erasure.txn)
        return smallest


class BlockHeader(msgspec.Struct, frozen=True, array_like=True):
    """A `LogBlock` on disk: its Arrow schema by its place in the preamble, its records by theirs behind it.

    The records are `rows` of those in the body, from `begin` on; all of them if that is None.
    """

    group: int
    index: int
    txn: int
    txn_min: int
    has_txn_column: bool
    rows: int
    schema: int
    body_offset: int
    body_length: int
    begin: int | None = None


class PartHeader(msgspec.Struct, frozen=True, array_like=True):
    """A `LogPart` on disk."""

    table: str
    tablet: str
    epoch: int
    schema_version: int
    index_min: int
    index: int
    txn: int
    blocks: tuple[BlockHeader, ...]
    erasures: tuple[LogErasure, ...]
    replies: tuple[Reply, ...]


class EntryPreamble(msgspec.Struct, frozen=True, array_like=True):
    """Everything in a commit but the records. Fields are only ever added at the end, with a default.

    The blocks of many tablets have the same few Arrow schemas, each of which stands here once.
    """

    txn_max: int
    schemas: tuple[bytes, ...]
    parts: tuple[PartHeader, ...]
    replies: tuple[Reply, ...]


_encode_preamble = msgspec.msgpack.Encoder().encode
_decode_preamble = msgspec.msgpack.Decoder(EntryPreamble).decode


def encode_entry(entry: LogEntry) -> list[BytesLike]:
    """Return the payload of a commit, as buffers to be written one after the other. Arrow copies records once."""
    bodies = _Bodies(entry)
    parts = [
        PartHeader(
            part.table,
            part.tablet,
            part.epoch,
            part.schema_version,
            part.index_min,
            part.index,
            part.txn,
            tuple([bodies.add(block) for block in part.blocks]),
            part.erasures,
            part.replies,
        )
        for part in entry.parts
    ]
    preamble = _encode_preamble(EntryPreamble(entry.txn_max, tuple(bodies.schemas), tuple(parts), entry.replies))
    used = _LENGTH.size + len(preamble)
    return [b"".join((_LENGTH.pack(len(preamble)), preamble, bytes(-used % ALIGNMENT_BYTES))), *bodies.buffers]


class _Bodies:
    """The bodies of an entry as they are gathered, block by block."""

    def __init__(self, entry: LogEntry) -> None:
        self.buffers: list[BytesLike] = []
        self.schemas: dict[bytes, int] = {}
        self._offset = 0
        self._missing = _missing_rows(entry)
        # Of batches that are in already: where, and whether they have a _txn column.
        self._shared: dict[int, tuple[int, int, int, bool]] = {}

    def add(self, block: LogBlock) -> BlockHeader:
        """Add the records of a block, or of all blocks that it shares a batch with; return where they are."""
        whole, begin = block.whole, None
        if whole is not None and self._missing[id(whole)] == 0:
            begin = block.begin
            place = self._shared.get(id(whole))
            if place is None:
                place = self._shared[id(whole)] = self._put(block.schema, whole, None)
        else:
            place = self._put(block.schema, block.records, block.body)
        schema, offset, length, has_txn_column = place
        return BlockHeader(
            block.group,
            block.index,
            block.txn,
            block.txn_min,
            has_txn_column,
            block.rows,
            schema,
            offset,
            length,
            begin,
        )

    def _put(self, described: bytes, records: Any, body: Any) -> tuple[int, int, int, bool]:
        has_txn_column = False
        if body is None:
            if not records.schema.equals(_read_schema(described)):
                raise ValueError("the schema given with a log block is not that of its records")
            has_txn_column = records.schema.get_field_index("_txn") >= 0
            body = records.serialize()
        length = len(body)
        assert length % ALIGNMENT_BYTES == 0, "Arrow pads its messages"
        self.buffers.append(body)
        offset = self._offset
        self._offset += length
        return self.schemas.setdefault(described, len(self.schemas)), offset, length, has_txn_column


def _missing_rows(entry: LogEntry) -> dict[int, int]:
    """Return how many rows of each batch that blocks share are in none of them."""
    missing: dict[int, int] = {}
    for part in entry.parts:
        for block in part.blocks:
            whole = block.whole
            if whole is not None:
                missing[id(whole)] = missing.get(id(whole), whole.num_rows) - block.records.num_rows
    return missing


def split_payload(payload: Any) -> tuple[memoryview, int]:
    """Return the preamble of a commit, and where in `payload` (a `pa.Buffer`) the records begin."""
    if payload.size < _LENGTH.size:
        raise ValueError("a commit without a preamble")
    view = memoryview(payload)
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    return view[_LENGTH.size : end], end + -end % ALIGNMENT_BYTES


def decode_entry(payload: Any) -> LogEntry:
    """Return the commit that `payload` (a `pa.Buffer`) holds. The records point into it; nothing is copied."""
    packed, base = split_payload(payload)
    preamble = _decode_preamble(packed)
    read = lru_cache(maxsize=None)(partial(_read_body, payload, base))
    parts = tuple([_decode_part(part, preamble.schemas, read) for part in preamble.parts])
    return LogEntry(preamble.txn_max, parts, preamble.replies)


def _decode_part(part: PartHeader, schemas: tuple[bytes, ...], read: Callable[[int, int, bytes], Any]) -> LogPart:
    blocks = []
    for header in part.blocks:
        if not 0 <= header.schema < len(schemas):
            raise ValueError(f"a block of schema {header.schema}, of which there are {len(schemas)}")
        schema = schemas[header.schema]
        records = read(header.body_offset, header.body_length, schema)
        if header.begin is None:
            _check_rows(records, header.rows)
        elif header.begin < 0 or header.rows < 0 or header.begin + header.rows > records.num_rows:
            raise ValueError(f"{header.rows} records from {header.begin} on, of {records.num_rows}")
        else:
            records = records.slice(header.begin, header.rows)
        blocks.append(LogBlock(header.group, header.index, header.txn, header.txn_min, schema, records))
    return LogPart(
        part.table,
        part.tablet,
        part.epoch,
        part.schema_version,
        part.index_min,
        part.index,
        part.txn,
        tuple(blocks),
        part.erasures,
        part.replies,
    )


def read_block(payload: Any, base: int, offset: int, length: int, schema: bytes, rows: int) -> Any:
    """Return the records of a block, which are `length` bytes at `offset` after `base`; there must be so many."""
    records = _read_body(payload, base, offset, length, schema)
    _check_rows(records, rows)
    return records


def _read_body(payload: Any, base: int, offset: int, length: int, schema: bytes) -> Any:
    begin = base + offset
    if offset < 0 or length < 0 or begin + length > payload.size:
        raise ValueError("a block reaches beyond its entry")
    return pa.ipc.read_record_batch(payload.slice(begin, length), _read_schema(schema))


def _check_rows(records: Any, rows: int) -> None:
    if records.num_rows != rows:
        raise ValueError(f"a block of {records.num_rows} records that should have {rows}")


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
