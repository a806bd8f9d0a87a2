"""The fragment file: an ordinary Parquet file with a fixed choice of columns and one footer entry of Ebla's own.

Columns, in this order: the key columns under their own names; `_row`, the encoded key, unless the key is one binary or
string column, which then is its own encoding; in cells groups `family`, `qualifier` and `_ts`; `_txn`, `_erased`,
`_set` where used; the values. Every column that the schema numbers carries its field id. See docs/formats/fragment.md.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import google_crc32c
import msgspec
import pyarrow as pa

from ebla.errors import Corruption
from ebla.model.schema import GroupSchema, TableSchema
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE

# `FragmentInfo` has a field called `bytes`, which hides the type inside the class.
RowBytes: TypeAlias = bytes

FORMAT_VERSION = 1
FOOTER_KEY = "ebla.fragment"
FIELD_ID = b"PARQUET:field_id"


class Footer(msgspec.Struct, frozen=True, dict=True):
    """What a fragment says about itself, as JSON under the key `ebla.fragment` (bytes in base64)."""

    format_version: int
    table: str
    group: int
    layout: str
    rows: int
    first: bytes
    last: bytes
    txn_min: int | None
    txn_max: int | None
    unique: bool
    has_erasures: bool
    has_partial: bool
    columns: dict[str, int]
    families: list[str]
    block_first: list[bytes]
    block_rows: list[int]

    def blocks_of(self, first: bytes, last: bytes | None) -> tuple[int, int]:
        """Return begin and end of the blocks that may hold rows in [first, last)."""
        starts = self.block_first
        # A row with many records may begin in the block before the one that starts with it.
        begin = max(0, bisect_left(starts, first) - 1)
        end = len(starts) if last is None else bisect_left(starts, last)
        return begin, max(begin, end)

    def is_before(self, block: int, first: bytes) -> bool:
        """Tell whether all rows of a block are certainly less than `first`."""
        starts = self.block_first
        return block + 1 < len(starts) and starts[block + 1] < first

    def has_wholly(self, block: int, first: bytes, last: bytes | None) -> bool:
        """Tell whether all rows of a block are certainly in [first, last)."""
        starts = self.block_first
        if starts[block] < first:
            return False
        if last is None:
            return True
        return starts[block + 1] < last if block + 1 < len(starts) else self.last < last

    def outer_blocks(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the spans of blocks begin to end without those that lie wholly within a row, the first of it aside.

        They are all that a reader needs who wants the newest record of each row.
        """
        inner = self._inner_blocks
        spans = []
        for number in inner[bisect_left(inner, begin) : bisect_left(inner, end)]:
            if begin < number:
                spans.append((begin, number))
            begin = number + 1
        return [*spans, (begin, end)] if begin < end else spans

    @cached_property
    def _inner_blocks(self) -> list[int]:
        starts = self.block_first
        ends = [*starts[1:], self.last]
        return [number for number in range(1, len(starts)) if starts[number - 1] == starts[number] == ends[number]]


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a fragment behind its pages, bloom filters and footer, which Parquet itself does not protect."""

    size: int
    crc: int

    def check(self, file: str, source: pa.NativeFile) -> None:
        """Raise `Corruption` unless the file ends as it was written."""
        size = source.size()
        if size < self.size or google_crc32c.value(source.read_at(self.size, size - self.size)) != self.crc:
            raise Corruption(file, "its footer or bloom filters are not what was written", max(0, size - self.size))


@dataclass(frozen=True, slots=True)
class FragmentInfo:
    """What is known of a fragment once it is written: all that a reference to it says."""

    file: str
    rows: int
    bytes: int
    first: RowBytes
    last: RowBytes
    txn_min: int
    txn_max: int
    unique: bool
    has_erasures: bool
    has_partial: bool
    tail: Tail
    surplus: int = 0
    topped: bool = False


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """Which of the possible columns a file has: decided before its first row is written."""

    schema: TableSchema
    group: GroupSchema
    value_ids: tuple[int, ...] = ()
    has_txn: bool = True
    has_erased: bool = False
    has_set: bool = False

    @classmethod
    def of(cls, schema: TableSchema, group: GroupSchema, records: pa.RecordBatch) -> FragmentLayout:
        """Return the layout for records that all have the columns of `records`."""
        names = set(records.schema.names)
        ids = () if group.is_cells else tuple(c.id for c in group.columns if str(c.id) in names)
        return cls(schema, group, ids, TXN in names, ERASED in names, SET in names)

    @property
    def row_name(self) -> str:
        """The name of the column that sorts the file."""
        return self.schema.key[0].name if self.schema.has_simple_key else ROW

    def columns(self) -> list[tuple[str, pa.Field]]:
        """Return the columns of the file, each with the internal name of what stands in it.

        Key columns that are decoded from the row are listed as ``key:<place>``.
        """
        key = self.schema.key
        if self.schema.has_simple_key:
            listed = [(ROW, _field(key[0].name, key[0].type, key[0].id, nullable=False))]
        else:
            listed = [(f"key:{i}", _field(c.name, c.type, c.id, nullable=False)) for i, c in enumerate(key)]
            listed.append((ROW, pa.field(ROW, pa.binary(), nullable=False)))
        if self.group.is_cells:
            listed += [(FAMILY, pa.field(FAMILY, pa.string())), (QUALIFIER, pa.field(QUALIFIER, pa.string()))]
            listed.append((TIMESTAMP, pa.field(TIMESTAMP, pa.int64(), nullable=False)))
        if self.has_txn:
            listed.append((TXN, pa.field(TXN, pa.int64(), nullable=False)))
        if self.has_erased:
            listed.append((ERASED, pa.field(ERASED, pa.bool_())))
        if self.has_set:
            listed.append((SET, pa.field(SET, pa.string())))
        if self.group.is_cells:
            listed.append((VALUE, pa.field(VALUE, pa.binary())))
        by_id = self.group.column_by_id
        listed += [(str(i), _field(by_id[i].name, by_id[i].type, i)) for i in self.value_ids]
        return listed


def _field(name: str, kind: pa.DataType, field_id: int, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={FIELD_ID: str(field_id).encode()})
