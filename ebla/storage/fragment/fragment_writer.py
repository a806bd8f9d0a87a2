"""Writing a fragment: sorted records in, one Parquet file out, synced with its directory before anybody may name it.

Row groups are the blocks that a read fetches, so they are cut by bytes, a few hundred KiB to a MiB each. The first row
of every block goes into the footer, where a reader finds a row's block without looking at Parquet's own statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebla.model.casts import is_text
from ebla.model.keys import KeyCodec
from ebla.storage.files.files import Files, WritableFile, parent_of
from ebla.storage.fragment.fragment_format import FOOTER_KEY, FORMAT_VERSION, Footer, FragmentInfo, FragmentLayout, Tail
from ebla.storage.merge.arrange import concat
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN

BLOCK_ROWS_MAX = 1 << 20
BLOOM_FALSE_POSITIVES = 0.01
SAMPLE_ROWS = 2_000
# Parquet writes page by page; the file gets so many bytes at once. In between, no call comes back to Python, where it
# would have to wait for the interpreter, and those who use it for this one.
WRITE_BYTES = 1024 * 1024
# So many blocks are handed to Parquet at once, for the same reason.
BLOCKS_AT_ONCE = 16


class FragmentWriter:
    """Writes one fragment. Records come in order through `write`; `finish` makes the file durable.

    Left without `finish`, the file is closed and removed as far as that is possible. Until then `unique` may be
    lowered, and `surplus` (records that are not the first of their identity) and `topped` (topping.py) set.
    Blocks have about `block_bytes`, those of the group unless it is given.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        table: str,
        layout: FragmentLayout,
        codec: KeyCodec,
        *,
        unique: bool,
        block_bytes: int | None = None,
    ) -> None:
        self._files = files
        self._path = path
        self._table = table
        self._layout = layout
        self._codec = codec
        self._block_bytes = layout.group.block_bytes if block_bytes is None else block_bytes
        self.unique = unique
        self.surplus = 0
        self.topped = False
        self._columns = layout.columns()
        self._schema = pa.schema([f for _, f in self._columns])
        self._sink = FragmentSink(files.create(path))
        self._stream = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), WRITE_BYTES)
        self._writer: pq.ParquetWriter | None = None
        self._block_rows = 0
        self._pending: pa.Table | None = None
        self._first: list[bytes] = []
        self._rows: list[int] = []
        self._last = b""
        self._txn_min: int | None = None
        self._txn_max: int | None = None
        self._families: set[str] = set()
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._is_whole:
            self.abandon()

    @property
    def bytes_written(self) -> int:
        """The size of the file so far; what is not enough for a block is not in it yet."""
        return int(self._stream.tell())

    def write(self, records: pa.RecordBatch | pa.Table) -> None:
        """Add records that sort after all that were written before.

        They may have key columns (``key:0``, ``key:1``, ...) in their exact types: then they are not decoded.
        """
        if not records.num_rows:
            return
        table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
        if self._writer is None:
            self._start(table)
        if self._pending is not None:
            table = pa.concat_tables([self._pending, table])
        whole = table.num_rows // self._block_rows * self._block_rows
        step = self._block_rows * BLOCKS_AT_ONCE
        for begin in range(0, whole, step):
            self._write_blocks(table.slice(begin, min(step, whole - begin)))
        # A copy: the little that is left would keep all that it came with in memory until more is written.
        self._pending = _copied(table.slice(whole)) if whole < table.num_rows else None

    def finish(self, txn: int | None = None, defer: Callable[[Callable[[], None]], None] | None = None) -> FragmentInfo:
        """Write what is left and the footer, sync file and directory, and return what a reference needs.

        `txn` is the txn of all records where the file has no `_txn` column. `defer` is given what syncs, to be called
        later and by any thread: until then nobody may name the file.
        """
        if self._pending is not None:
            self._write_blocks(self._pending)
            self._pending = None
        assert self._writer is not None, "a fragment holds at least one record"
        txn_min = self._txn_min if txn is None else txn
        txn_max = self._txn_max if txn is None else txn
        assert txn_min is not None
        assert txn_max is not None
        self._writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(self._footer()).decode()})
        self._writer.close()
        self._stream.flush()
        self._sink.flush()
        size = self._sink.tell()
        if defer is None:
            self._settle()
        tail = tail_of(self._files, self._path, size)
        self._is_whole = True
        if defer is not None:
            defer(self._settle)
        return FragmentInfo(
            self._path,
            sum(self._rows),
            size,
            self._first[0],
            self._last,
            txn_min,
            txn_max,
            self.unique,
            self._layout.has_erased,
            self._layout.has_set,
            tail,
            self.surplus,
            self.topped,
        )

    def _settle(self) -> None:
        """Make the file and its name durable."""
        self._sink.make_durable()
        self._sink.close()
        self._files.sync_directory(parent_of(self._path))

    def abandon(self) -> None:
        """Close and remove an unfinished file. Nothing names it, so what cannot be removed is only garbage."""
        if self._writer is not None:
            self._writer.is_open = False  # or it tries to write its footer when it is collected
        self._sink.close()
        try:
            self._files.delete(self._path)
        except OSError:
            return

    def _footer(self) -> Footer:
        layout = self._layout
        by_id = layout.group.column_by_id
        return Footer(
            format_version=FORMAT_VERSION,
            table=self._table,
            group=layout.group.id,
            layout=layout.group.layout,
            rows=sum(self._rows),
            first=self._first[0],
            last=self._last,
            txn_min=self._txn_min,
            txn_max=self._txn_max,
            unique=self.unique,
            has_erasures=layout.has_erased,
            has_partial=layout.has_set,
            columns={by_id[i].name: i for i in layout.value_ids},
            families=sorted(self._families),
            block_first=self._first,
            block_rows=self._rows,
        )

    def _start(self, sample: pa.Table) -> None:
        group = self._layout.group
        row_bytes = max(1, sample.nbytes // sample.num_rows)
        self._block_rows = min(BLOCK_ROWS_MAX, max(1, self._block_bytes // row_bytes))
        row_at = self._schema.get_field_index(self._layout.row_name)
        delta = {name: "DELTA_BINARY_PACKED" for name in (TXN, TIMESTAMP) if name in self._schema.names}
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression=group.compression,
            use_dictionary=self._dictionary_columns(sample),
            column_encoding=delta or None,
            write_page_checksum=True,
            write_statistics=self._with_statistics(),
            sorting_columns=self._sorting(row_at),
            bloom_filter_options={
                self._layout.row_name: {"ndv": min(self._block_rows, sample.num_rows), "fpp": BLOOM_FALSE_POSITIVES}
            },
            store_schema=True,
        )

    def _with_statistics(self) -> list[str]:
        """Return the columns whose least and greatest values are noted for each block: all but text and nested values.

        Footers are kept in memory, and those two values of texts were most of what they took on disk.
        """
        own = {self._layout.row_name, FAMILY, QUALIFIER, TIMESTAMP, TXN}
        return [
            field.name
            for internal, field in self._columns
            if field.name in own
            or internal.startswith("key:")
            or not (pa.types.is_nested(field.type) or is_text(field.type) or internal in (ERASED, SET))
        ]

    def _sorting(self, row_at: int) -> list[pq.SortingColumn]:
        sorting = [pq.SortingColumn(row_at)]
        names = self._schema.names
        if self._layout.group.is_cells:
            sorting += [pq.SortingColumn(names.index(n), nulls_first=True) for n in (FAMILY, QUALIFIER)]
            sorting.append(pq.SortingColumn(names.index(TIMESTAMP), descending=True))
        if self._layout.has_txn:
            sorting.append(pq.SortingColumn(names.index(TXN), descending=True))
        return sorting

    def _dictionary_columns(self, sample: pa.Table) -> list[str]:
        """Choose the columns that are worth a dictionary: few different values in a sample of rows."""
        sample = sample.slice(0, SAMPLE_ROWS)
        chosen = [name for name in (FAMILY, QUALIFIER, SET) if name in self._schema.names]
        for internal, field in self._columns:
            kind = field.type
            if internal not in sample.schema.names or internal in (ROW, TXN, TIMESTAMP, ERASED, *chosen):
                continue
            if pa.types.is_nested(kind) or pa.types.is_boolean(kind):
                continue
            if pc.count_distinct(sample.column(internal)).as_py() * 2 <= sample.num_rows:
                chosen.append(field.name)
        return chosen

    def _write_blocks(self, blocks: pa.Table) -> None:
        """Write blocks that are full, but for the last."""
        assert self._writer is not None
        rows = concat(blocks.column(ROW).chunks)
        begins = range(0, len(rows), self._block_rows)
        self._first += [rows[begin].as_py() for begin in begins]
        self._rows += [min(self._block_rows, len(rows) - begin) for begin in begins]
        self._last = rows[-1].as_py()
        if self._layout.has_txn:
            span = pc.min_max(blocks.column(TXN))
            low, high = span["min"].as_py(), span["max"].as_py()
            self._txn_min = low if self._txn_min is None else min(low, self._txn_min)
            self._txn_max = high if self._txn_max is None else max(high, self._txn_max)
        if self._layout.group.is_cells:
            self._families.update(f for f in pc.unique(blocks.column(FAMILY)).to_pylist() if f is not None)
        has_keys = self._layout.schema.has_simple_key or "key:0" in blocks.schema.names
        keys = [] if has_keys else self._codec.decode_arrays(rows)
        arrays = []
        for internal, field in self._columns:
            if internal == ROW:
                arrays.append(rows if rows.type == field.type else rows.cast(field.type))
            elif internal.startswith("key:") and not has_keys:
                arrays.append(keys[int(internal[4:])])
            else:
                arrays.append(blocks.column(internal))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=self._block_rows)


def _copied(table: pa.Table) -> pa.Table:
    columns = [pa.concat_arrays([column.chunk(0).slice(0, 0), *column.chunks]) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def tail_of(files: Files, path: str, size: int) -> Tail:
    """Return what is known of the end of a fragment that was just written, of so many bytes."""
    with files.open_input(path) as source:
        metadata = pq.read_metadata(source)
        last = metadata.row_group(metadata.num_row_groups - 1)
        columns = [last.column(i) for i in range(metadata.num_columns)]
        pages_end = max((c.dictionary_page_offset or c.data_page_offset) + c.total_compressed_size for c in columns)
        return Tail(size - pages_end, google_crc32c.value(source.read_at(size - pages_end, pages_end)))


class FragmentSink:
    """A new file as `pa.PythonFile` wants it."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._file.closed

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        # What is left in the buffer of an abandoned file comes when the buffer is collected, and is of no use.
        return len(data) if self._file.closed else self._file.write(data)

    def flush(self) -> None:
        """Have all of the file where it can be read; only `make_durable` makes it last."""
        if not self._file.closed:
            self._file.flush()

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._file.tell()

    def make_durable(self) -> None:
        """Sync the file."""
        self._file.sync()

    def close(self) -> None:
        """Close the file; what was not made durable is lost."""
        self._file.close()
