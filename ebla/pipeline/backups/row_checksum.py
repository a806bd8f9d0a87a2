"""A checksum over rows that does not depend on their order, nor on how they were read: what backup and restore compare.

    column --> a 64-bit hash of each value --> of each row --> mixed in two ways, and summed, modulo 2**64

All of it is arithmetic on whole Arrow arrays. A value is hashed as its bits; text and bytes as the sum of their words,
each mixed with its place and their number; lists likewise by their elements, maps by their entries in any order,
structs and rows by their columns one after another. What is null has a hash of its own. The two sums are 32 hexadecimal
digits: that two different sets of rows have the same is as good as impossible, unless somebody wants it.

The format is told in docs/formats/backup.md. It must not change: checksums are in manifests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["RowSum", "add_up", "hashes_of"]

Hashes: TypeAlias = npt.NDArray[np.uint64]

_MODULUS = 1 << 64
# Odd numbers without a pattern: the golden ratio, and the multipliers of a mixer that is known to mix well.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_SEEDS = (np.uint64(0x65626C61), np.uint64(0x726F7773))
_WORD_BYTES = 8
# Text is hashed in portions of so many bytes: each byte takes some more while it is.
_PORTION_BYTES = 8 << 20


class RowSum:
    """The number of rows and their checksum, as far as they were added."""

    def __init__(self, rows: int = 0, sums: tuple[int, int] = (0, 0)) -> None:
        self.rows = rows
        self.sums = sums

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if not batch.num_rows:
            return
        hashes = _combined([hashes_of(column) for column in batch.columns], batch.num_rows)
        totals = (int(np.add.reduce(_mixed(hashes ^ seed), dtype=np.uint64)) for seed in _SEEDS)
        one, two = (before + total for before, total in zip(self.sums, totals, strict=True))
        self.rows += batch.num_rows
        self.sums = (one % _MODULUS, two % _MODULUS)

    @property
    def checksum(self) -> str:
        """The checksum in hexadecimal digits."""
        return "".join(f"{total:016x}" for total in self.sums)


def add_up(parts: Iterable[RowSum]) -> RowSum:
    """Return what the rows of all parts together come to."""
    rows, one, two = 0, 0, 0
    for part in parts:
        rows += part.rows
        one, two = one + part.sums[0], two + part.sums[1]
    return RowSum(rows, (one % _MODULUS, two % _MODULUS))


def hashes_of(values: pa.Array) -> Hashes:
    """Return a hash for each value of an array."""
    kind = values.type
    types = pa.types
    if types.is_dictionary(kind):
        return hashes_of(values.dictionary_decode())
    if types.is_null(kind):
        return np.full(len(values), _NULL, np.uint64)
    if types.is_struct(kind):
        parts = [hashes_of(values.field(at)) for at in range(kind.num_fields)]
        found = _combined(parts, len(values))
    elif types.is_map(kind):
        found = _of_maps(values)
    elif types.is_list(kind) or types.is_large_list(kind):
        found = _of_lists(values)
    elif types.is_fixed_size_list(kind):
        found = _of_lists(values.cast(pa.list_(kind.value_field)))
    elif types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        found = _of_words(_padded(values))
    elif types.is_string(kind) or types.is_binary(kind):
        found = _of_text(values.view(pa.binary()))
    elif (
        types.is_large_string(kind)
        or types.is_large_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    ):
        found = _of_text(values.cast(pa.large_binary()))
    else:
        found = _of_numbers(values)
    if values.null_count:
        found = np.where(np.asarray(values.is_null()), _NULL, found)
    return found


def _mixed(numbers: Hashes) -> Hashes:
    """Spread every bit of each number over all of it."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MIX_1
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MIX_2
    return numbers ^ (numbers >> np.uint64(31))


def _combined(parts: Iterable[Hashes], count: int) -> Hashes:
    found = np.zeros(count, np.uint64)
    for part in parts:
        found = _mixed(found * _STEP + part)
    return found


def _of_numbers(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    widths = {8: (pa.uint8(), np.uint8), 16: (pa.uint16(), np.uint16), 32: (pa.uint32(), np.uint32)}
    arrow, numpy = widths.get(values.type.bit_width, (pa.uint64(), np.uint64))
    bits: Any = values.view(arrow)
    if bits.null_count:
        bits = pc.fill_null(bits, pa.scalar(0, arrow))
    return _mixed(np.asarray(bits, dtype=numpy).astype(np.uint64) + _STEP)


def _padded(values: pa.Array) -> Hashes:
    """Return values of a fixed number of bytes as rows of words, the last one filled up."""
    width = values.type.byte_width
    begin = values.offset * width
    raw = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, begin) if len(values) else b""
    padded = np.zeros((len(values), -(-width // _WORD_BYTES) * _WORD_BYTES), np.uint8)
    padded[:, :width] = np.frombuffer(raw, np.uint8).reshape(len(values), width)
    return padded.view("<u8").astype(np.uint64, copy=False)


def _of_words(words: Hashes) -> Hashes:
    return _combined(list(words.T), len(words))


# --- values of any length ------------------------------------------------------------------------


def _spans(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where each value begins in what holds all of them, and how long it is; what is null is empty."""
    is_large = pa.types.is_large_list(values.type) or pa.types.is_large_binary(values.type)
    kind = np.dtype("<i8") if is_large else np.dtype("<i4")
    offsets = np.frombuffer(values.buffers()[1], kind, len(values) + 1, values.offset * kind.itemsize).astype(np.int64)
    lengths = np.diff(offsets)
    if values.null_count:
        lengths = np.where(np.asarray(values.is_null()), 0, lengths)
    return offsets[:-1], lengths


def _of_text(values: pa.Array) -> Hashes:
    if not len(values):
        return np.zeros(0, np.uint64)
    begins, lengths = _spans(values)
    data = values.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    ends = np.cumsum(lengths)
    found = np.empty(len(values), np.uint64)
    first = 0
    while first < len(values):
        passed = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, passed + _PORTION_BYTES, side="right")))
        found[first:last] = _of_spans(raw, begins[first:last], lengths[first:last])
        first = last
    return found


def _of_spans(raw: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    """Hash spans of bytes, word by word; what a last word has of the next span is put out."""
    first, last = int(begins.min()), int((begins + lengths).max())
    padded = np.concatenate([raw[first:last], np.zeros(_WORD_BYTES, np.uint8)])
    # A word at every byte of it, not only at every eighth.
    anywhere = np.ndarray((len(padded) - _WORD_BYTES + 1,), np.dtype("<u8"), padded, strides=(1,))
    counts = -(-lengths // _WORD_BYTES)
    places = _places(counts) * _WORD_BYTES
    words = anywhere[np.repeat(begins - first, counts) + places].astype(np.uint64, copy=False)
    surplus = np.maximum(places + _WORD_BYTES - np.repeat(lengths, counts), 0).astype(np.uint64) * np.uint64(8)
    words = (words << surplus) >> surplus
    return _summed(words, counts, lengths)


def _places(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return 0, 1, 2, ... anew for each length."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _summed(
    numbers: Hashes, counts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], *, ordered: bool = True
) -> Hashes:
    """Return one hash for every so many numbers, each of which counts with its place if they are `ordered`."""
    if ordered:
        numbers = numbers + (_places(counts).astype(np.uint64) + np.uint64(1)) * _STEP
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mixed(numbers), dtype=np.uint64)])
    ends = np.cumsum(counts)
    return _mixed(totals[ends] - totals[ends - counts] + lengths.astype(np.uint64) * _MIX_2 + _STEP)


def _of_lists(values: pa.Array) -> Hashes:
    if not len(values):
        return np.zeros(0, np.uint64)
    begins, lengths, inner = _inside(values)
    elements = hashes_of(values.values.slice(inner.start, len(inner)))
    return _summed(elements[np.repeat(begins, lengths) + _places(lengths)], lengths, lengths)


def _of_maps(values: pa.Array) -> Hashes:
    if not len(values):
        return np.zeros(0, np.uint64)
    begins, lengths, inner = _inside(values)
    parts = [hashes_of(part.slice(inner.start, len(inner))) for part in (values.keys, values.items)]
    entries = _combined(parts, len(inner))
    return _summed(entries[np.repeat(begins, lengths) + _places(lengths)], lengths, lengths, ordered=False)


def _inside(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], range]:
    """Return where each list begins and how long it is, within the elements of all of them; and where these are."""
    begins, lengths = _spans(values)
    first = int(begins[0])
    return begins - first, lengths, range(first, max(first, int((begins + lengths).max())))
