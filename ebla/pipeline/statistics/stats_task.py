"""What one task of `stats` does: fragments in, marks of where their records lie out.

    many blocks      their first rows and sizes, from the footer; which are recent, from the txns that Parquet notes
    few blocks       the columns of rows and txns are read, and every so many-th row is a mark

A file counts as far as tablets refer to it: marks outside of these ranges are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.direct.fragments import ROW, TXN, Block, Fragment, fragment_at
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.ranges import KeyRange
from ebla.pipeline.spark.failures import plain_errors
from ebla.pipeline.spark.worker import numbers_of
from ebla.pipeline.statistics.histogram import Mark

__all__ = ["RESULT_SCHEMA", "Shared", "StatsTask", "decode_marks", "marks_of_block", "marks_of_fragment"]

RESULT_SCHEMA = "marks binary"

_decode = msgspec.msgpack.Decoder(list[tuple[int, list[Mark]]]).decode


@dataclass(frozen=True)
class Shared:
    """A file of one group, and the ranges in which tablets refer to it, in order and apart from each other."""

    group: int
    ref: FragmentRef
    ranges: tuple[tuple[bytes, bytes | None], ...]

    def has(self, row: bytes) -> bool:
        """Tell whether the records of a row count."""
        at = bisect_right(self.ranges, row, key=itemgetter(0)) - 1
        return at >= 0 and KeyRange(*self.ranges[at]).contains(row)


@dataclass(frozen=True)
class StatsTask:
    """The work of every task: plain values, sent to wherever it runs."""

    root: str
    portions: tuple[tuple[Shared, ...], ...]
    marks_max: int
    recent_txn: int

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look at the files of the portions whose numbers Spark brings."""
        for number in numbers_of(batches):
            with plain_errors():
                marks = [(shared.group, self.marks(shared)) for shared in self.portions[number]]
            yield pa.record_batch({"marks": pa.array([msgspec.msgpack.encode(marks)], pa.binary())})

    def marks(self, shared: Shared) -> list[Mark]:
        """Return the marks of one file."""
        fragment = fragment_at(self.root, shared.ref)
        return [
            mark
            for mark in marks_of_fragment(fragment, shared.ref, self.marks_max, self.recent_txn)
            if shared.has(mark.row)
        ]


def decode_marks(packed: bytes) -> list[tuple[int, list[Mark]]]:
    """Return what a task sent: groups and marks, file by file."""
    return _decode(packed)


def marks_of_fragment(fragment: Fragment, ref: FragmentRef, marks_max: int, recent_txn: int) -> list[Mark]:
    """Return about `marks_max` marks of a fragment, or fewer; `recent` is what is newer than `recent_txn`."""
    record_bytes = max(0, ref.bytes - ref.tail_bytes) / max(1, ref.rows)
    if len(fragment.block_rows) < marks_max:
        table = fragment.read_blocks(0, len(fragment.block_rows), [ROW, TXN])
        txns = table.column(TXN).to_numpy() if TXN in table.column_names else ref.txn or 0
        return _strided(table.column(ROW).combine_chunks(), txns, record_bytes, marks_max, recent_txn)
    stride = -(-len(fragment.block_rows) // marks_max)
    marks = []
    for begin in range(0, len(fragment.block_rows), stride):
        blocks = range(begin, min(begin + stride, len(fragment.block_rows)))
        records = sum(fragment.block_rows[at] for at in blocks)
        recent = sum(fragment.block_rows[at] * _share_after(fragment.txn_span(at), recent_txn) for at in blocks)
        marks.append(Mark(fragment.first_rows[begin], records, records * record_bytes, recent))
    return marks


def marks_of_block(block: Block, marks_max: int, recent_txn: int) -> list[Mark]:
    """Return the marks of a block in memory."""
    txns = block.txn if block.txn is not None else block.records.column(TXN).to_numpy()
    return _strided(block.rows, txns, block.bytes / len(block), marks_max, recent_txn)


def _strided(
    rows: pa.Array, txns: int | npt.NDArray[np.int64], record_bytes: float, marks_max: int, recent_txn: int
) -> list[Mark]:
    """Return every so many-th row as a mark of the records from it on."""
    stride = -(-len(rows) // marks_max)
    places = np.arange(0, len(rows), stride)
    counts = np.diff([*places, len(rows)])
    recent = np.broadcast_to(np.asarray(txns) > recent_txn, len(rows)).astype(np.int64)
    recents: Sequence[int] = np.add.reduceat(recent, places).tolist()
    firsts = rows.take(pa.array(places)).to_pylist()
    return [
        Mark(row, count, count * record_bytes, newer)
        for row, count, newer in zip(firsts, counts.tolist(), recents, strict=True)
    ]


def _share_after(span: tuple[int, int], txn: int) -> float:
    """Return about which share of records with txns in `span` is newer than `txn`, as if they came evenly."""
    low, high = span
    if low > txn:
        return 1.0
    return 0.0 if high <= txn else (high - txn) / (high - low + 1)
