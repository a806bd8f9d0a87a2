"""Values of rows as msgpack, and back the same: what msgpack does not know travels as an extension.

    int float str bytes bool None      as they are
    datetime date time timedelta       1 2 3 4         Decimal   5      an integer beyond 64 bits   6
    anything that Arrow has            7               tuple     8      an Arrow type   9
    Group   10                         Version  11

Nothing is executed that comes over the wire: every extension is read by a function of this module, and what does not
fit raises.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.msgpack import Ext

from ebla.errors import InvalidBatch, shown
from ebla.model.arrow_stream import read_untrusted
from ebla.model.declaration import Group
from ebla.model.projection import Version

__all__ = ["decode_extension", "is_plain", "packed", "packed_row"]

_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None)})
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 64) - 1
_VALUE_BYTES_MAX = 64 << 20

_DATETIME, _DATE, _TIME, _DURATION, _DECIMAL, _INTEGER, _ARROW, _TUPLE, _TYPE, _GROUP, _VERSION = range(1, 12)

_encoder = msgspec.msgpack.Encoder()


def is_plain(row: Mapping[str, Any]) -> bool:
    """Tell whether a row can travel as it is. Of integers that are too large, the encoder tells."""
    return _PLAIN.issuperset(map(type, row.values()))


def packed_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row in a form that msgpack takes: itself, if it does already."""
    return row if is_plain(row) else {name: packed(value) for name, value in row.items()}


def packed(value: Any) -> Any:
    """Return a value in a form that msgpack takes. `InvalidBatch` if it is of no type that tables have."""
    kind = type(value)
    if kind is int:
        return value if _INTEGER_MIN <= value <= _INTEGER_MAX else _extension(_INTEGER, str(value))
    if kind in _PLAIN or kind is Ext:  # what is packed stays so
        return value
    if kind is list:
        return [packed(item) for item in value]
    if kind is dict:
        return {packed(key): packed(item) for key, item in value.items()}
    pack = _PACKERS.get(kind)
    if pack is not None:
        return pack(value)
    if isinstance(value, pa.DataType):
        return _extension(_TYPE, pa.schema([pa.field("", value)]).serialize().to_pybytes())
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        return packed(value.item())
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return [packed(item) for item in value.tolist()] if value.dtype.kind in "biufSU" else _arrow(pa.array(value))
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return str(value) if isinstance(value, str) else bytes(value)
    if isinstance(value, Mapping):
        return {packed(key): packed(item) for key, item in value.items()}
    return _scalar(value)


def _extension(code: int, value: Any) -> Ext:
    return Ext(code, _encoder.encode(value))


def _datetime(value: dt.datetime) -> Ext:
    zone = None if value.tzinfo is None else getattr(value.tzinfo, "key", None) or getattr(value.tzinfo, "zone", None)
    return _extension(_DATETIME, [value.isoformat(), zone, value.fold])


def _scalar(value: Any) -> Ext:
    try:
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        return _arrow(pa.array([scalar.as_py()], scalar.type) if scalar.type != pa.null() else pa.nulls(1), is_one=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
        raise InvalidBatch(f"{shown(value)} is no value that a table can hold: {reason}") from None


def _arrow(array: pa.Array, *, is_one: bool = False) -> Ext:
    batch = pa.record_batch([array], ["one" if is_one else "many"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Ext(_ARROW, sink.getvalue().to_pybytes())


_PACKERS: Final[dict[type, Callable[[Any], Ext]]] = {
    dt.datetime: _datetime,
    dt.date: lambda value: _extension(_DATE, value.isoformat()),
    dt.time: lambda value: _extension(_TIME, value.isoformat()),
    dt.timedelta: lambda value: _extension(_DURATION, [value.days, value.seconds, value.microseconds]),
    decimal.Decimal: lambda value: _extension(_DECIMAL, str(value)),
    tuple: lambda value: _extension(_TUPLE, [packed(item) for item in value]),
    Version: lambda value: _extension(_VERSION, [packed(item) for item in value]),
    Group: lambda value: _extension(_GROUP, {f.name: packed(getattr(value, f.name)) for f in fields(Group)}),
}


# --- and back ------------------------------------------------------------------------------------


def decode_extension(code: int, data: memoryview) -> Any:
    """Return the value of an extension; raises some `ValueError` or `TypeError` for one that is none."""
    if code == _ARROW:
        table = read_untrusted(bytes(data), _VALUE_BYTES_MAX, lambda schema: None)
        if table.num_columns != 1 or (table.column_names[0] == "one") != (table.num_rows == 1):
            raise ValueError("an Arrow value has one column")
        values = table.column(0).to_pylist()
        return values[0] if table.column_names[0] == "one" else values
    read = _READERS.get(code)
    if read is None:
        raise ValueError(f"{code} is no extension that is known here")
    return read(_decoder.decode(data))


_decoder = msgspec.msgpack.Decoder(ext_hook=decode_extension)


def _read_datetime(value: Any) -> dt.datetime:
    text, zone, fold = value
    moment = dt.datetime.fromisoformat(text)
    if zone is not None:
        moment = moment.astimezone(pa.lib.string_to_tzinfo(zone))
    return moment.replace(fold=fold)


def _read_group(value: Any) -> Group:
    return Group(**value)


def _read_type(value: Any) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(value)).field(0).type


_READERS: Final[dict[int, Callable[[Any], Any]]] = {
    _DATETIME: _read_datetime,
    _DATE: dt.date.fromisoformat,
    _TIME: dt.time.fromisoformat,
    _DURATION: lambda value: dt.timedelta(*value),
    _DECIMAL: decimal.Decimal,
    _INTEGER: int,
    _TUPLE: tuple,
    _TYPE: _read_type,
    _GROUP: _read_group,
    _VERSION: lambda value: Version(*value),
}
