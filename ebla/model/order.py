"""Sorting and comparing encoded rows by machine words.

Rows are byte strings, and Python or Arrow compare them one at a time. Here the eight bytes after a common prefix are
read as one big-endian number per row, which numpy sorts and searches at memory speed; sorted runs laid end to end are
merged by numpy's stable sort in about one pass. Only rows whose eight bytes are equal are looked at again as a whole.

    rows   user:0042  user:0043  user:0043  user:1000
    skip   5 (all begin with "user:")
    words  "0042...." "0043...." "0043...." "1000...."
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words: TypeAlias = npt.NDArray[np.uint64]
Indices: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

# Rows are looked for by words as long as each meets no more records than this, on average, and some are spared.
TIES_MAX = 64
TIES_SPARED = 1_024

# KEEP[n] keeps the first n bytes of a word and clears what follows them.
_KEEP = np.array([0] + [((1 << (8 * n)) - 1) << (64 - 8 * n) for n in range(1, 9)], dtype=np.uint64)
_WORD = (1 << 64) - 1
_BIG_ENDIAN = np.dtype(">u8")
_one_word: Callable[..., tuple[int]] = struct.Struct(">Q").unpack_from
_MIX_FIRST = np.uint64(0x9E3779B97F4A7C15)
_MIX_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX_THIRD = np.uint64(0x165667B19E3779F9)


def offsets_and_data(rows: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the offsets and the bytes of a binary array without copying either."""
    _, offset_buffer, data_buffer = rows.buffers()
    if offset_buffer is None or not len(rows):
        return np.zeros(len(rows) + 1, dtype=np.int32), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32, count=len(rows) + 1, offset=rows.offset * 4)
    data = np.zeros(0, dtype=np.uint8) if data_buffer is None else np.frombuffer(data_buffer, dtype=np.uint8)
    return offsets, data


def tell_apart(counts: Indices) -> bool:
    """Whether words tell rows apart well enough to look for rows by them, given how many records each of them meets.

    Rows of a short text and a number may all have one word: to compare each with each would take their product.
    """
    return int(counts.sum()) <= TIES_SPARED + TIES_MAX * len(counts)


def key_words(rows: pa.Array, skip: int = 0) -> Words:
    """Return bytes `skip` to `skip + 8` of every row as a number that sorts as the bytes do, padded with zeros."""
    offsets, data = offsets_and_data(rows)
    matrix = _as_matrix(offsets, data)
    if matrix is not None and skip + 8 <= matrix.shape[1]:
        return _words_in(matrix, skip)
    return _words_at(offsets[:-1] + np.int64(skip), offsets[1:], data)


def key_words_from(rows: pa.Array, skips: Indices) -> Words:
    """Return the words of rows as `key_words` does, each after a number of bytes of its own."""
    offsets, data = offsets_and_data(rows)
    return _words_at(offsets[:-1] + skips, offsets[1:], data)


def _as_matrix(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
    """Return rows that are all of one length, at least a word, as a matrix of bytes; None for others."""
    count = len(offsets) - 1
    width = int(offsets[1] - offsets[0]) if count else 0
    if width < 8 or int(offsets[-1] - offsets[0]) != width * count or (offsets[1:] - offsets[:-1] != width).any():
        return None
    return data[offsets[0] : offsets[-1]].reshape(count, width)


def _words_in(matrix: npt.NDArray[np.uint8], begin: int) -> Words:
    # A view of one unaligned word per row: many times as fast as copying a column of eight bytes first.
    count, width = matrix.shape
    words: Words = np.ndarray((count,), _BIG_ENDIAN, matrix.data, begin, (width,)).astype(np.uint64)
    return words


def _words_at(begin: npt.NDArray[np.int64], end: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> Words:
    if len(data) < 8:
        padded = np.zeros(16, dtype=np.uint8)
        padded[: len(data)] = data
        data = padded
    last = len(data) - 8
    every = np.ndarray(shape=(last + 1,), dtype=np.dtype(">u8"), buffer=data, strides=(1,))
    at = np.clip(begin, 0, last)
    words: Words = every[at].astype(np.uint64)
    left = begin - at
    if left.any():
        words <<= (np.minimum(left, 7) * 8).astype(np.uint64)
    keep = end - begin
    if (keep < 8).any():
        words &= _KEEP[np.clip(keep, 0, 8)]
    return words


def word_of(row: bytes, skip: int) -> int:
    """Return the word of one row: what `key_words` gives for it."""
    return int.from_bytes(row[skip : skip + 8].ljust(8, b"\0"), "big")


def key_hashes(rows: pa.Array) -> Words:
    """Return a hash of every row from its length and its first, middle and last eight bytes.

    Rows that differ elsewhere collide: good for filters that may err on the safe side, never for identity.
    """
    offsets, data = offsets_and_data(rows)
    matrix = _as_matrix(offsets, data)
    if matrix is not None:
        width = matrix.shape[1]
        hashes = _words_in(matrix, 0) * _MIX_FIRST
        hashes ^= _words_in(matrix, width - 8) * _MIX_SECOND
        if width > 16:
            hashes ^= _words_in(matrix, width // 2 - 4) * _MIX_THIRD
        hashes ^= np.uint64((width * int(_MIX_THIRD)) & _WORD)
    else:
        begin, end = offsets[:-1].astype(np.int64), offsets[1:]
        length = (end - begin).astype(np.int64)
        hashes = _words_at(begin, end, data) * _MIX_FIRST
        hashes ^= _words_at(np.maximum(begin, end - 8), end, data) * _MIX_SECOND
        if len(length) and int(length.max()) > 16:
            middle = _words_at(begin + np.maximum(length // 2 - 4, 0), end, data) * _MIX_THIRD
            hashes ^= np.where(length > 16, middle, np.uint64(0))
        hashes ^= length.astype(np.uint64) * _MIX_THIRD
    hashes ^= hashes >> np.uint64(29)
    hashes *= _MIX_SECOND
    return hashes ^ (hashes >> np.uint64(32))


def key_hash_of(row: bytes) -> int:
    """Return the hash of one row: what `key_hashes` gives for it."""
    length = len(row)
    if length >= 8:
        hashed = _one_word(row)[0] * 0x9E3779B97F4A7C15 ^ _one_word(row, length - 8)[0] * 0xC2B2AE3D27D4EB4F
        if length > 16:
            hashed ^= _one_word(row, length // 2 - 4)[0] * 0x165667B19E3779F9
    else:
        word = word_of(row, 0)
        hashed = word * 0x9E3779B97F4A7C15 ^ word * 0xC2B2AE3D27D4EB4F
    hashed = (hashed ^ (length * 0x165667B19E3779F9)) & _WORD
    hashed ^= hashed >> 29
    hashed = (hashed * 0xC2B2AE3D27D4EB4F) & _WORD
    return hashed ^ (hashed >> 32)


def common_prefix_length(first: bytes, last: bytes) -> int:
    """Return how many leading bytes all rows from `first` to `last` share."""
    size = min(len(first), len(last))
    differ = int.from_bytes(first[:size], "big") ^ int.from_bytes(last[:size], "big")
    return size - (differ.bit_length() + 7) // 8


def sort_rows(rows: pa.Array, skip: int = 0) -> tuple[Indices, Mask]:
    """Return the stable order of `rows`, and for each place in that order whether it repeats the row before it.

    `skip` leading bytes must be the same in all rows. Cheapest where `rows` is a few sorted runs end to end.
    """
    if len(rows) < 2:
        return np.arange(len(rows)), np.zeros(len(rows), dtype=np.bool_)
    words = key_words(rows, skip)
    if bool((words[1:] > words[:-1]).all()):
        return np.arange(len(rows)), np.zeros(len(rows), dtype=np.bool_)
    order: Indices = np.argsort(words, kind="stable")
    words = words[order]
    repeats = np.zeros(len(order), dtype=np.bool_)
    tied = words[1:] == words[:-1]
    if not tied.any():
        return order, repeats
    if _all_same(rows, order, np.flatnonzero(tied), skip + 8):
        repeats[1:] = tied
        return order, repeats
    in_tie = np.zeros(len(order), dtype=np.bool_)
    in_tie[1:] = tied
    in_tie[:-1] |= tied
    places = np.flatnonzero(in_tie)
    candidates = rows.take(pa.array(order[places]))
    linked = tied[places[1:] - 1]
    same = equal_neighbours(candidates)
    if not same[linked].all():
        by_row = pc.sort_indices(candidates).to_numpy()
        order[places] = order[places][by_row]
        same = equal_neighbours(candidates.take(pa.array(by_row)))
    repeats[places[1:]] = same
    return order, repeats


def _all_same(rows: pa.Array, order: Indices, tied: Indices, seen: int) -> bool:
    """Tell whether every row at a `tied` place of the order equals the next one, `seen` bytes of them being equal.

    Looks only at rows of one length of which no more than a word is left; False for others, though they may be equal.
    """
    offsets, data = offsets_and_data(rows)
    matrix = _as_matrix(offsets, data)
    if matrix is None or matrix.shape[1] > seen + 8:
        return False
    ends = _words_in(matrix, matrix.shape[1] - 8)
    return bool((ends[order[tied]] == ends[order[tied + 1]]).all())


def equal_neighbours(rows: pa.Array) -> Mask:
    """Tell for every row but the first whether it equals the one before it."""
    equal: Mask = pc.equal(rows.slice(1), rows.slice(0, len(rows) - 1)).to_numpy(zero_copy_only=False)
    return equal


def lower_bound(rows: pa.Array, row: bytes, begin: int = 0) -> int:
    """Return the first place from `begin` on in sorted `rows` that is not less than `row`."""
    return bisect_left(range(len(rows)), row, begin, key=lambda place: rows[place].as_py())


def lower_bounds(rows: pa.Array, bounds: Sequence[bytes]) -> list[int]:
    """Return what `lower_bound` returns for each of many rows, all of which lie between the ends of sorted `rows`."""
    skip = common_prefix_length(rows[0].as_py(), rows[-1].as_py())
    words = key_words(rows, skip)
    wanted = np.array([word_of(bound, skip) for bound in bounds], dtype=np.uint64)
    begins, ends = np.searchsorted(words, wanted, "left"), np.searchsorted(words, wanted, "right")
    found: list[int] = begins.tolist()
    for at in np.flatnonzero(begins < ends).tolist():  # words that are equal say nothing
        tied = range(int(ends[at]))
        found[at] = bisect_left(tied, bounds[at], found[at], key=lambda place: rows[place].as_py())
    return found


def upper_bound(rows: pa.Array, row: bytes, begin: int = 0) -> int:
    """Return the first place from `begin` on in sorted `rows` that is greater than `row`."""
    return bisect_right(range(len(rows)), row, begin, key=lambda place: rows[place].as_py())


def is_strictly_sorted(rows: pa.Array) -> bool:
    """Tell whether every row is greater than the one before it."""
    if len(rows) < 2:
        return True
    words = key_words(rows)
    if bool((words[1:] > words[:-1]).all()):
        return True
    if bool((words[1:] < words[:-1]).any()):
        return False
    return bool(pc.all(pc.greater(rows.slice(1), rows.slice(0, len(rows) - 1))).as_py())


def newest_first(order: Indices, repeats: Mask, txns: npt.NDArray[np.int64]) -> Indices:
    """Return `order` with the entries of each repeated row arranged by descending txn."""
    repeated = np.flatnonzero(repeats)
    if not len(repeated) or not (txns[order[repeated]] > txns[order[repeated - 1]]).any():
        return order
    several = repeats.copy()
    several[:-1] |= repeats[1:]
    places = np.flatnonzero(several)
    groups = np.cumsum(~repeats)[places]
    arranged = order.copy()
    arranged[places] = order[places][np.lexsort((-txns[order[places]], groups))]
    return arranged
