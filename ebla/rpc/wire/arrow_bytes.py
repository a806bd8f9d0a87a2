"""Rows in columns as the bytes of an Arrow IPC stream, and back without copying."""

from __future__ import annotations

import pyarrow as pa

from ebla.errors import ProtocolError
from ebla.model.arrow_stream import read_untrusted

__all__ = ["keys_from_bytes", "keys_to_bytes", "rows_from_bytes", "rows_to_bytes"]

KEYS_BYTES_MAX = 64 << 20


def rows_to_bytes(rows: pa.Table | pa.RecordBatch) -> memoryview:
    """Return rows as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return memoryview(sink.getvalue())


def rows_from_bytes(data: memoryview) -> pa.Table:
    """Return the rows that a server sent. It is trusted to send valid ones; what is no stream at all is told."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return reader.read_all()
    except pa.ArrowException as reason:
        raise ProtocolError(f"the rows of an answer cannot be read: {reason}") from None


def keys_to_bytes(rows: pa.Array) -> memoryview:
    """Return encoded keys as one Arrow IPC stream."""
    return rows_to_bytes(pa.record_batch([rows], ["row"]))


def keys_from_bytes(data: memoryview) -> pa.Array:
    """Return encoded keys that a stranger sent, fully validated; `InvalidBatch` if they are none."""
    table = read_untrusted(data, KEYS_BYTES_MAX, _check_keys)
    column = table.column(0)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _check_keys(schema: pa.Schema) -> None:
    if len(schema) != 1 or schema.field(0).type not in (pa.binary(), pa.large_binary()):
        raise ProtocolError(f"keys come as one column of bytes, not as {schema.types}")
