"""The files of one group that one attempt of a bulk task writes: sorted records in, references out.

A Parquet file has the same columns from its first record to its last. Chunks of records need not: some have erasures,
or partial records, or columns that others lack. So the columns of all chunks so far are kept together, a chunk that
lacks some gets them added, and a chunk that brings new ones begins another file; there are only so many to bring.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ebla.keys import KeyCodec
from ebla.metadata.table_metadata import FragmentRef
from ebla.schema import GroupSchema, TableSchema
from ebla.storage.files import Files
from ebla.storage.fragment_format import FragmentInfo, FragmentLayout
from ebla.storage.fragment_writer import FragmentWriter
from ebla.storage.records import ERASED, ROW, SET
from ebla.tablet.bulk import BulkFragment, new_file

__all__ = ["GroupFiles"]


class GroupFiles:
    """Writes sorted records of one group to files of a job, none of them much larger than `file_bytes_max`."""

    def __init__(
        self,
        files: Files,
        table_id: str,
        schema: TableSchema,
        group: GroupSchema,
        codec: KeyCodec,
        job: str,
        partition: int,
        file_bytes_max: int,
    ) -> None:
        # Set once.
        self._files = files
        self._table_id = table_id
        self._schema = schema
        self._group = group
        self._codec = codec
        self._job = job
        self._partition = partition
        self._file_bytes_max = file_bytes_max
        self._no_columns = FragmentLayout(schema, group, has_txn=False)
        # What goes on.
        self._layout = self._no_columns
        self._writer: FragmentWriter | None = None
        self._number = 0
        self._made: list[BulkFragment] = []

    def write(self, records: pa.RecordBatch, number: int, *, unique: bool) -> None:
        """Add records whose rows come after all that went into the open file, if there is one.

        A file that is begun now gets `number` as the second half of its order.
        """
        layout = self._grown(records)
        if layout != self._layout:
            self._end()
            self._layout = layout
        if self._writer is None:
            path = new_file(self._table_id, self._job)
            self._writer = FragmentWriter(self._files, path, self._table_id, layout, self._codec, unique=True)
            self._number = number
        self._writer.unique &= unique
        self._writer.write(self._conformed(records))
        if self._writer.bytes_written >= self._file_bytes_max:
            self._end()

    def end_file(self) -> None:
        """Make the open file durable, if there is one; the next records begin another, with columns of their own."""
        self._end()
        self._layout = self._no_columns

    def _end(self) -> None:
        if self._writer is None:
            return
        info = self._writer.finish(txn=0)
        self._writer = None
        self._made.append(BulkFragment(self._group.id, self._reference(info), (self._partition, self._number)))

    def finish(self) -> list[BulkFragment]:
        """End the open file and return all of them."""
        self._end()
        return list(self._made)

    def abandon(self) -> None:
        """Remove all files, finished or not, as far as that is possible."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        for made in self._made:
            with contextlib.suppress(OSError):
                self._files.delete(made.fragment.file)
        self._made = []

    def _reference(self, info: FragmentInfo) -> FragmentRef:
        return FragmentRef(
            file=info.file,
            rows=info.rows,
            bytes=info.bytes,
            first=info.first,
            last=info.last,
            txn_min=0,
            txn_max=0,
            schema_version=self._schema.version,
            unique=info.unique,
            has_erasures=info.has_erasures,
            has_partial=info.has_partial,
            tail_bytes=info.tail.size,
            tail_crc=info.tail.crc,
        )

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
        """Return the records with all columns of the layout, in its order."""
        layout = self._layout
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
                named[str(i)] = pa.nulls(count, self._group.column_by_id[i].type)
        if not self._codec.is_simple and "key:0" not in named:
            named.update((f"key:{at}", key) for at, key in enumerate(self._codec.decode_arrays(named[ROW])))
        names = [internal for internal, _ in layout.columns()]
        return pa.RecordBatch.from_arrays([named[name] for name in names], names=names)
