"""Writing one sorted run of records as fragments side by side, none of them much larger than it may be.

A Parquet file has the same columns from its first record to its last. Chunks of records need not: some have erasures,
or partial records, or columns that others lack. So the columns of all chunks so far are kept together, a chunk that
lacks some gets them added, and a chunk that brings new ones begins another file; there are only so many to bring.

What is loaded or compacted is written once and scanned often, by Spark too, which pays for every row group: unless the
table says how large its blocks are, they are larger here than in what is flushed. Single rows that are asked for again
and again have lookup files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ebla.model.declaration import default_block_bytes
from ebla.model.keys import KeyCodec
from ebla.model.schema import GroupSchema, TableSchema
from ebla.storage.files.files import Files
from ebla.storage.fragment.fragment_format import FragmentInfo, FragmentLayout
from ebla.storage.fragment.fragment_writer import FragmentWriter
from ebla.storage.record.records import ERASED, ROW, SET

__all__ = ["FragmentRun", "block_bytes_of", "conformed"]

# With blocks of 256 KiB, TPC-H took Spark a quarter more processor time than plain Parquet; with 1 MiB 7 % more, with
# 16 MiB 3 %. A row that is in no cache costs 1.7 times as much with 1 MiB, until its lookup file is there.
BLOCK_BYTES = 1 << 20


class FragmentRun:
    """Writes sorted records of one group. `new_path` is asked for a name as each file begins.

    With `txn`, the files have no `_txn` column: it is the txn of all their records.
    """

    def __init__(
        self,
        files: Files,
        new_path: Callable[[], str],
        table_id: str,
        schema: TableSchema,
        group: GroupSchema,
        codec: KeyCodec,
        file_bytes_max: int,
        *,
        txn: int | None = None,
        topped: bool = False,
    ) -> None:
        # Set once.
        self._files = files
        self._new_path = new_path
        self._table_id = table_id
        self._schema = schema
        self._group = group
        self._codec = codec
        self._file_bytes_max = file_bytes_max
        self._txn = txn
        self._topped = topped
        self._no_columns = FragmentLayout(schema, group, has_txn=txn is None)
        # What goes on.
        self._layout = self._no_columns
        self._writer: FragmentWriter | None = None
        self._written: list[FragmentInfo] = []

    def write(self, records: pa.RecordBatch, *, unique: bool, surplus: int = 0) -> None:
        """Add records, of which no row is in the open file, and all sort after it."""
        layout = self._grown(records)
        if layout != self._layout:
            self._end()
            self._layout = layout
        if self._writer is None:
            path = self._new_path()
            self._writer = FragmentWriter(
                self._files, path, self._table_id, layout, self._codec, unique=True, block_bytes=block_bytes_of(layout)
            )
        self._writer.unique &= unique
        self._writer.surplus += surplus
        self._writer.topped = self._topped
        self._writer.write(self._conformed(records))
        if self._writer.bytes_written >= self._file_bytes_max:
            self._end()

    def end_file(self) -> None:
        """Make the open file durable, if there is one; the next records begin another, with columns of their own."""
        self._end()
        self._layout = self._no_columns

    def _end(self) -> None:
        if self._writer is not None:
            self._written.append(self._writer.finish(self._txn))
            self._writer = None

    def finish(self) -> list[FragmentInfo]:
        """Make everything durable and return what was written."""
        self._end()
        return list(self._written)

    def abandon(self) -> None:
        """Remove all files, finished or not, as far as that is possible. Nothing may name them."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        for info in self._written:
            with contextlib.suppress(OSError):
                self._files.delete(info.file)
        self._written = []

    # --- columns ---

    def _grown(self, records: pa.RecordBatch) -> FragmentLayout:
        """Return the layout that has all columns so far and those of `records`."""
        now = self._layout
        own = FragmentLayout.of(self._schema, self._group, records)
        ids = tuple(c.id for c in self._group.columns if c.id in now.value_ids or c.id in own.value_ids)
        # Records that are all erasures have no values, and need not say which they set.
        sets_fewer = bool(own.value_ids) and len(own.value_ids) < len(ids)
        return replace(
            now,
            value_ids=ids,
            has_erased=now.has_erased or own.has_erased,
            has_set=now.has_set or own.has_set or sets_fewer,
        )

    def _conformed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if not self._codec.is_simple and "key:0" not in records.schema.names:
            for at, key in enumerate(self._codec.decode_arrays(records.column(ROW))):
                records = records.append_column(f"key:{at}", key)
        return conformed(records, self._layout)


def block_bytes_of(layout: FragmentLayout) -> int:
    """Return how large the blocks of a run are: as its group says, if it says something else than by default."""
    group = layout.group
    is_default = group.block_bytes == default_block_bytes(group.compression)
    return BLOCK_BYTES if is_default and not group.is_cells else group.block_bytes


def conformed(records: pa.RecordBatch, layout: FragmentLayout) -> pa.RecordBatch:
    """Return records with all columns of a layout, in its order: what they do not have they do not set.

    Of the key columns, which the writer adds, they have those that they had.
    """
    named = dict(zip(records.schema.names, records.columns, strict=True))
    count = records.num_rows
    if layout.has_set:
        own = [i for i in layout.value_ids if str(i) in named]
        text = " ".join(map(str, sorted(own)))
        if SET not in named:
            said = text if own and len(own) < len(layout.value_ids) else None
            named[SET] = pa.array([said], pa.string()).take(pa.array(np.zeros(count, dtype=np.int64)))
        elif len(own) < len(layout.value_ids):
            named[SET] = named[SET].fill_null(text)
    if layout.has_erased and ERASED not in named:
        named[ERASED] = pa.array(np.zeros(count, dtype=np.bool_))
    for i in layout.value_ids:
        if str(i) not in named:
            named[str(i)] = pa.nulls(count, layout.group.column_by_id[i].type)
    names = [internal for internal, _ in layout.columns() if internal in named]
    return pa.RecordBatch.from_arrays([named[name] for name in names], names=names)
