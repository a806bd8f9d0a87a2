"""Records: the one shape in which rows are kept, in memory, in the log and on disk.

A batch of records of one group is an Arrow record batch with these columns, sorted as they are listed:

    _row                              the encoded key
    family, qualifier, _ts (desc)     in cells groups
    _txn (desc)                       absent where the whole batch has one txn, which then stands beside it
    _erased                           absent where nothing is erased
    _set                              in columns groups: the field ids that a record sets; null or absent: all present
    "17", "18", ... or value          the values: by field id in columns groups, `value` in cells groups

In cells groups a null family erases the whole row, a null qualifier the whole family; nulls sort first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.order import Indices, Words, common_prefix_length, key_words, tell_apart, word_of

ROW = "_row"
FAMILY = "family"
QUALIFIER = "qualifier"
TIMESTAMP = "_ts"
TXN = "_txn"
ERASED = "_erased"
SET = "_set"
VALUE = "value"

TIMESTAMP_MAX = (1 << 63) - 1
# By the id of the type: comparing types themselves costs more than the rest of what it is for.
_TEXT = frozenset(kind.id for kind in (pa.binary(), pa.string()))
_FIXED_BYTES = {
    kind.id: width
    for kind, width in ((pa.int64(), 8), (pa.float64(), 8), (pa.int32(), 4), (pa.float32(), 4), (pa.bool_(), 1))
}
NOT_VALUES = frozenset((ROW, FAMILY, QUALIFIER, TIMESTAMP, TXN, ERASED, SET))


def value_names(records: pa.RecordBatch | pa.Table) -> list[str]:
    """Return the names of the value columns of `records`."""
    return [name for name in records.schema.names if name not in NOT_VALUES]


def size_bytes(records: pa.RecordBatch) -> int:
    """Return about how many bytes the records take. Arrow's own count is exact, and slow for short batches."""
    total = 0
    rows = records.num_rows
    for column in records.columns:
        kind = column.type.id
        if kind in _TEXT and rows:
            offsets = np.frombuffer(column.buffers()[1], np.int32, rows + 1, 4 * column.offset)
            total += int(offsets[rows]) - int(offsets[0]) + 4 * rows
        elif kind in _FIXED_BYTES:
            total += rows * _FIXED_BYTES[kind]
        else:
            total += column.nbytes
    return total


@lru_cache(maxsize=1024)
def schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as the bytes that the log keeps of it. Making them costs more than writing a row does."""
    serialized: bytes = schema.serialize().to_pybytes()
    return serialized


class Run:
    """A sorted slice of records on its way into a merge, with the txn of all of them if they share one."""

    __slots__ = ("records", "txn")

    def __init__(self, records: pa.RecordBatch | pa.Table, txn: int | None = None) -> None:
        self.records = records
        self.txn = txn

    def __len__(self) -> int:
        return int(self.records.num_rows)

    def column(self, name: str) -> pa.Array | None:
        """Return one column as a single array, or None if the run does not have it."""
        at = self.records.schema.get_field_index(name)
        if at < 0:
            return None
        column = self.records.column(at)
        if not isinstance(column, pa.ChunkedArray):
            return column
        # Arrow would copy the only chunk.
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def txns(self) -> npt.NDArray[np.int64]:
        """Return the txn of every record."""
        if self.txn is not None:
            return np.full(len(self), self.txn, dtype=np.int64)
        column = self.column(TXN)
        assert column is not None, "a run without one txn for all has a _txn column"
        txns: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
        return txns


class Block:
    """An immutable sorted batch of records in memory that can be searched by row.

    Memory fragments are made of blocks, and so is what the block cache holds of a file. `index` says, for a block in
    memory, up to which log index it holds its tablet's writes.
    """

    __slots__ = (
        "_columns",
        "_fields",
        "_per_row",
        "_set_codes",
        "_skip",
        "_tops",
        "_word_view",
        "_words",
        "bytes",
        "first",
        "has_erasures",
        "has_partial",
        "index",
        "last",
        "records",
        "rows",
        "txn",
        "txn_max",
        "txn_min",
        "unique",
    )

    def __init__(
        self,
        records: pa.RecordBatch,
        *,
        txn: int | None = None,
        txn_min: int | None = None,
        txn_max: int | None = None,
        unique: bool = False,
        index: int = 0,
        bytes_known: int | None = None,
    ) -> None:
        assert records.num_rows, "a block holds at least one record"
        self.records = records
        self.txn = txn
        if txn is not None:
            self.txn_min = self.txn_max = txn
        elif txn_min is not None and txn_max is not None:
            self.txn_min, self.txn_max = txn_min, txn_max
        else:
            txns = records.column(TXN).to_numpy(zero_copy_only=False)
            self.txn_min, self.txn_max = int(txns.min()), int(txns.max())
        self.rows: pa.Array = records.column(ROW)
        self.first: bytes = self.rows[0].as_py()
        self.last: bytes = self.rows[-1].as_py()
        names = records.schema.names
        self.has_erasures = ERASED in names
        self.has_partial = SET in names
        self.unique = unique
        self.index = index
        self.bytes: int = (records.nbytes if bytes_known is None else bytes_known) + 16 * records.num_rows
        self._columns: dict[str, pa.Array] | None = None
        self._fields: frozenset[str] | None = None
        self._per_row = 0
        self._set_codes: tuple[Indices, int] | None = None
        self._skip = 0
        self._tops: Indices | None = None
        self._words: Words | None = None
        self._word_view: memoryview | None = None

    def __len__(self) -> int:
        return int(self.records.num_rows)

    def narrowed(self, names: Collection[str]) -> Block:
        """Return the block with these value columns alone in `columns`. It shares all else with this one."""
        narrow = Block.__new__(Block)
        for slot in Block.__slots__:
            setattr(narrow, slot, getattr(self, slot))
        narrow._columns = {name: c for name, c in self.columns.items() if name in NOT_VALUES or name in names}
        return narrow

    @property
    def fields(self) -> frozenset[str]:
        """The value columns that it has, by field id."""
        if self._fields is None:
            self._fields = frozenset(value_names(self.records))
        return self._fields

    @property
    def cells_per_row(self) -> int:
        """How many records of cells a row has here, on average; 1 for records of columns."""
        if not self._per_row:
            is_cells = FAMILY in self.records.schema.names
            self._per_row = -(-len(self) // int(pc.count_distinct(self.rows).as_py())) if is_cells else 1
        return self._per_row

    @property
    def columns(self) -> dict[str, pa.Array]:
        """The columns by name."""
        columns = self._columns
        if columns is None:
            columns = self._columns = dict(zip(self.records.schema.names, self.records.columns, strict=True))
        return columns

    @property
    def set_codes(self) -> tuple[Indices, int]:
        """A number for each record that says which columns it sets, and how many such numbers there are.

        Erasures have one of their own, for none stands for a record that sets nothing.
        """
        known = self._set_codes
        if known is None:
            encoded = self.columns[SET].dictionary_encode()
            count = len(encoded.dictionary)
            codes = pc.fill_null(encoded.indices, count).to_numpy(zero_copy_only=False)
            count += bool(encoded.null_count)  # null: all columns
            if self.has_erasures:
                erased = pc.fill_null(self.columns[ERASED], False).to_numpy(zero_copy_only=False)
                codes, count = np.where(erased, count, codes), count + 1
            known = self._set_codes = codes, count
        return known

    @property
    def words(self) -> Words:
        """The rows as numbers for binary search, after the prefix that all rows of the block share."""
        words = self._words
        if words is None:
            self._skip = common_prefix_length(self.first, self.last)
            words = self._words = key_words(self.rows, self._skip)
        return words

    def find(self, row: bytes) -> tuple[int, int]:
        """Return the begin and end of the records of `row`; begin equals end where there are none."""
        if row < self.first or row > self.last:
            return 0, 0
        if self.first == self.last:
            return 0, len(self)
        view = self._word_view
        if view is None:
            view = self._word_view = self.words.data
        word = word_of(row, self._skip)
        # Quicker than numpy for one row: it has no array to make of what is looked for.
        begin = bisect_left(view, word)
        if begin == len(view) or view[begin] != word:
            return begin, begin
        end = begin + 1
        if end < len(view) and view[end] == word:
            end = bisect_right(view, word, end)
            if self.row_at(begin) != row or self.row_at(end - 1) != row:  # else it is one row many times
                tied = range(begin, end)
                end = begin + bisect_right(tied, row, key=self.row_at)
                begin += bisect_left(tied, row, key=self.row_at)
        elif self.rows[begin].as_py() != row:
            end = begin
        return begin, end

    def find_many(self, rows: pa.Array) -> Indices:
        """Return the places of the records of all `rows`, which are sorted and lie between `first` and `last`."""
        words = self.words
        asked = key_words(rows, self._skip)
        begin = words.searchsorted(asked)
        count = words.searchsorted(asked, "right") - begin
        if not tell_apart(count):
            return np.flatnonzero(pc.is_in(self.rows, value_set=rows).to_numpy(zero_copy_only=False))
        which = np.repeat(np.arange(len(asked)), count)
        within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        places: Indices = begin[which] + within
        same = pc.equal(self.rows.take(pa.array(places)), rows.take(pa.array(which)))
        found: Indices = places[same.to_numpy(zero_copy_only=False)]
        return found

    def lower_bound(self, row: bytes) -> int:
        """Return the place of the first record whose row is not less than `row`."""
        if row <= self.first:
            return 0
        if row > self.last:
            return len(self)
        view = self._word_view
        if view is None:
            view = self._word_view = self.words.data
        word = word_of(row, self._skip)
        begin = bisect_left(view, word)
        if view[begin] != word or self.row_at(begin) >= row:
            return begin
        end = bisect_right(view, word, begin)
        return begin + bisect_left(range(begin, end), row, key=self.row_at)

    @property
    def tops(self) -> Indices:
        """The places of the first record of every row, and of all erasures."""
        tops = self._tops
        if tops is None:
            is_top = np.ones(len(self), dtype=np.bool_)
            others = pc.not_equal(self.rows.slice(1), self.rows.slice(0, len(self) - 1))
            is_top[1:] = others.to_numpy(zero_copy_only=False)
            if self.has_erasures:
                is_top |= pc.fill_null(self.columns[ERASED], False).to_numpy(zero_copy_only=False)
            tops = self._tops = np.flatnonzero(is_top)
        return tops

    def row_at(self, place: int) -> bytes:
        """Return the row of the record at a place."""
        row: bytes = self.rows[place].as_py()
        return row

    def slice_range(self, first: bytes, last: bytes | None) -> Run | None:
        """Return the records with rows in [first, last), or None if there are none."""
        begin = self.lower_bound(first)
        end = len(self) if last is None else self.lower_bound(last)
        if begin >= end:
            return None
        whole = begin == 0 and end == len(self)
        return Run(self.records if whole else self.records.slice(begin, end - begin), self.txn)

    def count_range(self, first: bytes, last: bytes | None) -> int:
        """Return how many records have rows in [first, last)."""
        return max(0, (len(self) if last is None else self.lower_bound(last)) - self.lower_bound(first))

    def count_tops(self, first: bytes, last: bytes | None) -> int:
        """Return how many records with rows in [first, last) are the first of their row, or erasures."""
        begin = self.lower_bound(first)
        end = len(self) if last is None else self.lower_bound(last)
        return max(0, int(self.tops.searchsorted(end) - self.tops.searchsorted(begin)))

    def slice_newer(self, first: bytes, last: bytes | None, after: int, as_of: int) -> Run | None:
        """Return the records with rows in [first, last) and txns from behind `after` to `as_of`, or None."""
        if self.txn_min > after and self.txn_max <= as_of:
            return self.slice_range(first, last)
        begin = self.lower_bound(first)
        end = len(self) if last is None else self.lower_bound(last)
        if begin >= end or self.txn is not None:
            return None
        txns = self.columns[TXN].to_numpy(zero_copy_only=False)[begin:end]
        found = np.flatnonzero((txns > after) & (txns <= as_of))
        return Run(self.records.take(pa.array(found + begin))) if len(found) else None

    def slice_tops(self, first: bytes, last: bytes | None, share_max: float) -> Run | None:
        """Return of the records with rows in [first, last) the first of each row, and all erasures.

        All records, if those are more than `share_max` of them: then it is quicker to merge all.
        """
        tops = self.tops
        begin = self.lower_bound(first)
        end = len(self) if last is None else self.lower_bound(last)
        if begin >= end:
            return None
        within = tops[tops.searchsorted(begin) : tops.searchsorted(end)]
        if len(within) > share_max * (end - begin):
            return Run(self.records.slice(begin, end - begin), self.txn)
        return Run(self.records.take(pa.array(within)), self.txn)
