"""Values as text, written as Spark writes them: lines of CSV and of JSON, out of Arrow batches in Spark's types.

    batch --json_lines--> {"user":"ada","age":36,"seen":"2026-01-31T12:30:15.000000Z","tags":["a",null]}
          --csv_lines---> ada,36,2026-01-31T12:30:15.000000Z,"[""a"",null]"

Who exports a table, or prints its changes, gets the same text with Spark and without. The table of what is written how
is in `export`. Numbers with a point look as Java prints them (``1.0E10``): the shortest digits that tell the number
from its neighbours.

Text is made column by column, by Arrow's kernels; only values that have no kernel (bytes, durations, numbers that need
an exponent, text with control characters) are gone through one by one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.pipeline.spark.types import list_of

__all__ = ["csv_columns", "csv_header", "csv_lines", "json_lines", "json_texts"]

_MICROSECOND = timedelta(microseconds=1)
_NUMBER_PLAIN_MIN, _NUMBER_PLAIN_MAX = 1e-3, 1e7
_TO_QUOTE = r'[",\r\n]'


# --- lines -----------------------------------------------------------------------------------------


def json_lines(batch: pa.RecordBatch) -> pa.Array:
    """Return each row as a JSON object, with nulls written; an array of texts."""
    return json_texts(pa.StructArray.from_arrays(batch.columns, names=batch.schema.names))


def csv_header(names: list[str]) -> str:
    """Return the first line of a CSV file."""
    quoted: list[str] = _quoted(pa.array(names, pa.string())).to_pylist()
    return ",".join(quoted)


def csv_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that CSV has words for: bytes in base64, durations as numbers, what has parts as JSON."""
    return pa.RecordBatch.from_arrays([_word(column) for column in batch.columns], names=batch.schema.names)


def csv_lines(batch: pa.RecordBatch) -> pa.Array:
    """Return each row of `csv_columns` as a line of CSV: null is nothing, and an empty text is quotes."""
    texts = [pc.fill_null(_csv_texts(column), "") for column in batch.columns]
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, ",")


def _word(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_duration(kind):
        return pc.cast(column, pa.int64())
    if pa.types.is_binary(kind):
        return _base64(column)
    return json_texts(column) if pa.types.is_nested(kind) else column


def _csv_texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        return _quoted(column)
    if pa.types.is_floating(kind):
        return _numbers(column, {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"})
    return _plain(column)


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts in quotes where they need them."""
    needs = pc.or_(pc.match_substring_regex(texts, _TO_QUOTE), pc.equal(texts, ""))
    doubled = pc.replace_substring(texts, '"', '""')
    return pc.if_else(needs, _around('"', doubled, '"'), texts)


# --- JSON ------------------------------------------------------------------------------------------


def json_texts(array: pa.Array) -> pa.Array:
    """Return values as JSON texts; null where the value is null, and ``null`` inside of others."""
    kind, types = array.type, pa.types
    if types.is_string(kind):
        return _escaped(array)
    if types.is_binary(kind):
        return _around('"', _base64(array), '"')
    if types.is_floating(kind):
        return _numbers(array, {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'})
    if types.is_duration(kind):
        return _one_by_one(array, _interval)
    if types.is_date(kind) or types.is_timestamp(kind):
        return _around('"', _plain(array), '"')
    if types.is_map(kind):
        return _object_of(array)
    if types.is_list(kind):
        items = pc.fill_null(json_texts(array.flatten()), "null")
        return _joined(array, items, "[", "]")
    if types.is_struct(kind):
        named = zip(kind, array.flatten(), strict=True)
        parts = [pc.binary_join_element_wise(_name(f.name), _filled(values), "") for f, values in named]
        inner = pc.binary_join_element_wise(*parts, ",") if len(parts) > 1 else (*parts, _empty(len(array)))[0]
        return pc.if_else(array.is_valid(), _around("{", inner, "}"), pa.scalar(None, pa.string()))
    return _plain(array)


def _name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False) + ":"


def _filled(values: pa.Array) -> pa.Array:
    return pc.fill_null(json_texts(values), "null")


def _empty(count: int) -> pa.Array:
    return pa.repeat(pa.scalar("", pa.string()), count)


def _object_of(array: pa.Array) -> pa.Array:
    """Return maps as objects; keys are text already."""
    pairs = pc.cast(array, pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    keys, values = pairs.flatten().flatten()
    items = pc.binary_join_element_wise(_escaped(pc.cast(keys, pa.string())), _filled(values), ":")
    return _joined(pairs, items, "{", "}")


def _joined(lists: pa.Array, items: pa.Array, before: str, after: str) -> pa.Array:
    """Return lists with these texts for items as one text each."""
    return _around(before, pc.binary_join(list_of(lists, items, pa.list_(pa.string())), ","), after)


def _escaped(texts: pa.Array) -> pa.Array:
    found = pc.replace_substring(texts, "\\", "\\\\")
    found = _around('"', pc.replace_substring(found, '"', '\\"'), '"')
    has_control = pc.match_substring_regex(texts, r"[\x00-\x1f]")
    if not pc.any(has_control).as_py():
        return found
    own = [json.dumps(text, ensure_ascii=False) for text in texts.filter(has_control).to_pylist()]
    return pc.replace_with_mask(found, pc.fill_null(has_control, False), pa.array(own, pa.string()))


# --- single values ---------------------------------------------------------------------------------


def _around(before: str, texts: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, texts, after, "")


def _one_by_one(array: pa.Array, text_of: Callable[[Any], str]) -> pa.Array:
    texts = [None if value is None else text_of(value) for value in array.to_pylist()]
    return pa.array(texts, pa.string())


def _base64(array: pa.Array) -> pa.Array:
    return _one_by_one(array, lambda value: base64.b64encode(value).decode())


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind):
        moments = pc.cast(
            pc.cast(array, pa.timestamp("us", kind.tz)).view(pa.int64()).view(pa.timestamp("us")), pa.string()
        )
        texts = pc.replace_substring(moments, " ", "T")
        return texts if kind.tz is None else pc.binary_join_element_wise(texts, "Z", "")
    return pc.cast(array, pa.string())


def _interval(value: timedelta) -> str:
    """Return a duration inside of something else, as Spark writes its own type for them."""
    micros = value // _MICROSECOND
    seconds, fraction = divmod(abs(micros), 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    tail = f".{fraction:06}".rstrip("0") if fraction else ""
    sign = "-" if micros < 0 else ""
    return f"\"INTERVAL '{sign}{days} {hours:02}:{minutes:02}:{seconds:02}{tail}' DAY TO SECOND\""


def _numbers(array: pa.Array, words: dict[str, str]) -> pa.Array:
    """Return numbers as Java prints them; `words` are for those that are none."""
    size = pc.abs(array)
    is_plain = pc.or_(
        pc.equal(size, 0), pc.and_(pc.greater_equal(size, _NUMBER_PLAIN_MIN), pc.less(size, _NUMBER_PLAIN_MAX))
    )
    texts = pc.cast(array, pa.string())
    whole = pc.invert(pc.match_substring(texts, "."))
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    is_other = pc.fill_null(pc.invert(is_plain), False)
    if not pc.any(is_other).as_py():
        return texts
    values = array.filter(is_other).to_numpy(zero_copy_only=False)
    others = [words.get(str(value)) or _with_exponent(value) for value in values]
    return pc.replace_with_mask(texts, is_other, pa.array(others, pa.string()))


def _with_exponent(value: np.floating[Any]) -> str:
    sign, digits, exponent = Decimal(str(value)).as_tuple()
    kept = "".join(map(str, digits)).rstrip("0") or "0"
    assert isinstance(exponent, int)
    power = exponent + len(digits) - 1
    return f"{'-' if sign else ''}{kept[0]}.{kept[1:] or '0'}E{power}"
