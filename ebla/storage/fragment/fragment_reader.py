"""Reading a fragment: find the blocks of a row or a range, decode them, give them their internal names.

An open fragment keeps the parsed footer and a few idle Parquet readers, one for each thread that reads at a time.
Columns are found by field id, so that a file written before a rename is read under today's schema. Damage of any kind
comes out as `Corruption` with the file's name, a missing file as `MissingFile`.
"""

from __future__ import annotations

import threading
import weakref
from base64 import b64decode
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebla.errors import Closed, Corruption, EblaError, FormatTooNew, MissingFile, TooManyFiles
from ebla.model.order import Words, common_prefix_length, key_words, lower_bound, upper_bound, word_of
from ebla.model.ranges import successor
from ebla.storage.cache.block_cache import BlockCache, Key
from ebla.storage.files.files import Files
from ebla.storage.fragment.bloom import bitset_of, key_hash, may_contain
from ebla.storage.fragment.fragment_format import FIELD_ID, FOOTER_KEY, FORMAT_VERSION, Footer, Tail
from ebla.storage.fragment.stretch import Stretches, neighbours_at, places_of
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE, Block, Run

# From so many keys on, an index of all rows of a file is made for a look-up of many; not for files larger than this.
INDEX_KEYS_MIN = 32
INDEX_ROWS_MAX = 4_000_000
# The index of a file is kept unless it takes more than this part of the cache.
INDEX_CACHE_SHARE = 8
WORD_BYTES = 8
# What Parquet's metadata take in memory for a column of a block, as was measured.
CHUNK_BYTES = 650
# Files are closed, least recently used first, while the footers of those that are open take more than this, and more
# than half of the block cache; a few stay open.
FOOTER_BYTES_MAX = 64 << 20
OPEN_MIN = 8

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
        # Set once.
        self.file = file
        self._cached_as: Key = (file,) if types is None else (file, types.key)
        self._files = files
        self._cache = cache
        self._txn = constant_txn
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
        file, cache = self.file, self._cache
        with self._damage():
            if tail is not None:
                tail.check(file, self._source)
            reader = _reader_of(self._source)
            self._metadata: pq.FileMetaData = reader.metadata
            self.footer = self._read_footer()
            names = _internal_names(reader.schema_arrow, self.footer)
            # Not by the schema of Parquet's metadata: the two would refer to each other, and stay until the collector
            # comes. Ebla's own columns, none of which is nested, stand before the values.
            places = {name: at for at, name in enumerate(reader.schema_arrow.names)}
            self._types = _written_types(self._metadata)
        self._physical = {internal: physical for physical, internal in names}
        if types is not None:
            self._types.update((self._physical[i], kind) for i, kind in types.types.items() if i in self._physical)
        self._internal = dict(names)
        if not self.footer.block_rows or self._metadata.num_row_groups != len(self.footer.block_rows):
            raise Corruption(file, "its footer does not list its row groups")
        self.names = frozenset(self._physical)
        self._row_column = places[self._physical[ROW]]
        self._txn_column = places.get(self._physical.get(TXN, ""))
        self._block_names = [name for name in self._physical if not name.startswith("key:")]
        block_bytes = self._metadata.row_group(0).total_byte_size
        self.record_bytes = block_bytes // max(1, self.footer.block_rows[0])  # about
        # Neither this nor what it puts into the cache may hold on to the fragment: it has megabytes of its own.
        self._stretches = Stretches(
            self._cached_as, cache, self.footer.block_rows, block_bytes, _decoder_of(self), self._block_maker()
        )
        chunks = self._metadata.num_row_groups * self._metadata.num_columns
        # What is kept of the file while it is open, about.
        self.footer_bytes: int = CHUNK_BYTES * chunks + self._metadata.serialized_size
        self._skip = common_prefix_length(self.footer.first, self.footer.last)
        self._inner: list[int] | None = None  # found when first asked for
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
            return self._files.open_input(self.file)
        except FileNotFoundError:
            raise MissingFile(f"the fragment {self.file} is not there: restore it from a backup") from None

    def _read_footer(self) -> Footer:
        raw = (self._metadata.metadata or {}).get(FOOTER_KEY.encode())
        if raw is None:
            raise Corruption(self.file, "a Parquet file, but not a fragment of Ebla")
        footer = msgspec.json.decode(raw, type=Footer)
        if footer.format_version > FORMAT_VERSION:
            raise FormatTooNew(f"{self.file} has format {footer.format_version}: open it with a newer version of Ebla")
        return footer

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except TooManyFiles:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, StopIteration) as error:
            raise Corruption(self.file, str(error).splitlines()[0] if str(error) else repr(error)) from error

    # --- where things are ---

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
        return self._physical[internal]

    def written_types(self) -> dict[str, pa.DataType]:
        """Return the types that columns were written with, as far as it is known, by their names in the file."""
        return _written_types(self._metadata)

    def txn_span(self, block: int) -> tuple[int, int]:
        """Return the smallest and the largest txn of a block, as Parquet has noted them; those of the file if not."""
        if self._txn is not None:
            return self._txn, self._txn
        assert self._txn_column is not None, "records that do not share a txn have a column for it"
        noted = self._metadata.row_group(block).column(self._txn_column).statistics
        if noted is None or not noted.has_min_max:
            return self.footer.txn_min or 0, self.footer.txn_max or 0
        return int(noted.min), int(noted.max)

    def blocks_of(self, first: bytes, last: bytes | None) -> tuple[int, int]:
        """Return begin and end of the blocks that may hold rows in [first, last)."""
        starts = self.footer.block_first
        # A row with many records may begin in the block before the one that starts with it.
        begin = max(0, bisect_left(starts, first) - 1)
        end = len(starts) if last is None else bisect_left(starts, last)
        return begin, max(begin, end)

    def has_wholly(self, block: int, first: bytes, last: bytes | None) -> bool:
        """Tell whether all rows of a block are certainly in [first, last)."""
        starts = self.footer.block_first
        if starts[block] < first:
            return False
        if last is None:
            return True
        return starts[block + 1] < last if block + 1 < len(starts) else self.footer.last < last

    def outer_blocks(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return stretches of blocks begin to end without those that lie wholly within a row, the first of it aside.

        They are all that a reader needs who wants the newest record of each row.
        """
        inner = self._inner
        if inner is None:
            starts = self.footer.block_first
            ends = [*starts[1:], self.footer.last]
            inner = self._inner = [
                number for number in range(1, len(starts)) if starts[number - 1] == starts[number] == ends[number]
            ]
        stretches = []
        for number in inner[bisect_left(inner, begin) : bisect_left(inner, end)]:
            if begin < number:
                stretches.append((begin, number))
            begin = number + 1
        return [*stretches, (begin, end)] if begin < end else stretches

    # --- reading ---

    def read_range(self, first: bytes, last: bytes | None, names: Sequence[str], *, newest: bool = False) -> Run | None:
        """Return the records in [first, last) with the columns `names` (those that the file has), or None.

        `newest` leaves out blocks in which no record is the newest of its row.
        """
        begin, end = self.blocks_of(first, last)
        while begin < end and self._block_before(begin, first):
            begin += 1
        if begin >= end:
            return None
        cut = not (self.has_wholly(begin, first, last) and self.has_wholly(end - 1, first, last))
        wanted = list(names) if not cut or ROW in names else [ROW, *names]
        if newest:
            parts = [self.read_blocks(*stretch, wanted) for stretch in self.outer_blocks(begin, end)]
            table = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
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

    def _block_before(self, block: int, first: bytes) -> bool:
        """Tell whether all rows of a block are certainly less than `first`."""
        starts = self.footer.block_first
        return block + 1 < len(starts) and starts[block + 1] < first

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

    def _decode(self, begin: int, end: int) -> pa.RecordBatch:
        return self.read_blocks(begin, end, self._block_names).combine_chunks().to_batches()[0]

    def _block_maker(self) -> Callable[[pa.RecordBatch, int | None], Block]:
        txn, txn_min, txn_max, unique = self._txn, self.footer.txn_min, self.footer.txn_max, self.footer.unique

        def of_block(records: pa.RecordBatch, bytes_known: int | None) -> Block:
            return Block(records, txn=txn, txn_min=txn_min, txn_max=txn_max, unique=unique, bytes_known=bytes_known)

        return of_block

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
        if self.footer.unique and end - begin >= INDEX_KEYS_MIN and self._metadata.num_rows <= INDEX_ROWS_MAX:
            found = self._find_by_index(rows if end - begin == len(rows) else rows.slice(begin, end - begin), columns)
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
        words: Words | None = self._cache.get((self.file, "rows"), is_last=False) if self.footer.unique else None
        if words is None:
            return None
        begin = int(words.searchsorted(np.uint64(word_of(rows[0].as_py(), self._skip))))
        end = begin + len(rows)
        if end > len(words) or int(words[end - 1]) != word_of(rows[-1].as_py(), self._skip):
            return None
        records = self._stretches.slice(begin, end, None)
        return Run(records, self._txn) if records.column(ROW).equals(rows) else None

    def _find_by_index(self, rows: pa.Array, columns: Sequence[str] | None) -> list[Run] | None:
        """Find many rows at once in an index of all rows of the file, for files with one record per row or cell.

        None if too many rows share their word in the index.
        """
        words, first = self._row_index(self._skip, rows)
        asked = key_words(rows, self._skip)
        wanted = columns if columns is None or ROW in columns else [ROW, *columns]
        records: pa.RecordBatch | None = None
        begin = neighbours_at(words, asked)
        if begin is not None:
            records = self._stretches.slice(first + begin, first + begin + len(rows), wanted)
            if not records.column(ROW).equals(rows):
                records = None  # rows share words: these stand at the place of others, and must be looked for
        if records is None:
            found = places_of(words, asked)
            if found is None:
                return None
            which, places = found
            if not len(places):
                return []
            sought = rows if which is None else rows.take(pa.array(which))
            records = self._stretches.take(places + first, wanted)
            if not records.column(ROW).equals(sought):
                # Some rows share their word, and others than those asked for came along.
                records = records.filter(pc.equal(records.column(ROW), sought))
        if wanted != columns:
            records = records.select(columns)
        return [Run(records, self._txn)] if records.num_rows else []

    def _row_index(self, skip: int, rows: pa.Array) -> tuple[Words, int]:
        """Return the words of the rows of the file, from a place on, among which those of `rows` are.

        They are those of the whole file, which are kept; or, where they would fill a small cache and are asked for in
        a part of the file only, just those of that part.
        """
        key = (self.file, "rows")
        words: Words | None = self._cache.get(key)
        if words is not None:
            return words, 0
        blocks = len(self.footer.block_rows)
        begin, end = 0, blocks
        is_kept = self._metadata.num_rows * WORD_BYTES <= self._cache.bytes_max // INDEX_CACHE_SHARE
        if not is_kept:
            begin, end = self.blocks_of(rows[0].as_py(), successor(rows[-1].as_py()))
        table = self.read_blocks(begin, end, [ROW])
        words = np.concatenate([key_words(chunk, skip) for chunk in table.column(0).chunks])
        if is_kept:
            self._cache.put(key, words, words.nbytes)
        return words, sum(self.footer.block_rows[:begin])

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

    def may_contain(self, number: int, hashed: int) -> bool:
        """Ask the bloom filter of a block; False is certain."""
        key = (self.file, number, "bloom")
        bits = self._cache.get(key)
        if bits is None:
            bits = self._read_bloom(number)
            self._cache.put(key, bits, len(bits) + 64)
        return not bits or may_contain(bits, hashed)

    def _read_bloom(self, number: int) -> bytes:
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


class OpenFragments:
    """The fragments that are open, least recently used closed first. Safe to use from several threads."""

    def __init__(self, files: Files, cache: BlockCache, open_max: int) -> None:
        self.cache = cache
        self.explain: Callable[[str, MissingFile], EblaError] = lambda file, error: error  # why a file is not there
        self._files = files
        self._open_max = open_max
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._open: OrderedDict[tuple[str, int | None, str], Fragment] = OrderedDict()
        self._footer_bytes = 0
        self._used: set[str] = set()
        self._alive: weakref.WeakSet[Fragment] = weakref.WeakSet()  # some are read on after they are not among these
        self._is_closed = False

    def close(self) -> None:
        """Close all files, also those that somebody still has: he finds them closed."""
        with self._lock:
            self._is_closed = True
            alive = [*self._alive]
            self._open.clear()
            self._count(-self._footer_bytes)
        for fragment in alive:
            fragment.close()

    def find(self, file: str, constant_txn: int | None = None, types: str = "") -> Fragment | None:
        """Return a fragment if it is open; `types` is the key of the types that it was opened with."""
        key = (file, constant_txn, types)
        with self._lock:
            found = self._open.get(key)
            self._used.add(file)
            if found is not None:
                self._open.move_to_end(key)
            return found

    def take_used(self) -> set[str]:
        """Return the files that were asked for since the last time that this was asked."""
        with self._lock:
            used, self._used = self._used, set()
        return used

    def forget(self, files: Collection[str]) -> None:
        """Let go of fragments that were replaced; whoever still reads one keeps it open."""
        with self._lock:
            for key in [key for key in self._open if key[0] in files]:
                self._count(-self._open.pop(key).footer_bytes)

    def get(
        self,
        file: str,
        constant_txn: int | None = None,
        tail: Tail | None = None,
        types: FieldTypes | None = None,
    ) -> Fragment:
        """Return an open fragment, opening it if it is not, and then checking its end."""
        types_key = "" if types is None else types.key
        found = self.find(file, constant_txn, types_key)
        if found is not None:
            return found
        key = (file, constant_txn, types_key)
        try:
            fragment = Fragment(self._files, file, self.cache, constant_txn, tail, types)
        except MissingFile as error:
            raise self.explain(file, error) from None
        with self._lock:
            if self._is_closed:
                fragment.close()
                raise Closed("the store was closed: open it again")
            self._alive.add(fragment)
            known = self._open.get(key)
            if known is not None:
                return known
            self._open[key] = fragment
            self._count(fragment.footer_bytes)
            while len(self._open) > self._open_max or self._footers_are_large():
                self._count(-self._open.popitem(last=False)[1].footer_bytes)
        return fragment

    def _count(self, footer_bytes: int) -> None:
        """Count a footer in, or out. The lock is held."""
        self._footer_bytes += footer_bytes
        self.cache.reserve(footer_bytes)

    def _footers_are_large(self) -> bool:
        footer_bytes_max = max(FOOTER_BYTES_MAX, self.cache.bytes_max // 2)
        return len(self._open) > OPEN_MIN and self._footer_bytes > footer_bytes_max


def _decoder_of(fragment: Fragment) -> Callable[[int, int], pa.RecordBatch]:
    """Return what decodes blocks of a fragment while somebody has it."""
    weak = weakref.ref(fragment)

    def decode(begin: int, end: int) -> pa.RecordBatch:
        alive = weak()
        assert alive is not None, "blocks are asked for through the fragment"
        return alive._decode(begin, end)

    return decode


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


def _written_types(metadata: pq.FileMetaData) -> dict[str, pa.DataType]:
    """Return the types that the columns were written with: Parquet has no seconds and no date64, and gives others."""
    raw = (metadata.metadata or {}).get(b"ARROW:schema")
    if raw is None:
        return {}
    return {field.name: field.type for field in pa.ipc.read_schema(pa.py_buffer(b64decode(raw)))}


def _chunked_lower_bound(rows: pa.ChunkedArray, row: bytes) -> int:
    passed = 0
    for chunk in rows.chunks:
        if len(chunk) and chunk[-1].as_py() >= row:
            return passed + lower_bound(chunk, row)
        passed += len(chunk)
    return passed
