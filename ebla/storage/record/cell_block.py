"""The cells that one put gives one row, as a block made without Arrow: what row_block.py does for typed columns.

    values  ---message--->  bytes for the log: the Arrow message that the record batch would serialize to
       |----lists-------->  Python values again, for a reader of this row
       |----records------>  pa.RecordBatch, when a reader of several rows looks at the block
       `----combine_cells>  one `Block` of the cells of many rows: group commit, memory

Names are known before: a `CellPlan` has the families and qualifiers of rows that set the same cells of a group, in
order. All cells of a put have the timestamp of its commit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa

from ebla.clock import microseconds_of
from ebla.storage.record.records import FAMILY, QUALIFIER, ROW, TIMESTAMP, TXN, VALUE, Block, schema_bytes
from ebla.storage.record.row_block import read_example

__all__ = ["CellBlock", "CellPlan", "combine_cells"]

SCHEMA = pa.schema(
    [(ROW, pa.binary()), (FAMILY, pa.string()), (QUALIFIER, pa.string()), (TIMESTAMP, pa.int64()), (VALUE, pa.binary())]
)
SCHEMA_WITH_TXN = SCHEMA.append(pa.field(TXN, pa.int64()))
SCHEMA_BYTES = schema_bytes(SCHEMA)

# Families, qualifiers, timestamps, txns, whether it erases, values: a list of each.
_Lists: TypeAlias = tuple[list[Any], list[Any], list[Any], list[Any], list[Any], list[Any]]

_ZEROS = tuple(bytes(count) for count in range(8))
# Three buffers of four columns of bytes and two of one of numbers, each with an offset and a length.
_BUFFERS = struct.Struct(f"<{2 * (4 * 3 + 2)}q")
_EXAMPLE = read_example(pa.RecordBatch.from_arrays([pa.nulls(1, one.type) for one in SCHEMA], schema=SCHEMA))


class CellPlan:
    """What rows share that set the same cells of a group: their names, in order."""

    __slots__ = ("_encoded", "_fixed_bytes", "_start", "families", "qualifiers", "schema_bytes")

    def __init__(self, cells: Sequence[tuple[str, str]]) -> None:
        assert list(cells) == sorted(set(cells)), "cells stand in order, each once"
        # All set once.
        self.schema_bytes = SCHEMA_BYTES
        self.families = [family for family, _ in cells]
        self.qualifiers = [qualifier for _, qualifier in cells]
        self._encoded = [[name.encode() for name in names] for names in (self.families, self.qualifiers)]
        names_bytes = sum(len(name) for names in self._encoded for name in names)
        self._fixed_bytes = len(cells) * (4 * 4 + 8) + names_bytes
        start = bytearray(_EXAMPLE.start)
        count = len(cells)
        struct.pack_into("<q", start, _EXAMPLE.rows_at, count)
        struct.pack_into("<10q", start, _EXAMPLE.nodes_at, *([count, 0] * 5))
        self._start = bytes(start)

    def size_bytes(self, row: bytes, values: Sequence[Any]) -> int:
        """Return about how many bytes the cells take as a record batch."""
        return self._fixed_bytes + len(values) * len(row) + sum(map(len, values))

    def block(self, row: bytes, values: tuple[Any, ...], txn: int, size_bytes: int, index: int) -> CellBlock:
        """Return the cells of a row as a block."""
        return CellBlock(self, row, values, txn=txn, size_bytes=size_bytes, index=index)

    def message(self, row: bytes, stamp: int, values: Sequence[bytes]) -> bytes:
        """Return the bytes that the record batch of the cells serializes to."""
        count = len(values)
        pack_offsets = struct.Struct(f"<{count + 1}i").pack
        families, qualifiers = self._encoded
        numbers: list[int] = []
        body: list[bytes | bytearray] = [b""]
        at = 0
        for column in ((row,) * count, families, qualifiers, None, values):
            if column is None:
                numbers += (at, 0, at, 8 * count)
                body.append(struct.pack("<q", stamp) * count)
                at += 8 * count
                continue
            offsets = pack_offsets(*accumulate(map(len, column), initial=0))
            data = b"".join(column)
            length, size = len(offsets), len(data)
            begin = at + length + (-length & 7)
            numbers += (at, 0, at, length, begin, size)
            body += (offsets, _ZEROS[-length & 7], data, _ZEROS[-size & 7])
            at = begin + size + (-size & 7)
        body[0] = start = bytearray(self._start)
        struct.pack_into("<q", start, _EXAMPLE.body_length_at, at)
        _BUFFERS.pack_into(start, _EXAMPLE.buffers_at, *numbers)
        return b"".join(body)


class CellBlock(Block):
    """A block of cells of one row, whose record batch is made when somebody asks for it."""

    __slots__ = ("plan", "stamp", "values")

    def __init__(
        self, plan: CellPlan, row: bytes, values: tuple[bytes, ...], *, txn: int, size_bytes: int, index: int
    ) -> None:
        # Not by Block's own: `records` and `rows` stay unset, and `__getattr__` sees to them.
        self.plan = plan
        self.values = values
        self.stamp = microseconds_of(txn)
        self.txn = self.txn_min = self.txn_max = txn
        self.first = self.last = row
        self.has_erasures = self.has_partial = False
        self.unique = True
        self.index = index
        self.bytes = size_bytes + 16 * len(values)
        self._columns = None
        self._fields = None
        self._per_row = len(values)
        self._set_codes = None
        self._skip = 0
        self._tops = None
        self._words = None
        self._word_view = None

    def __getattr__(self, name: str) -> Any:
        # Called for what is not set yet. Two threads may come here at once: both make the same.
        if name not in ("records", "rows"):
            raise AttributeError(name)
        count = len(self.values)
        arrays = _arrays(
            [self.first] * count, self.plan.families, self.plan.qualifiers, [self.stamp] * count, self.values
        )
        self.records = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        self.rows = arrays[0]
        return self.records if name == "records" else self.rows

    def __len__(self) -> int:
        return len(self.values)

    @property
    def message(self) -> bytes:
        """The record batch, serialized."""
        return self.plan.message(self.first, self.stamp, self.values)

    @property
    def lists(self) -> _Lists:
        """The cells as lists: families, qualifiers, timestamps, txns, whether they erase, values."""
        count = len(self.values)
        plan = self.plan
        stamps, txns = [self.stamp] * count, [self.txn_max] * count
        return plan.families, plan.qualifiers, stamps, txns, [False] * count, list(self.values)

    def find(self, row: bytes) -> tuple[int, int]:
        """Return the begin and end of the records of `row`; begin equals end where there are none."""
        return (0, len(self.values)) if row == self.first else (0, 0)

    def lower_bound(self, row: bytes) -> int:
        """Return the place of the first record whose row is not less than `row`."""
        return 0 if row <= self.first else len(self.values)


def combine_cells(blocks: Sequence[CellBlock]) -> Block:
    """Return one block with the cells of many: by row, family and qualifier, the newest first."""
    cells = sorted(
        [
            (block.first, family, qualifier, -block.stamp, -block.txn_max, value)
            for block in blocks
            for family, qualifier, value in zip(block.plan.families, block.plan.qualifiers, block.values, strict=True)
        ]
    )
    rows, families, qualifiers, stamps, txns, values = zip(*cells, strict=True)
    arrays = _arrays(rows, families, qualifiers, [-stamp for stamp in stamps], values)
    arrays.append(pa.array([-txn for txn in txns], pa.int64()))
    return Block(
        pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITH_TXN),
        txn_min=-max(txns),
        txn_max=-min(txns),
        unique=len(set(zip(rows, families, qualifiers, strict=True))) == len(cells),
        index=max([block.index for block in blocks]),
        bytes_known=sum([block.bytes for block in blocks]) - 8 * len(cells),  # less 16 that Block adds, and 8 for _txn
    )


def _arrays(
    rows: Sequence[bytes],
    families: Sequence[str],
    qualifiers: Sequence[str],
    stamps: Sequence[int],
    values: Sequence[bytes],
) -> list[pa.Array]:
    return [
        pa.array(rows, pa.binary()),
        pa.array(families, pa.string()),
        pa.array(qualifiers, pa.string()),
        pa.array(stamps, pa.int64()),
        pa.array(values, pa.binary()),
    ]
