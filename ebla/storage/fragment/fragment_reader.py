"""Reading a fragment: find the blocks of a row or a range, and the records in them.

A `Fragment` is asked for rows and ranges. It knows from the footer which blocks may hold them, asks their bloom
filters, and takes decoded blocks from the cache. fragment_file.py opens, decodes and names; stretch.py keeps what was
decoded; row_index.py finds many rows at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import pyarrow as pa

from ebla.model.order import lower_bound, upper_bound
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files
from ebla.storage.fragment.bloom import key_hash, may_contain
from ebla.storage.fragment.fragment_file import FieldTypes, FragmentFile
from ebla.storage.fragment.fragment_format import Footer, Tail
from ebla.storage.fragment.row_index import RowIndex
from ebla.storage.fragment.stretch import Stretches
from ebla.storage.record.records import ROW, Block, Run

__all__ = ["Fragment"]


class Fragment:
    """An open fragment file. Safe to use from several threads."""

    def __init__(
        self,
        files: Files,
        file: str,
        cache: BlockCache,
        constant_txn: int | None = None,
        tail: Tail | None = None,
        types: FieldTypes | None = None,
    ) -> None:
        """`types` has the columns that got other types since the file was written, by field id: they are cast."""
        # All set once.
        self.file = file
        self._cache = cache
        self._file = FragmentFile(files, file, constant_txn, tail, types)
        self._txn = constant_txn
        self.footer = self._file.footer
        self.names = self._file.names
        self.footer_bytes = self._file.footer_bytes
        self.record_bytes = self._file.block_bytes // max(1, self.footer.block_rows[0])  # about
        # Nothing that this puts into the cache may hold on to the file: it has megabytes of its own.
        self._stretches = Stretches(
            (file,) if types is None else (file, types.key),
            cache,
            self.footer.block_rows,
            self._file.block_bytes,
            self._file.decode,
            _block_maker(self.footer, constant_txn),
        )
        self._index = RowIndex(self._file, cache, self._stretches)

    def close(self) -> None:
        """Close the file, or let the last of those who read it at this moment do so; nothing is read after that."""
        self._file.close()

    # --- what is known of it ---

    @property
    def first_rows(self) -> Sequence[bytes]:
        """The first row of every block."""
        return self.footer.block_first

    @property
    def block_rows(self) -> Sequence[int]:
        """The number of records of every block."""
        return self.footer.block_rows

    def physical_name(self, internal: str) -> str:
        """Return the name that a column has in the file."""
        return self._file.physical_name(internal)

    def written_types(self) -> dict[str, pa.DataType]:
        """Return the types that columns were written with, as far as it is known, by their names in the file."""
        return self._file.written_types()

    def txn_span(self, block: int) -> tuple[int, int]:
        """Return the smallest and the largest txn of a block, as Parquet has noted them; those of the file if not."""
        return self._file.txn_span(block)

    def blocks_of(self, first: bytes, last: bytes | None) -> tuple[int, int]:
        """Return begin and end of the blocks that may hold rows in [first, last)."""
        return self.footer.blocks_of(first, last)

    def outer_blocks(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the spans of blocks begin to end without those in which no record is the newest of its row."""
        return self.footer.outer_blocks(begin, end)

    # --- ranges ---

    def read_blocks(self, begin: int, end: int, names: Sequence[str]) -> pa.Table:
        """Decode blocks begin to end with the columns `names`, under their internal names, past the cache."""
        return self._file.read_blocks(begin, end, names)

    def read_range(self, first: bytes, last: bytes | None, names: Sequence[str], *, newest: bool = False) -> Run | None:
        """Return the records in [first, last) with the columns `names` (those that the file has), or None.

        `newest` leaves out blocks in which no record is the newest of its row.
        """
        begin, end = self.footer.blocks_of(first, last)
        while begin < end and self.footer.is_before(begin, first):
            begin += 1
        if begin >= end:
            return None
        cut = not (self.footer.has_wholly(begin, first, last) and self.footer.has_wholly(end - 1, first, last))
        wanted = list(names) if not cut or ROW in names else [ROW, *names]
        if newest:
            tables = [self.read_blocks(*span, wanted) for span in self.footer.outer_blocks(begin, end)]
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        else:
            table = self.read_blocks(begin, end, wanted)
        if cut:
            rows = table.column(ROW)
            low = _chunked_lower_bound(rows, first)
            high = len(rows) if last is None else _chunked_lower_bound(rows, last)
            if low >= high:
                return None
            table = table.slice(low, high - low)
            if wanted != list(names):
                table = table.drop_columns([ROW])
        return Run(table, self._txn)

    def row_after(self, first: bytes, rows: int) -> bytes | None:
        """Return the row that about so many rows lie before, from `first` on, or the first row of a block near it.

        None if there are no more than that. At most two blocks are decoded. Versions of a row count as rows.
        """
        starts, counts = self.footer.block_first, self.footer.block_rows
        number = max(0, bisect_right(starts, first) - 1)
        block = self.block(number)
        at = block.lower_bound(first) + rows * block.cells_per_row
        if at >= len(block):
            at -= len(block)
            number += 1
            if number >= len(starts) or at >= counts[number]:
                return starts[number + 1] if number + 1 < len(starts) else None
            block = self.block(number)
        found: bytes = block.rows[at].as_py()
        return found

    # --- blocks ---

    def block(self, number: int) -> Block:
        """Return a block with all its columns, decoded, from the cache or the file."""
        return self._stretches.block(number)

    def cached_block(self, number: int) -> Block | None:
        """Return a block if it is cached; if not, that is no miss."""
        return self._stretches.block(number) if self._stretches.holds(number) else None

    @property
    def is_cached(self) -> bool:
        """Whether the file is one whose blocks are kept in memory, and all of them are there."""
        return self._cache.is_kept(self.file) and all(
            self._stretches.holds(number) for number in range(len(self.footer.block_rows))
        )

    def may_contain(self, number: int, hashed: int) -> bool:
        """Ask the bloom filter of a block; False is certain."""
        key = (self.file, number, "bloom")
        bits = self._cache.get(key)
        if bits is None:
            bits = self._file.read_bloom(number)
            self._cache.put(key, bits, len(bits) + 64)
        return not bits or may_contain(bits, hashed)

    # --- rows ---

    def find(self, row: bytes, hashed: Callable[[], int], *, newest: bool = False) -> list[tuple[Block, int, int]]:
        """Return the places of the records of one row. `hashed` gives the row's bloom hash, if it is asked for.

        With `newest`, the place of its newest record is enough.
        """
        starts = self.footer.block_first
        end = bisect_right(starts, row)
        begin = max(0, bisect_left(starts, row) - 1)
        found = []
        for number in range(begin, end):
            block = self._stretches.cached_block(number)
            if block is None:
                if not self.may_contain(number, hashed()):
                    continue
                block = self.block(number)
            low, high = block.find(row)
            if low < high:
                if newest:
                    return [(block, low, low + 1)]
                found.append((block, low, high))
        return found

    def find_many(self, rows: pa.Array, names: Sequence[str] | None = None) -> list[Run]:
        """Return the records of many rows, which are sorted and each once; of the columns, `names` or all."""
        begin, end = 0, len(rows)
        if not end:
            return []
        if rows[0].as_py() < self.footer.first:
            begin = lower_bound(rows, self.footer.first)
        if rows[-1].as_py() > self.footer.last:
            end = upper_bound(rows, self.footer.last, begin)
        if begin >= end:
            return []
        columns = None if names is None else [name for name in names if name in self.names]
        if self._index.is_worth_asking(end - begin):
            found = self._index.find(rows if end - begin == len(rows) else rows.slice(begin, end - begin), columns)
            if found is not None:
                return found
        keys: list[bytes] = rows.to_pylist()
        starts = self.footer.block_first
        runs = []
        while begin < end:
            number = bisect_right(starts, keys[begin]) - 1
            stop = end if number + 1 == len(starts) else bisect_left(keys, starts[number + 1], begin, end)
            stop = max(stop, begin + 1)
            # A row with many records may begin in blocks before the one that starts with it.
            low = max(0, bisect_left(starts, keys[begin]) - 1) if starts[number] == keys[begin] else number
            for block in range(low, number + 1):
                run = self._find_in_block(block, rows, keys, begin, stop)
                if run is not None:
                    runs.append(run if columns is None else Run(run.records.select(columns), run.txn))
            begin = stop
        return runs

    def find_neighbours(self, rows: pa.Array) -> Run | None:
        """Return the records of rows that are just those from one to another in this file, in order; None if not.

        To find that out is quick where the index of the file is at hand, and is not tried where it is not.
        """
        return self._index.find_neighbours(rows) if self.footer.unique else None

    def _find_in_block(self, number: int, rows: pa.Array, keys: Sequence[bytes], begin: int, end: int) -> Run | None:
        block = self._stretches.cached_block(number)
        if block is None:
            if not any(self.may_contain(number, key_hash(key)) for key in keys[begin:end]):
                return None
            block = self.block(number)
        begin = bisect_left(keys, block.first, begin, end)
        end = bisect_right(keys, block.last, begin, end)
        if begin == end:
            return None
        if end - begin == 1:
            low, high = block.find(keys[begin])
            return Run(block.records.slice(low, high - low), block.txn) if low < high else None
        places = block.find_many(rows.slice(begin, end - begin))
        return Run(block.records.take(pa.array(places)), block.txn) if len(places) else None


def _block_maker(footer: Footer, txn: int | None) -> Callable[[pa.RecordBatch, int | None], Block]:
    txn_min, txn_max, unique = footer.txn_min, footer.txn_max, footer.unique

    def of_block(records: pa.RecordBatch, bytes_known: int | None) -> Block:
        return Block(records, txn=txn, txn_min=txn_min, txn_max=txn_max, unique=unique, bytes_known=bytes_known)

    return of_block


def _chunked_lower_bound(rows: pa.ChunkedArray, row: bytes) -> int:
    passed = 0
    for chunk in rows.chunks:
        if len(chunk) and chunk[-1].as_py() >= row:
            return passed + lower_bound(chunk, row)
        passed += len(chunk)
    return passed
