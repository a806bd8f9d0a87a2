"""Asking a Parquet bloom filter whether a key may be in a row group.

pyarrow writes split-block bloom filters and does not read them. One is a small header and then blocks of 32 bytes; the
upper half of the key's xxHash64 chooses the block, the lower half one bit in each of its eight words. The number of
bytes of blocks is a power of two, and the header is always shorter than that.
"""

from __future__ import annotations

import struct

import xxhash

_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_BLOCK = struct.Struct("<8I")


def key_hash(key: bytes) -> int:
    """Return the hash by which bloom filters know `key`."""
    return int(xxhash.xxh64_intdigest(key))


class RowHash:
    """The hash of one key, made when it is asked for first: most look-ups find the block cached and need none."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hash: int | None = None

    def __call__(self) -> int:
        """Return the hash."""
        if self._hash is None:
            self._hash = key_hash(self._key)
        return self._hash


def bitset_of(blob: bytes) -> bytes:
    """Return the blocks of a bloom filter as it stands in the file, without its header."""
    return blob[-(1 << (len(blob).bit_length() - 1)) :]


def may_contain(bitset: bytes, hashed: int) -> bool:
    """Tell whether a key with this hash may be in the row group; False is certain."""
    blocks = len(bitset) >> 5
    words = _BLOCK.unpack_from(bitset, (((hashed >> 32) * blocks) >> 32) << 5)
    low = hashed & 0xFFFFFFFF
    for word, salt in zip(words, _SALTS, strict=True):  # noqa: SIM110 - twice as fast as all()
        if not (word >> (((low * salt) & 0xFFFFFFFF) >> 27)) & 1:
            return False
    return True
