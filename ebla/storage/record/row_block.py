"""One row as a block, made without Arrow: what most single puts are.

Arrow is quick with a thousand rows and slow with one: to make the record batch of a row, measure it and serialize it
costs more than everything else in a put. So a row of plain values stays a tuple until somebody wants a record batch of
it, or until it is combined with others, when many rows become one batch with a few calls:

    values  ---message--->  bytes for the log: the very Arrow message that the record batch would serialize to
       |----cells-------->  Python values again, for a reader of this row
       |----records------>  pa.RecordBatch, when a reader of several rows looks at the block
       `----combine_rows->  one `Block` of many rows: group commit, memory

A value is held as it lies in an Arrow buffer, its *physical* value: an int for dates and moments, UTF-8 for strings.

The message of a row has the same bytes for every row of a plan but for lengths and offsets, so a plan keeps those of
an example that Arrow made, and where in them the numbers stand:

    ff ff ff ff | length | flatbuffer: .. body length .. nodes (length, nulls) .. buffers (offset, length) .. | body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from ebla.model.python_values import python_value
from ebla.storage.record.records import ROW, TXN, Block, schema_bytes

__all__ = ["Physical", "RowBlock", "RowPlan", "combine_rows", "is_plain", "plan_of", "read_example"]

Physical: TypeAlias = bool | int | float | bytes | None

_ALIGNMENT = 8
_PADDING = tuple(bytes(-length % _ALIGNMENT) for length in range(_ALIGNMENT))
_pack_offsets = struct.Struct("<ii").pack
_NULL = bytes(2 * _ALIGNMENT)  # a bitmap that says so, and a value or offsets that mean nothing
_INTEGERS = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
}
# What a flatbuffer calls its fields, by number: of a Message, of a RecordBatch.
_MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 2, 3
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS = 0, 1, 2


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether values of the type can be in a `RowBlock`."""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return kind.unit in ("us", "ns")  # as fine as Python's, so that nothing is cut off
    return kind in _INTEGERS or kind in (pa.bool_(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.date64())


def _physical_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the physical values of a plain type: an array of them can be viewed as the type."""
    if kind == pa.string():
        return pa.binary()
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def _logical_of(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a Python value of a physical one; None where they are the same."""
    if kind == pa.string():
        return bytes.decode
    if pa.types.is_temporal(kind):
        return lambda value: python_value(_array((value,), kind)[0])
    return None


class _Packing(NamedTuple):
    """How the values of a column lie in a message: `pack` makes the eight bytes of one; None for text."""

    pack: Callable[[Any], bytes] | None
    width: int


def _packing_of(kind: pa.DataType) -> _Packing:
    physical = _physical_type(kind)
    code = "?" if physical == pa.bool_() else "d" if physical == pa.float64() else _INTEGERS.get(physical)
    if code is None:
        return _Packing(None, 0)
    width = struct.calcsize("<" + code)
    return _Packing(struct.Struct(f"<{code}{_ALIGNMENT - width}x").pack, width)


class RowPlan:
    """What the rows that set the same columns of a group share. `value_types` go by the name of the value column."""

    def __init__(self, value_types: Mapping[str, pa.DataType]) -> None:
        assert all(map(is_plain, value_types.values())), "only plain values have a physical form"
        # All set once.
        self.schema = pa.schema([(ROW, pa.binary()), *value_types.items()])
        self.schema_bytes = schema_bytes(self.schema)
        self.schema_with_txn = self.schema.append(pa.field(TXN, pa.int64()))
        self._types = (pa.binary(), *value_types.values())
        self._names = tuple(value_types)
        self.fields = frozenset(value_types)
        self._logical = tuple(map(_logical_of, value_types.values()))
        self._packings = tuple(map(_packing_of, self._types))
        self._fixed_bytes = sum(packing.width or 4 for packing in self._packings)
        example = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in self._types], schema=self.schema)
        start, self._body_length_at, _, self._nodes_at, self._buffers_at = read_example(example)
        self._pack_body_length = struct.Struct("<q").pack_into
        self._pack_nodes = struct.Struct(f"<{2 * len(self._types)}q").pack_into
        numbers = 2 * sum(2 if packing.pack is not None else 3 for packing in self._packings)
        self._pack_buffers = struct.Struct(f"<{numbers}q").pack_into
        without_nulls = bytearray(start)
        self._pack_nodes(without_nulls, self._nodes_at, *([1, 0] * len(self._types)))
        self._message_start = bytes(without_nulls)

    def size_bytes(self, row: bytes, values: Sequence[Physical]) -> int:
        """Return about how many bytes the row takes as a record batch."""
        return self._fixed_bytes + len(row) + sum([len(value) for value in values if type(value) is bytes])

    def block(self, row: bytes, values: tuple[Physical, ...], txn: int, size_bytes: int, index: int) -> RowBlock:
        """Return a row as a block."""
        return RowBlock(self, row, values, txn=txn, size_bytes=size_bytes, index=index)

    def message(self, row: bytes, values: Sequence[Physical]) -> bytes:
        """Return the bytes that the record batch of the row serializes to."""
        numbers: list[int] = []
        body: list[bytes | bytearray] = [b""]
        at = 0
        for (pack, width), value in zip(self._packings, (row, *values), strict=True):
            if value is None:
                numbers += (at, 1, at + 8, width) if pack is not None else (at, 1, at + 8, 8, at + 16, 0)
                body.append(_NULL)
                at += 16
            elif pack is not None:
                numbers += (at, 0, at, width)
                body.append(pack(value))
                at += 8
            else:
                length = len(value)  # type: ignore[arg-type]
                numbers += (at, 0, at, 8, at + 8, length)
                body += (_pack_offsets(0, length), value, _PADDING[length & 7])  # type: ignore[arg-type]
                at += 8 + length + (-length & 7)
        body[0] = start = bytearray(self._message_start)
        self._pack_body_length(start, self._body_length_at, at)
        if None in values:
            nodes = [number for value in (row, *values) for number in (1, value is None)]
            self._pack_nodes(start, self._nodes_at, *nodes)
        self._pack_buffers(start, self._buffers_at, *numbers)
        return b"".join(body)

    def cells(self, values: Sequence[Physical]) -> dict[str, Any]:
        """Return the values of a row by column, as Arrow would give them to Python."""
        return {
            name: value if logical is None or value is None else logical(value)
            for name, logical, value in zip(self._names, self._logical, values, strict=True)
        }

    def arrays(self, rows: Sequence[bytes], values: Sequence[Sequence[Physical]]) -> list[pa.Array]:
        """Return the columns of many rows: the rows themselves, then every column of values."""
        columns = zip(self._types, (rows, *zip(*values, strict=True)), strict=True)
        return [_array(column, kind) for kind, column in columns]


def _array(values: Sequence[Physical], kind: pa.DataType) -> pa.Array:
    physical = _physical_type(kind)
    array = pa.array(values, physical)
    return array if physical == kind else array.view(kind)


class Example(NamedTuple):
    """What a message begins with before its body, and where in that some numbers stand."""

    start: bytes
    body_length_at: int
    rows_at: int
    nodes_at: int
    buffers_at: int


def read_example(batch: pa.RecordBatch) -> Example:
    """Return what the message of a batch, which has rows, begins with."""
    message = batch.serialize().to_pybytes()
    continuation, length = struct.unpack_from("<Ii", message)
    assert continuation == 0xFFFFFFFF, "an encapsulated message"
    root = 8
    table = root + struct.unpack_from("<I", message, root)[0]

    def field(table: int, number: int) -> int:
        fields = table - struct.unpack_from("<i", message, table)[0]
        return table + int(struct.unpack_from("<H", message, fields + 4 + 2 * number)[0])

    def target(place: int) -> int:
        return place + int(struct.unpack_from("<I", message, place)[0])

    batch_table = target(field(table, _MESSAGE_HEADER))
    nodes, buffers = target(field(batch_table, _BATCH_NODES)), target(field(batch_table, _BATCH_BUFFERS))
    rows = field(batch_table, _BATCH_LENGTH)
    return Example(message[: 8 + length], field(table, _MESSAGE_BODY_LENGTH), rows, nodes + 4, buffers + 4)


@lru_cache(maxsize=1024)
def plan_of(names: tuple[str, ...], kinds: tuple[pa.DataType, ...]) -> RowPlan:
    """Return the plan for rows with these value columns."""
    return RowPlan(dict(zip(names, kinds, strict=True)))


class RowBlock(Block):
    """A block of one row of plain values, whose record batch is made when somebody asks for it."""

    __slots__ = ("plan", "values")

    def __init__(
        self,
        plan: RowPlan,
        row: bytes,
        values: tuple[Physical, ...],
        *,
        txn: int,
        size_bytes: int,
        index: int,
    ) -> None:
        # Not by Block's own: `records` and `rows` stay unset, and `__getattr__` sees to them.
        self.plan = plan
        self.values = values
        self.txn = self.txn_min = self.txn_max = txn
        self.first = self.last = row
        self.has_erasures = self.has_partial = False
        self.unique = True
        self.index = index
        self.bytes = size_bytes + 16
        self._columns = None
        self._fields = plan.fields
        self._per_row = 1
        self._skip = 0
        self._words = None
        self._word_view = None

    def __getattr__(self, name: str) -> Any:
        # Called for what is not set yet. Two threads may come here at once: both make the same.
        if name not in ("records", "rows"):
            raise AttributeError(name)
        arrays = self.plan.arrays((self.first,), (self.values,))
        self.records = pa.RecordBatch.from_arrays(arrays, schema=self.plan.schema)
        self.rows = arrays[0]
        return self.records if name == "records" else self.rows

    def __len__(self) -> int:
        return 1

    @property
    def message(self) -> bytes:
        """The record batch, serialized."""
        return self.plan.message(self.first, self.values)

    @property
    def cells(self) -> dict[str, Any]:
        """The values by column, as Python has them."""
        return self.plan.cells(self.values)

    def find(self, row: bytes) -> tuple[int, int]:
        """Return the begin and end of the records of `row`; begin equals end where there are none."""
        return (0, 1) if row == self.first else (0, 0)

    def lower_bound(self, row: bytes) -> int:
        """Return the place of the first record whose row is not less than `row`."""
        return 0 if row <= self.first else 1


def combine_rows(blocks: Sequence[RowBlock]) -> Block:
    """Return one block with the rows of many, which have the same plan: by row, newest txn first."""
    plan = blocks[0].plan
    ordered = sorted(blocks, key=lambda block: (block.first, -block.txn_max))
    rows = [block.first for block in ordered]
    txns = [block.txn_max for block in ordered]
    columns = [*plan.arrays(rows, [block.values for block in ordered]), pa.array(txns, pa.int64())]
    return Block(
        pa.RecordBatch.from_arrays(columns, schema=plan.schema_with_txn),
        txn_min=min(txns),
        txn_max=max(txns),
        unique=len(set(rows)) == len(rows),
        index=max([block.index for block in blocks]),
        bytes_known=sum([block.bytes for block in blocks]) - 8 * len(blocks),  # less 16 that Block adds, and 8 for _txn
    )
