"""The lookup file: blocks of rows, an index of the blocks, and what the file was made of. See docs/formats/lookup.md.

    block | block | ... | index | about | trailer

A block has some rows, about `BLOCK_BYTES` or one that is larger, all numbers little-endian and eight bytes long:

    n | skip | n words | n + 1 offsets | rows ...... | padding to eight bytes

Words are those of model/order.py, by which a row is found in its block: of what follows the `skip` bytes that all rows
of the block begin with. Offsets say where in the block a row begins,
and the last where it ends. The index says of every block its last word, where it begins, its checksum and its last row;
`About` says which fragment this is a form of. Whatever is read is checked first: blocks by the checksums in the index,
the rest by the one in the trailer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

__all__ = [
    "BLOCK_BYTES",
    "DIRECTORY",
    "FORMAT_VERSION",
    "TRAILER",
    "About",
    "BlockIndex",
    "Damaged",
    "checksum",
    "lookup_path",
    "pack_end",
    "unpack_end",
]

FORMAT_VERSION = 2
DIRECTORY = "lookup"
SUFFIX = ".lookup"
BLOCK_BYTES = 4096
MAGIC = b"EBLALOOK"
# Bytes of index and about, the checksum of both, and the magic.
TRAILER = struct.Struct("<QQQ8s")
WORD_BYTES = 8

checksum = xxhash.xxh3_64_intdigest


class Damaged(Exception):
    """A lookup file is not what was written, or not of the fragment it should be of."""


class About(msgspec.Struct, frozen=True):
    """What a lookup file says of itself, as JSON."""

    format_version: int
    fragment: str  # path of the file below the root of the store
    fragment_bytes: int
    fields: bytes  # of every record, as records call them, with their types: an Arrow schema, serialized
    skip: int  # so many bytes all rows begin with: words are made of what follows
    rows: int


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Which blocks there are, as arrays of numbers: views of one buffer."""

    words: memoryview  # the last of every block
    offsets: memoryview  # where it begins in the file; and where the last one ends
    checksums: memoryview
    row_offsets: memoryview  # of the last row of every block in `rows`, and the end
    rows: memoryview

    def last_row(self, block: int) -> bytes:
        """Return the last row of a block."""
        return bytes(self.rows[self.row_offsets[block] : self.row_offsets[block + 1]])


def lookup_path(fragment: str) -> str:
    """Return where the lookup file of a fragment is; ids of fragments are never given twice."""
    return f"{DIRECTORY}/{fragment.rpartition('/')[2].removesuffix('.parquet')}{SUFFIX}"


def pack_end(
    words: npt.NDArray[np.uint64],
    offsets: npt.NDArray[np.int64],
    checksums: npt.NDArray[np.uint64],
    rows: list[bytes],
    about: About,
) -> bytes:
    """Return all that follows the blocks of a file."""
    row_offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    numbers = [np.array([len(words)]), words, offsets, checksums, row_offsets]
    index = b"".join([*(array.astype("<u8").tobytes() for array in numbers), *rows])
    described = msgspec.json.encode(about)
    return index + described + TRAILER.pack(len(index), len(described), checksum(index + described), MAGIC)


def unpack_end(raw: bytes, index_bytes: int, expected: int) -> tuple[BlockIndex, About]:
    """Return the index and what the file says of itself, from their bytes; `Damaged` if they are others."""
    if checksum(raw) != expected:
        raise Damaged("its index is not what was written")
    try:
        about = msgspec.json.decode(memoryview(raw)[index_bytes:], type=About)
    except msgspec.MsgspecError as error:
        raise Damaged(str(error)) from error
    if about.format_version != FORMAT_VERSION:
        raise Damaged(f"it has format {about.format_version}")
    view = memoryview(raw)
    count = int.from_bytes(view[:WORD_BYTES], "little")
    parts = []
    at = WORD_BYTES
    for length in (count, count + 1, count, count + 1):
        parts.append(view[at : at + WORD_BYTES * length].cast("Q"))
        at += WORD_BYTES * length
    words, offsets, checksums, row_offsets = parts
    return BlockIndex(words, offsets, checksums, row_offsets, view[at:index_bytes]), about
