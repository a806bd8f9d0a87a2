"""Between text and Arrow: what JSON, CSV and arguments say, as values of a column's type, and back again.

    text, JSON  --from_json, from_text-->  Arrow array  --to_json, to_text-->  JSON, text

The way out and the way in are inverse to each other, so that ``ebla scan --format jsonl | ebla put --file -`` copies a
table exactly. JSON knows fewer types than Arrow; the rest is text:

- dates, times and timestamps are ISO 8601; a timestamp without an offset in a column with a time zone is UTC;
- decimals are text (a JSON number is taken too), durations a count of the column's unit;
- bytes are UTF-8 text, or ``base64:`` and base64 where they are not (or would be mistaken for it);
- a float that is no number is ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from datetime import time
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch

BASE64 = "base64:"
CELLS = pa.map_(pa.string(), pa.binary())

_FAILURES = (pa.ArrowException, OverflowError, ValueError, TypeError)
_SHORT_NAMES = {"double": "float64", "float": "float32", "halffloat": "float16", "date32[day]": "date32"}


class Misfit(InvalidBatch):
    """A value that is not of its column's type; `at` is its place among those given."""

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


def type_text(kind: pa.DataType) -> str:
    """Name a type in the way in which `ebla create` takes it."""
    types = pa.types
    if types.is_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    if types.is_fixed_size_list(kind):
        return f"fixed_size_list<{type_text(kind.value_type)}>[{kind.list_size}]"
    if types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {type_text(field.type)}' for field in kind)}>"
    name = str(kind)
    return _SHORT_NAMES.get(name, name)


# --- bytes ---------------------------------------------------------------------------------------


def bytes_from_text(text: str) -> bytes:
    """Return the bytes that `text` stands for."""
    if not text.startswith(BASE64):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(BASE64), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not base64 ({error})") from None


def text_from_bytes(value: bytes) -> str:
    """Return the text that `bytes_from_text` turns into `value`."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = BASE64
    return BASE64 + base64.b64encode(value).decode() if text.startswith(BASE64) else text


# --- in ------------------------------------------------------------------------------------------


def from_json(values: Sequence[Any], kind: pa.DataType, column: str) -> pa.Array:
    """Return decoded JSON values as an array of type `kind`; `InvalidBatch` names the first that does not fit."""
    return _or_complain(lambda some: _json_array(some, kind), values, kind, column)


def from_text(texts: pa.Array | Sequence[str | None], kind: pa.DataType, column: str) -> pa.Array:
    """Return texts (of a CSV file, an argument, a filter) as an array of type `kind`; null stays null."""
    given = texts if isinstance(texts, (pa.Array, pa.ChunkedArray)) else pa.array(texts, pa.string())
    return _or_complain(lambda some: _text_array(some, kind), given, kind, column)


def _or_complain(convert: Callable[[Any], pa.Array], values: Any, kind: pa.DataType, column: str) -> pa.Array:
    try:
        return convert(values)
    except _FAILURES:
        pass
    for at in range(len(values)):  # only to name the culprit
        try:
            convert(values[at : at + 1])
        except _FAILURES:
            value = values[at].as_py() if isinstance(values[at], pa.Scalar) else values[at]
            shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
            raise Misfit(f"column {column!r}: {shown} is not {type_text(kind)}{_hint(kind)}", at) from None
    raise InvalidBatch(f"column {column!r}: the values do not fit {type_text(kind)}")


def _hint(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_timestamp(kind):
        return " (write 2026-01-31T12:00:00" + ("Z)" if kind.tz else ", without an offset)")
    if types.is_date(kind):
        return " (write 2026-01-31)"
    if types.is_time(kind):
        return " (write 12:00:00)"
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return f" (write text, or {BASE64}...)"
    return ""


def _json_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    types = pa.types
    found = set(map(type, values)) - {type(None)}
    if types.is_list(kind):
        _allow(found, {list})
        inner = _json_array([item for value in values if value is not None for item in value], kind.value_type)
        ends = [0]
        for value in values:
            ends.append(ends[-1] + (0 if value is None else len(value)))
        offsets = [None if value is None else end for value, end in zip(values, ends, strict=False)] + ends[-1:]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner).cast(kind)
    if types.is_fixed_size_list(kind):
        return _json_array(values, pa.list_(kind.value_type)).cast(kind)
    if types.is_struct(kind):
        _allow(found, {dict})
        strangers = {name for value in values if value for name in value} - {field.name for field in kind}
        if strangers:
            raise ValueError(f"no field {strangers.pop()!r}")
        inner = [_json_array([(value or {}).get(field.name) for value in values], field.type) for field in kind]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=missing)
    if types.is_map(kind):
        _allow(found, {dict})
        pairs = [None if value is None else _cell_pairs(value) for value in values]
        return pa.array(pairs, kind)
    if types.is_boolean(kind):
        _allow(found, {bool})
        return pa.array(values, kind)
    if types.is_integer(kind) and found <= {int}:
        return pa.array(values, kind)
    if types.is_floating(kind) and found <= {int, float}:
        return pa.array(values, kind)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if types.is_duration(kind) or (numbers and not types.is_integer(kind)):
        _allow(found, {str, int, float})
    elif numbers:
        _allow(found, {str, int})
    else:
        _allow(found, {str})
    if found - {str}:
        values = [value if value is None or isinstance(value, str) else str(value) for value in values]
    return _text_array(pa.array(values, pa.string()), kind)


def _cell_pairs(cells: dict[str, Any]) -> list[tuple[str, bytes]]:
    _allow(set(map(type, cells.values())) - {type(None)}, {str})
    return [(qualifier, bytes_from_text(text)) for qualifier, text in cells.items() if text is not None]


def _allow(found: set[type], allowed: set[type]) -> None:
    if not found <= allowed:
        raise TypeError(f"{', '.join(sorted(kind.__name__ for kind in found - allowed))} does not fit")


def _text_array(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_string(kind):
        return texts
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        decoded = [None if text is None else bytes_from_text(text) for text in texts.to_pylist()]
        return pa.array(decoded, pa.binary()).cast(kind)
    if types.is_timestamp(kind) and kind.tz is not None:
        return _with_offset(texts).cast(kind)
    if types.is_time(kind):
        return pa.array([None if text is None else time.fromisoformat(text) for text in texts.to_pylist()], kind)
    if types.is_duration(kind):
        return texts.cast(pa.int64()).cast(kind)
    if types.is_nested(kind):
        return _json_array([None if text is None else msgspec.json.decode(text) for text in texts.to_pylist()], kind)
    return texts.cast(kind)


def _with_offset(texts: pa.Array) -> pa.Array:
    days = pc.binary_join_element_wise(texts, "T00:00:00", "")
    texts = pc.if_else(pc.match_substring_regex(texts, r"^\d{4}-\d{2}-\d{2}$"), days, texts)
    zoned = pc.binary_join_element_wise(texts, "Z", "")
    return pc.if_else(pc.match_substring_regex(texts, r"(Z|[+-]\d{2}:?\d{2}|:\d{2}[+-]\d{2})$"), texts, zoned)


# --- out -----------------------------------------------------------------------------------------


def to_json(values: pa.Array) -> list[Any]:
    """Return what `from_json` turns into the same array: only text, numbers, bools, lists, dicts and None."""
    types, kind = pa.types, values.type
    if types.is_list(kind):
        return _cut(to_json(values.flatten()), values)
    if types.is_fixed_size_list(kind):
        return to_json(values.cast(pa.list_(kind.value_type)))
    if types.is_struct(kind):
        names = [field.name for field in kind]
        fields = zip(*(to_json(inner) for inner in values.flatten()), strict=True)
        rows = [dict(zip(names, row, strict=True)) for row in fields] if names else [{} for _ in range(len(values))]
        return [row if there else None for row, there in zip(rows, values.is_valid().to_pylist(), strict=True)]
    if types.is_map(kind):
        return [
            None if cells is None else {qualifier: text_from_bytes(value) for qualifier, value in cells}
            for cells in values.to_pylist()
        ]
    if types.is_floating(kind):
        return [value if value is None or math.isfinite(value) else _no_number(value) for value in values.to_pylist()]
    if types.is_boolean(kind) or types.is_integer(kind):
        return values.to_pylist()  # type: ignore[no-any-return]
    if types.is_duration(kind):
        return values.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    return to_text(values).to_pylist()  # type: ignore[no-any-return]


def to_text(values: pa.Array) -> pa.Array:
    """Return an array of texts that `from_text` turns into `values`; null stays null."""
    types, kind = pa.types, values.type
    if types.is_string(kind):
        return values
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.array([None if v is None else text_from_bytes(v) for v in values.to_pylist()], pa.string())
    if types.is_timestamp(kind):
        if kind.tz is not None:
            values = values.cast(pa.timestamp(kind.unit, "UTC"))
        return pc.replace_substring(values.cast(pa.string()), " ", "T")
    if types.is_nested(kind):
        encoded = [None if value is None else msgspec.json.encode(value).decode() for value in to_json(values)]
        return pa.array(encoded, pa.string())
    if types.is_floating(kind):
        return pa.array([None if v is None else str(v) for v in to_json(values)], pa.string())
    return values.cast(pa.string())


def _cut(flat: list[Any], lists: pa.Array) -> list[Any]:
    cut: list[Any] = []
    begin = 0
    for length in pc.list_value_length(lists).to_pylist():
        cut.append(None if length is None else flat[begin : begin + length])
        begin += length or 0
    return cut


def _no_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
