"""The log on disk, as bytes: segment headers, entries, and what a commit entry says.

A server has one log for all its tables, a directory of numbered segments:

    log/<server uuid>/0000000000000007.log

    segment   | header (64) | entry | entry | ... | closed entry |        the last only if the segment ended cleanly
    entry     | header (32) | payload, a multiple of 8 bytes |            one entry = one write = one group commit
    commit    | u32 length | EntryPreamble (msgpack) | zeros | Arrow record batch | Arrow record batch | ...

A torn write must be told from damage: the first is normal after a crash and is cut off, the second must never be
cut off in silence. Three things in the format let the reader tell them apart:

- An entry says how many bytes of the segment were synced when it was written (`synced`). A bad entry that lies
  within what a later entry says was synced is damage, not a torn write. (That an entry merely comes later proves
  nothing: the disk may write the unsynced pages of a file in any order.)
- A segment's header says how long the segment before it was when it ended (`previous_bytes`), and a closed entry
  says that nothing follows, so that no end of a finished segment can go missing.
- The checksum of an entry's header covers where it belongs (server, segment, offset). Bytes that look like an entry
  because a user stored a copy of a log as a value are not taken for one.

All numbers are little-endian. Whatever has a checksum that fits but is not understood was written by a later version:
`FormatTooNew`. Functions here do no I/O and know no file names; a `ValueError` from them means damaged bytes.
"""

from __future__ import annotations

import mmap
import re
import struct
import uuid
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeAlias

import google_crc32c
import msgspec
import pyarrow as pa

from ebla.errors import FormatTooNew
from ebla.storage.files.files import BytesLike

__all__ = [
    "ENTRY_HEADER_BYTES",
    "ENTRY_MAGIC",
    "FORMAT_VERSION",
    "SEGMENT_HEADER_BYTES",
    "BlockHeader",
    "EntryHeader",
    "EntryKind",
    "EntryPreamble",
    "ErasureHeader",
    "LogBlock",
    "LogEntry",
    "Reply",
    "SegmentBytes",
    "SegmentHeader",
    "SegmentInfo",
    "Slice",
    "TabletPosition",
    "decode_entry",
    "decode_entry_header",
    "decode_segment_header",
    "encode_entry",
    "encode_segment_header",
    "find_entry_header",
    "frame_entry",
    "mark_path",
    "mark_sequence",
    "segment_path",
    "segment_sequence",
]

# A segment as it is read: all of it, or mapped into memory.
SegmentBytes: TypeAlias = bytes | mmap.mmap

FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 64
ENTRY_HEADER_BYTES = 32
ALIGNMENT_BYTES = 8  # what Arrow needs to use the bodies where they lie

SEGMENT_MAGIC = b"EBLA-LOG"
ENTRY_MAGIC = b"\xebLE\x01"

# magic, version, zero, server uuid, sequence, previous bytes + 1 (0: there was none), zeros; then the crc32c of these.
_SEGMENT_HEADER = struct.Struct("<8sII16sQQ12x")
# magic, kind, flags, zero, payload length, synced, crc32c of the payload; then the crc32c of these and of the place.
_ENTRY_HEADER = struct.Struct("<4sBBHQQI")
_ENTRY_PLACE = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_ENTRY_CHECKED_BYTES = ENTRY_HEADER_BYTES - _CRC.size
assert _SEGMENT_HEADER.size + _CRC.size == SEGMENT_HEADER_BYTES
assert _ENTRY_HEADER.size == _ENTRY_CHECKED_BYTES

_SEGMENT_NAME = re.compile(r"([0-9]{16})\.log")
_MARK_NAME = re.compile(r"([0-9]{16})\.begin")


# --- segments ------------------------------------------------------------------------------------


class SegmentInfo(msgspec.Struct, frozen=True):
    """What is known of one segment. `txn_min` and `txn_max` are 0 while it holds no commit."""

    path: str
    sequence: int
    bytes: int
    txn_min: int = 0
    txn_max: int = 0
    closed: bool = False


class SegmentHeader(msgspec.Struct, frozen=True):
    """The first bytes of a segment. `seed` starts the checksum of every entry header in it."""

    server: str
    sequence: int
    previous_bytes: int | None
    seed: int = 0


def segment_path(directory: str, sequence: int) -> str:
    """Return the path of a segment."""
    return f"{directory}/{sequence:016d}.log"


def segment_sequence(path: str) -> int | None:
    """Return the number of the segment at `path`, or None if that is not the name of a segment."""
    match = _SEGMENT_NAME.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else None


def mark_path(directory: str, sequence: int) -> str:
    """Return the path of the mark that says: here the log begins, and segments of lower numbers do not count."""
    return f"{directory}/{sequence:016d}.begin"


def mark_sequence(path: str) -> int | None:
    """Return the number of the segment that a mark at `path` is for, or None if that is not the name of a mark."""
    match = _MARK_NAME.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else None


def encode_segment_header(server: str, sequence: int, previous_bytes: int | None) -> tuple[SegmentHeader, bytes]:
    """Return the header of a new segment, with its seed, and its bytes. `server` is a UUID in text."""
    previous = 0 if previous_bytes is None else previous_bytes + 1
    checked = _SEGMENT_HEADER.pack(SEGMENT_MAGIC, FORMAT_VERSION, 0, uuid.UUID(server).bytes, sequence, previous)
    seed = google_crc32c.value(checked)
    return SegmentHeader(server, sequence, previous_bytes, seed), checked + _CRC.pack(seed)


def decode_segment_header(data: SegmentBytes) -> SegmentHeader | None:
    """Return the header that `data` begins with, or None if it is cut off or damaged."""
    checked = data[: _SEGMENT_HEADER.size]
    if len(data) < SEGMENT_HEADER_BYTES or not checked.startswith(SEGMENT_MAGIC):
        return None
    seed: int = google_crc32c.value(checked)
    if _CRC.unpack_from(data, _SEGMENT_HEADER.size)[0] != seed:
        return None
    _, version, _, server, sequence, previous = _SEGMENT_HEADER.unpack(checked)
    if version > FORMAT_VERSION:
        raise FormatTooNew(f"a log of format {version}: this version of Ebla reads up to {FORMAT_VERSION}; update it")
    return SegmentHeader(str(uuid.UUID(bytes=server)), sequence, previous - 1 if previous else None, seed)


# --- frames --------------------------------------------------------------------------------------


class EntryKind(IntEnum):
    """What an entry is. Other numbers belong to later versions."""

    COMMIT = 1
    CLOSED = 2


class EntryHeader(msgspec.Struct, frozen=True):
    """The frame around a payload. `synced` bytes of the segment were durable when the entry was written."""

    kind: int
    flags: int
    payload_bytes: int
    synced: int
    payload_crc: int


def frame_entry(
    kind: EntryKind, payload: Sequence[BytesLike], segment: SegmentHeader, offset: int, synced: int
) -> list[BytesLike]:
    """Put a header before a payload for writing at `offset` of `segment`. The payload is not copied."""
    crc, length = 0, 0
    for part in payload:
        crc = google_crc32c.extend(crc, part)
        length += len(part)
    checked = _ENTRY_HEADER.pack(ENTRY_MAGIC, kind, 0, 0, length, synced, crc)
    return [checked + _CRC.pack(_place_crc(checked, segment.seed, offset)), *payload]


def decode_entry_header(data: SegmentBytes, offset: int, segment: SegmentHeader) -> EntryHeader | None:
    """Return the entry header at `offset`, or None if there is none: cut off, damaged, or of another place."""
    checked = data[offset : offset + _ENTRY_CHECKED_BYTES]
    if len(data) < offset + ENTRY_HEADER_BYTES or not checked.startswith(ENTRY_MAGIC):
        return None
    if _CRC.unpack_from(data, offset + _ENTRY_CHECKED_BYTES)[0] != _place_crc(checked, segment.seed, offset):
        return None
    _, kind, flags, _, length, synced, crc = _ENTRY_HEADER.unpack(checked)
    return EntryHeader(kind, flags, length, synced, crc)


def find_entry_header(data: SegmentBytes, begin: int, segment: SegmentHeader) -> tuple[int, EntryHeader] | None:
    """Return the first intact entry header at or after `begin`, with its offset."""
    offset = data.find(ENTRY_MAGIC, begin)
    while offset >= 0:
        header = decode_entry_header(data, offset, segment) if offset % ALIGNMENT_BYTES == 0 else None
        if header is not None:
            return offset, header
        offset = data.find(ENTRY_MAGIC, offset + 1)
    return None


def _place_crc(checked: bytes, seed: int, offset: int) -> int:
    crc: int = google_crc32c.extend(seed, _ENTRY_PLACE.pack(offset) + checked)
    return crc


# --- commit entries ------------------------------------------------------------------------------


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
    """Return the payload of a commit, in parts to be written one after the other. Records are copied once, by Arrow."""
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
