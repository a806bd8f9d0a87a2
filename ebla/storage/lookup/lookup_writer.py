"""Writing a lookup file: the records of a fragment in, blocks of rows out.

    tables of records --> whole rows --> encoded rows --> blocks --> file

What it writes is not synced: whatever a crash leaves of it is told by its checksums, and made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.model.order import Indices, Words, common_prefix_length, key_words, key_words_from
from ebla.storage.files.files import Files, WritableFile
from ebla.storage.lookup.lookup_format import BLOCK_BYTES, FORMAT_VERSION, About, checksum, lookup_path, pack_end
from ebla.storage.lookup.row_encoding import EncodedRows, encode_rows
from ebla.storage.record.records import ROW

__all__ = ["write_lookup"]

_WORD_BYTES = 8


def write_lookup(
    files: Files, fragment: str, fragment_bytes: int, tables: Iterable[pa.Table], fields: pa.Schema, skip: int
) -> int:
    """Write the lookup file of a fragment, in the place of one that may be there; return its bytes.

    `tables` have its records in order, of which `fields` are laid out: they can be encoded. All rows begin with the
    same `skip` bytes. `OSError` if it cannot be written: then nothing is left of it.
    """
    path = lookup_path(fragment)
    unfinished = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        files.delete(unfinished)  # of a process that was killed while it wrote
    try:
        with files.create(unfinished) as file:
            writer = _LookupWriter(file, fields, skip)
            for records in _whole_rows(tables):
                writer.write(records)
            written = writer.finish(fragment, fragment_bytes)
        files.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.delete(unfinished)
        raise
    return written


def _whole_rows(tables: Iterable[pa.Table]) -> Iterable[pa.RecordBatch]:
    """Yield the records of tables so that those of a row come together."""
    rest: pa.Table | None = None
    for table in tables:
        if rest is not None:
            table = pa.concat_tables([rest, table])
        records = table.combine_chunks().to_batches()[0]
        rows = records.column(ROW)
        last = rows[-1]
        end = records.num_rows - 1
        step = 1
        while end > 0 and rows[end - 1] == last:  # by leaps, for it may have a million records
            low = max(0, end - step)
            end, step = (low, step * 2) if rows[low] == last else (end - 1, 1)
        rest = pa.Table.from_batches([records.slice(end)])
        if end:
            yield records.slice(0, end)
    if rest is not None:
        yield rest.combine_chunks().to_batches()[0]


class _LookupWriter:
    """Writes blocks to a file, and remembers what the index says of them."""

    def __init__(self, file: WritableFile, fields: pa.Schema, skip: int) -> None:
        # Set once.
        self._file = file
        self._fields = fields
        self._skip = skip
        # What it has written.
        self._rows = 0
        self._words: list[Words] = []
        self._ends: list[Indices] = [np.zeros(1, dtype=np.int64)]
        self._checksums: list[int] = []
        self._last_rows: list[bytes] = []

    def write(self, records: pa.RecordBatch) -> None:
        """Write records: all that there are of their rows."""
        encoded = encode_rows(records, self._fields.names)
        rows = records.column(ROW).take(pa.array(encoded.firsts))
        lasts = _last_of_blocks(encoded.ends)
        last_rows = rows.take(pa.array(lasts))
        blocks, ends = _laid_out(encoded, rows, lasts)
        view = blocks.data
        begins = [0, *ends[:-1].tolist()]
        self._checksums += [checksum(view[a:b]) for a, b in zip(begins, ends.tolist(), strict=True)]
        self._words.append(key_words(last_rows, self._skip))
        self._last_rows += last_rows.to_pylist()
        self._ends.append(ends + self._ends[-1][-1])
        self._rows += len(rows)
        self._file.write(view)

    def finish(self, fragment: str, fragment_bytes: int) -> int:
        """Write the index; return the bytes of all."""
        about = About(
            FORMAT_VERSION, fragment, fragment_bytes, self._fields.serialize().to_pybytes(), self._skip, self._rows
        )
        words = np.concatenate(self._words) if self._words else np.zeros(0, dtype=np.uint64)
        checksums = np.array(self._checksums, dtype=np.uint64)
        self._file.write(pack_end(words, np.concatenate(self._ends), checksums, self._last_rows, about))
        self._file.flush()
        return self._file.tell()


def _last_of_blocks(ends: Indices) -> Indices:
    """Return the places of the last row of every block, given where rows end."""
    number = (ends - 1) // BLOCK_BYTES
    return np.append(np.flatnonzero(number[1:] != number[:-1]), len(ends) - 1)


def _laid_out(encoded: EncodedRows, rows: pa.Array, lasts: Indices) -> tuple[npt.NDArray[np.uint8], Indices]:
    """Return the bytes of blocks, and where in them each ends."""
    counts = np.diff(lasts, prepend=-1)
    first_rows, last_rows = rows.take(pa.array(lasts + 1 - counts)).to_pylist(), rows.take(pa.array(lasts)).to_pylist()
    skips = np.array([common_prefix_length(a, b) for a, b in zip(first_rows, last_rows, strict=True)], dtype=np.int64)
    row_ends = encoded.ends[lasts]
    row_begins = np.concatenate([[0], row_ends[:-1]])
    heads = 2 * counts + 3  # in words
    sizes = _WORD_BYTES * heads + row_ends - row_begins
    padded = -(-sizes // _WORD_BYTES) * _WORD_BYTES
    ends = np.cumsum(padded)
    begins = ends - padded
    out = np.zeros(int(ends[-1]), dtype=np.uint8)
    numbers = out.view("<u8")
    at = begins // _WORD_BYTES
    numbers[at] = counts
    numbers[at + 1] = skips
    block = np.repeat(np.arange(len(lasts)), counts)
    within = np.arange(len(rows)) - np.repeat(lasts + 1 - counts, counts)
    numbers[at[block] + 2 + within] = key_words_from(rows, skips[block])
    moved = _WORD_BYTES * heads - row_begins  # from a place in the rows to one in the block
    numbers[at + 2 + counts] = _WORD_BYTES * heads
    numbers[at[block] + 3 + counts[block] + within] = encoded.ends + moved[block]
    data = np.frombuffer(encoded.data, dtype=np.uint8)
    starts = begins + _WORD_BYTES * heads
    for start, begin, end in zip(starts.tolist(), row_begins.tolist(), row_ends.tolist(), strict=True):
        out[start : start + end - begin] = data[begin:end]
    return out, ends
