"""The Parquet file of a fragment while it is open: its footer, its readers, and blocks decoded out of it.

It keeps the parsed footer and a few idle Parquet readers, one for each thread that reads at a time. Columns are found
by field id, so that a file written before a rename is read under today's schema. Damage of any kind comes out as
`Corruption` with the file's name, a missing file as `MissingFile`.
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ebla.errors import Closed, Corruption, FormatTooNew, MissingFile, TooManyFiles
from ebla.storage.files.files import Files
from ebla.storage.fragment.bloom import bitset_of
from ebla.storage.fragment.fragment_format import FIELD_ID, FOOTER_KEY, FORMAT_VERSION, Footer, Tail
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE

__all__ = ["FieldTypes", "FragmentFile"]

# What Parquet's metadata take in memory for a column of a block, as was measured.
CHUNK_BYTES = 650

_OWN = (FAMILY, QUALIFIER, TIMESTAMP, TXN, ERASED, SET)


class FieldTypes:
    """Types that columns have by now, by field id as text. Immutable.

    Clones share files, and each may give a column a type of its own under the same version of its schema. So what is
    read of a file is told apart by the types themselves: `key` says them.
    """

    __slots__ = ("key", "types")

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self.types = types
        self.key = ", ".join(f"{field_id}: {kind}" for field_id, kind in sorted(types.items()))


class FragmentFile:
    """An open Parquet file that is a fragment. Safe to use from several threads."""

    def __init__(
        self,
        files: Files,
        path: str,
        constant_txn: int | None = None,
        tail: Tail | None = None,
        types: FieldTypes | None = None,
    ) -> None:
        """`types` has the columns that got other types since the file was written, by field id: they are cast."""
        # Set once.
        self.path = path
        self.txn = constant_txn
        self._files = files
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._users = 0
        self._is_closed = False
        with self._damage():
            self._source = self._open_source()
        try:
            self._read_all_but_blocks(tail, types)
        except BaseException:
            self._source.close()  # the error may be kept, and with it all that led to it
            raise

    def _read_all_but_blocks(self, tail: Tail | None, types: FieldTypes | None) -> None:
        """Read the footer and what is known by it."""
        with self._damage():
            if tail is not None:
                tail.check(self.path, self._source)
            reader = _reader_of(self._source)
            self._metadata: pq.FileMetaData = reader.metadata
            self.footer = self._read_footer()
            names = _internal_names(reader.schema_arrow, self.footer)
            # Not by the schema of Parquet's metadata: the two would refer to each other, and stay until the collector
            # comes. Ebla's own columns, none of which is nested, stand before the values.
            places = {name: at for at, name in enumerate(reader.schema_arrow.names)}
            self._types = self.written_types()
        self._physical = {internal: physical for physical, internal in names}
        if types is not None:
            self._types.update((self._physical[i], kind) for i, kind in types.types.items() if i in self._physical)
        if not self.footer.block_rows or self._metadata.num_row_groups != len(self.footer.block_rows):
            raise Corruption(self.path, "its footer does not list its row groups")
        self.names = frozenset(self._physical)
        self._row_column = places[self._physical[ROW]]
        self._txn_column = places.get(self._physical.get(TXN, ""))
        self._block_names = [name for name in self._physical if not name.startswith("key:")]
        self.rows: int = self._metadata.num_rows
        self.block_bytes: int = self._metadata.row_group(0).total_byte_size  # of the first, and about of the others
        chunks = self._metadata.num_row_groups * self._metadata.num_columns
        # What is kept of the file while it is open, about.
        self.footer_bytes: int = CHUNK_BYTES * chunks + self._metadata.serialized_size
        # Guarded by _lock.
        self._idle: list[pq.ParquetFile] = [reader]

    def close(self) -> None:
        """Close the file, or let the last of those who read it at this moment do so; nothing is read after that."""
        with self._lock:
            self._is_closed = True
            is_in_use = self._users > 0
        if not is_in_use:
            self._let_go()

    def _closed_meanwhile(self) -> None:
        """Close the file if that was asked for while it was read."""
        if self._is_closed:
            self._let_go()

    def _let_go(self) -> None:
        self._idle.clear()
        self._source.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the file open within the block; `Closed` if it is not."""
        with self._lock:
            if self._is_closed:
                raise Closed("the store was closed: open it again")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                is_left = not self._users
            if is_left:
                self._closed_meanwhile()

    def _open_source(self) -> pa.NativeFile:
        try:
            return self._files.open_input(self.path)
        except FileNotFoundError:
            raise MissingFile(f"the fragment {self.path} is not there: restore it from a backup") from None

    def _read_footer(self) -> Footer:
        raw = (self._metadata.metadata or {}).get(FOOTER_KEY.encode())
        if raw is None:
            raise Corruption(self.path, "a Parquet file, but not a fragment of Ebla")
        footer = msgspec.json.decode(raw, type=Footer)
        if footer.format_version > FORMAT_VERSION:
            raise FormatTooNew(f"{self.path} has format {footer.format_version}: open it with a newer version of Ebla")
        return footer

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except TooManyFiles:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, StopIteration) as error:
            raise Corruption(self.path, str(error).splitlines()[0] if str(error) else repr(error)) from error

    # --- what is known of it ---

    def physical_name(self, internal: str) -> str:
        """Return the name that a column has in the file."""
        return self._physical[internal]

    def written_types(self) -> dict[str, pa.DataType]:
        """Return the types that columns were written with, as far as it is known, by their names in the file.

        Parquet has no seconds and no date64, and gives others in their place.
        """
        raw = (self._metadata.metadata or {}).get(b"ARROW:schema")
        if raw is None:
            return {}
        return {field.name: field.type for field in pa.ipc.read_schema(pa.py_buffer(b64decode(raw)))}

    def txn_span(self, block: int) -> tuple[int, int]:
        """Return the smallest and the largest txn of a block, as Parquet has noted them; those of the file if not."""
        if self.txn is not None:
            return self.txn, self.txn
        assert self._txn_column is not None, "records that do not share a txn have a column for it"
        noted = self._metadata.row_group(block).column(self._txn_column).statistics
        if noted is None or not noted.has_min_max:
            return self.footer.txn_min or 0, self.footer.txn_max or 0
        return int(noted.min), int(noted.max)

    # --- reading ---

    def read_blocks(self, begin: int, end: int, names: Sequence[str]) -> pa.Table:
        """Decode blocks begin to end with the columns `names`, under their internal names, past the cache."""
        wanted = [name for name in names if name in self._physical]
        physical = list(dict.fromkeys(self._physical[name] for name in wanted))
        with self._reader() as reader, self._damage():
            table = reader.read_row_groups(list(range(begin, end)), columns=physical, use_threads=False)
            return self._renamed(table, wanted)

    def _renamed(self, table: pa.Table, wanted: Sequence[str]) -> pa.Table:
        arrays = []
        for name in wanted:
            physical = self._physical[name]
            column = table.column(physical)
            kind = pa.binary() if name == ROW else self._types.get(physical, column.type)
            arrays.append(column if column.type == kind else column.cast(kind))
        return pa.Table.from_arrays(arrays, names=list(wanted))

    def decode(self, begin: int, end: int) -> pa.RecordBatch:
        """Decode blocks begin to end with all columns but those of the key, which the row says, as one batch."""
        return self.read_blocks(begin, end, self._block_names).combine_chunks().to_batches()[0]

    def read_bloom(self, number: int) -> bytes:
        """Return the bits of the bloom filter of a block; none if the file has none."""
        column = self._metadata.row_group(number).column(self._row_column)
        offset, length = column.bloom_filter_offset, column.bloom_filter_length
        if offset is None or not length:
            return b""
        with self._in_use(), self._damage():
            return bitset_of(self._source.read_at(length, offset))

    @contextmanager
    def _reader(self) -> Iterator[pq.ParquetFile]:
        with self._in_use():
            with self._lock:
                reader = self._idle.pop() if self._idle else None
            if reader is None:
                reader = _reader_of(self._source, self._metadata)
            yield reader
            with self._lock:
                self._idle.append(reader)


def _reader_of(source: pa.NativeFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Return a reader of a file, whose metadata need not be read again where they are known.

    It does not read ahead: that is done by eight threads of Arrow's own. For a local file they gain nothing, and each
    of them keeps the memory that it has read into.
    """
    return pq.ParquetFile(source, metadata=metadata, pre_buffer=False, page_checksum_verification=True)


def _internal_names(schema: pa.Schema, footer: Footer) -> list[tuple[str, str]]:
    """Return (name in the file, internal name) for every column of the file."""
    has_row = ROW in schema.names
    is_cells = footer.layout == "cells"
    value_ids = {str(i) for i in footer.columns.values()}
    names = []
    for field in schema:
        number = (field.metadata or {}).get(FIELD_ID, b"").decode()
        if field.name == ROW:
            names.append((field.name, ROW))
        elif number and (number in value_ids and not is_cells):
            names.append((field.name, number))
        elif number:
            names.append((field.name, f"key:{number}" if has_row else ROW))
        elif field.name in _OWN or (is_cells and field.name == VALUE):
            names.append((field.name, field.name))
    return names
