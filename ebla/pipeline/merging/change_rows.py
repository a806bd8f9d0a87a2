"""Change rows on their way into fragments: puts of some columns, erasures, no key twice.

Changes(kind, rows)   keys and columns that are set, or keys alone      what a clause made of its rows
    |
ChangeWriting         checked for keys that come twice, written by a `BulkWriter`     in a task, or in this process
    |
Written               the files, and how many rows were updated, inserted and deleted
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.direct.bulk_writer import BulkWriter
from ebla.direct.files import LocalFiles
from ebla.direct.fragments import ROW, unpack_schema
from ebla.errors import InvalidBatch, InvalidKey, shown
from ebla.model.casts import cast_array
from ebla.model.keys import KeyCodec
from ebla.model.order import sort_rows
from ebla.model.schema import TableSchema
from ebla.pipeline.merging.clauses import Kind
from ebla.rows.row_parts import check_keys
from ebla.service.job_orders import BulkFragment
from ebla.settings import Settings

__all__ = ["ChangeWriting", "Changes", "Written", "encoded_keys", "joined"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that one clause changes: keys and what is set, or keys alone; and ``_row``, their encoded keys."""

    kind: Kind
    rows: pa.RecordBatch | pa.Table


class Written(msgspec.Struct, frozen=True):
    """What one task wrote."""

    fragments: tuple[BulkFragment, ...] = ()
    updated: int = 0
    inserted: int = 0
    deleted: int = 0


def joined(parts: Iterable[Written]) -> Written:
    """Return what several tasks wrote, as one."""
    every = list(parts)
    return Written(
        tuple(one for part in every for one in part.fragments),
        sum(part.updated for part in every),
        sum(part.inserted for part in every),
        sum(part.deleted for part in every),
    )


@dataclass(frozen=True)
class ChangeWriting:
    """How change rows are written: plain values, sent to wherever a task runs."""

    root: str
    table: str
    table_id: str
    schema: bytes  # packed
    job: str
    stamp_microseconds: int  # given out once, so that an attempt that is repeated writes the same

    def run(self, partition: int, units: Iterable[Sequence[Changes]]) -> Written:
        """Write the changes of one task, or nothing if it fails.

        A unit is what comes at once, with a column ``_row`` of encoded keys; rows of one key come in one unit, or at
        the end of one and at the beginning of the next. `InvalidBatch` if there are two of them.
        """
        schema = unpack_schema(self.schema)
        writer = BulkWriter(
            LocalFiles(self.root),
            self.table_id,
            schema,
            self.job,
            partition,
            stamp_microseconds=self.stamp_microseconds,
            is_sorted=False,
        )
        counts = {"update": 0, "insert": 0, "delete": 0}
        last: bytes | None = None
        try:
            for unit in units:
                last = self._check_once(unit, schema, last)
                for change in unit:
                    counts[change.kind] += change.rows.num_rows
                    take = writer.erase if change.kind == "delete" else writer.write
                    for batch in change.rows.to_batches() if isinstance(change.rows, pa.Table) else [change.rows]:
                        take(batch)
            return Written(tuple(writer.finish()), counts["update"], counts["insert"], counts["delete"])
        except BaseException:
            writer.abandon()
            raise

    def _check_once(self, unit: Sequence[Changes], schema: TableSchema, before: bytes | None) -> bytes | None:
        """Raise if a key comes twice; return the greatest of the unit."""
        rows = pa.chunked_array([_rows_of(change) for change in unit], pa.binary()).combine_chunks()
        if not len(rows):
            return before
        order, repeats = sort_rows(rows)
        first, last = rows[int(order[0])].as_py(), rows[int(order[-1])].as_py()
        twice = rows[int(order[int(np.argmax(repeats))])].as_py() if repeats.any() else first
        if repeats.any() or first == before:
            key = KeyCodec(schema.key, Settings().key_bytes_max).decode(twice)
            raise InvalidBatch(
                f"several rows of the source change the row {shown(key[0] if len(key) == 1 else key)} of "
                f"{self.table!r}, and which of them should is not said: keep one of them. Nothing was changed"
            )
        return bytes(last)


def _rows_of(changes: Changes) -> pa.Array:
    rows = changes.rows.column(ROW)
    return rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows


def encoded_keys(rows: pa.RecordBatch | pa.Table, schema: TableSchema, codec: KeyCodec) -> pa.Array:
    """Return the keys of rows in their encoded form; `InvalidKey` where one is null or of another type."""
    keys = []
    for column in schema.key:
        array = rows.column(column.name)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if array.null_count:
            at = int(pc.index(array.is_null(), True).as_py())
            raise InvalidKey(f"key column {column.name!r} is null in row {at} of the source: a key has none")
        keys.append(cast_array(array, column.type, f"key column {column.name!r}", InvalidKey))
    check_keys(schema.key, keys)
    return codec.encode_arrays(keys)
