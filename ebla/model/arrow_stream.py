"""Arrow IPC streams from people we do not trust.

A stream is a row of messages; each has a frame, a flatbuffer that describes it, and a body of buffers:

    ff ff ff ff | int32 length | flatbuffer (Message: kind, body length, ...) | body      ...      ff ff ff ff | 0
                                                                                                     the end

Arrow checks what it reads, but it also does what it is told: a few bytes can tell it that a compressed buffer will
take terabytes, or that a column has 2^60 nulls. So before Arrow reads anything, the frames are walked here and the
sizes that they announce are added up; and before it reads any rows, the caller looks at the schema. After that, every
batch is validated in full.

Invariants: memory taken is bounded by `bytes_max`, whatever the bytes are; every damaged, cut off or oversized stream
ends in `InvalidBatch`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa

from ebla.errors import EblaError, InvalidBatch

__all__ = ["read_untrusted"]

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_FRAME = struct.Struct("<Ii")


def read_untrusted(
    data: bytes | bytearray | memoryview | pa.Buffer, bytes_max: int, check_schema: Callable[[pa.Schema], object]
) -> pa.Table:
    """Return the rows of an Arrow IPC stream, fully validated, or raise `InvalidBatch`.

    `check_schema` is called before any rows are read and may raise what it likes to refuse them.
    """
    view = memoryview(data)
    if view.nbytes > bytes_max:
        raise InvalidBatch(
            f"an Arrow stream of {view.nbytes} bytes: at most {bytes_max} are taken at once, send fewer rows"
        )
    try:
        buffer = pa.py_buffer(data)
        if not view.readonly or buffer.address % 8:
            # The rows will point into the buffer: its owner must not write to it, and Arrow counts on alignment.
            buffer = pa.py_buffer(bytes(view))
        _check_messages(memoryview(buffer).cast("B"), bytes_max)
        with pa.ipc.open_stream(buffer) as reader:
            for field in reader.schema:
                _check_text(field)
            check_schema(reader.schema)
            batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
            return pa.Table.from_batches(batches, reader.schema)
    except EblaError:
        raise
    except Exception as reason:  # whatever Arrow makes of damaged bytes is the sender's mistake
        raise InvalidBatch(f"the bytes are not a valid Arrow IPC stream: {reason}") from None


def _check_text(field: pa.Field) -> None:
    """Read every name in a schema once: one that is not text raises here, and not in the middle of other work."""
    _ = field.name
    type_ = field.type
    if pa.types.is_timestamp(type_):
        _ = type_.tz
    if pa.types.is_dictionary(type_):
        _check_text(pa.field("", type_.value_type))
    elif isinstance(type_, pa.BaseExtensionType):
        _check_text(pa.field("", type_.storage_type))
    else:
        for at in range(type_.num_fields):
            _check_text(type_.field(at))


# --- frames --------------------------------------------------------------------------------------


def _check_messages(data: memoryview, bytes_max: int) -> None:
    """Walk all messages; refuse what is cut off, and what would unfold to more than `bytes_max`."""
    at, unfolded, kinds = 0, 0, 0
    while True:
        if at + _FRAME.size > len(data):
            raise InvalidBatch("the Arrow stream is cut off: its end marker is missing")
        continuation, length = _FRAME.unpack_from(data, at)
        if continuation != _CONTINUATION:
            raise InvalidBatch(f"the bytes are not an Arrow IPC stream: no message begins at byte {at}")
        at += _FRAME.size
        if length == 0:
            break
        if length < 0 or at + length > len(data):
            raise InvalidBatch("the Arrow stream is cut off in a message")
        message = _Table.root(data[at : at + length])
        at += length
        body_length = message.number(3, "<q")
        if body_length < 0 or at + body_length > len(data):
            raise InvalidBatch("the Arrow stream is cut off in a message body")
        kind = message.number(1, "<B")
        if (kind == _SCHEMA) != (kinds == 0) or kind not in (_SCHEMA, _DICTIONARY, _BATCH):
            raise InvalidBatch("the Arrow stream is not a schema followed by batches")
        if kind != _SCHEMA:
            unfolded += _unfolded_bytes(message, kind, data[at : at + body_length])
            if unfolded > bytes_max:
                raise InvalidBatch(
                    f"the Arrow stream unfolds to more than the {bytes_max} bytes that are taken at once"
                )
        at += body_length
        kinds += 1
    if at != len(data):
        raise InvalidBatch(f"{len(data) - at} bytes follow the end of the Arrow stream")


def _unfolded_bytes(message: _Table, kind: int, body: memoryview) -> int:
    """Return how much memory a batch asks for: one byte per value at least, and the sizes its buffers decompress to."""
    batch = message.table(2)
    if kind == _DICTIONARY:
        if batch.has(2) and batch.number(2, "<B"):
            raise InvalidBatch("the Arrow stream has delta dictionaries: send whole ones")
        batch = batch.table(1)
    lengths = [batch.number(0, "<q"), *(length for length, _ in batch.pairs(1))]
    if min(lengths) < 0:
        raise InvalidBatch("the Arrow stream has a batch of negative length")
    unfolded = sum(lengths)
    if batch.has(3):
        for offset, length in batch.pairs(2):
            if min(offset, length) < 0 or offset + length > len(body):
                raise InvalidBatch("the Arrow stream has a buffer outside of its message")
            if length >= 8:
                # Before each compressed buffer stands what it decompresses to; -1 says that it is not compressed.
                unfolded += max(0, int(struct.unpack_from("<q", body, offset)[0]))
    return unfolded


# --- flatbuffers ---------------------------------------------------------------------------------


class _Table:
    """A table of a flatbuffer: just enough of the format to read numbers, subtables and lists of pairs.

    A table begins with the way back to its vtable, which has the place of every field, 0 where it is left out.
    Positions outside the buffer raise `struct.error`, negative ones are refused by `_at`.
    """

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = _at(position - struct.unpack_from("<i", data, _at(position))[0])
        self._vtable_bytes = struct.unpack_from("<H", data, self._vtable)[0]

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """Return the table that the flatbuffer is."""
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def _field(self, index: int) -> int:
        at = 4 + 2 * index
        if at + 2 > self._vtable_bytes:
            return 0
        offset: int = struct.unpack_from("<H", self._data, self._vtable + at)[0]
        return self._position + offset if offset else 0

    def has(self, index: int) -> bool:
        """Tell whether the field is there."""
        return self._field(index) != 0

    def number(self, index: int, code: str) -> int:
        """Return a number, 0 if it is left out."""
        at = self._field(index)
        return int(struct.unpack_from(code, self._data, at)[0]) if at else 0

    def table(self, index: int) -> _Table:
        """Return a subtable."""
        at = self._field(index)
        if not at:
            raise InvalidBatch("the Arrow stream has a message without content")
        return _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])

    def pairs(self, index: int) -> list[tuple[int, int]]:
        """Return a list of pairs of int64."""
        at = self._field(index)
        if not at:
            return []
        at += struct.unpack_from("<I", self._data, at)[0]
        count = struct.unpack_from("<I", self._data, at)[0]
        # The length is checked by the slice being too short for it.
        numbers = struct.unpack(f"<{2 * count}q", self._data[at + 4 : at + 4 + 16 * count])
        return list(zip(numbers[0::2], numbers[1::2], strict=True))


def _at(position: int) -> int:
    if position < 0:
        raise InvalidBatch("the Arrow stream has a message that points outside itself")
    return position
