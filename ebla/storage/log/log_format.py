"""The log on disk, as bytes: segments, and the frames of the entries in them. log_entry.py has what a commit says.

A server has one log for all its tables, a directory of numbered segments:

    log/<server uuid>/0000000000000007.log

    segment   | header (64) | entry | entry | ... | closed entry |        the last only if the segment ended cleanly
    entry     | header (32) | payload, a multiple of 8 bytes |            one entry = one write = one group commit

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
from typing import TypeAlias

import google_crc32c
import msgspec

from ebla.errors import FormatTooNew
from ebla.storage.files.files import BytesLike

__all__ = [
    "ALIGNMENT_BYTES",
    "ENTRY_HEADER_BYTES",
    "ENTRY_MAGIC",
    "FORMAT_VERSION",
    "SEGMENT_HEADER_BYTES",
    "EntryHeader",
    "EntryKind",
    "SegmentBytes",
    "SegmentHeader",
    "SegmentInfo",
    "decode_entry_header",
    "decode_segment_header",
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

FORMAT_VERSION = 3
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
    version: int = FORMAT_VERSION


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
    return SegmentHeader(str(uuid.UUID(bytes=server)), sequence, previous - 1 if previous else None, seed, version)


# --- frames --------------------------------------------------------------------------------------


class EntryKind(IntEnum):
    """What an entry is. Other numbers belong to later versions."""

    COMMIT = 1
    CLOSED = 2
    REPLICAS = 3  # records of tablets that several servers keep: replica_entry.py


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
    for buffer in payload:
        crc = google_crc32c.extend(crc, buffer)
        length += len(buffer)
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
