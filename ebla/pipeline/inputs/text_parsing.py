"""Texts into values of a column's type, as Spark's casts read them; what is none becomes null.

    " 12 ", "+7"                              whole numbers           "12.5" is none
    "1.5", "1e3", ".5", "NaN", "-Infinity"    numbers
    "true", "T", "yes", "1"                   booleans
    "2026-01-31", "2026-1-31", "2026"         days; "2026-01-31T12:00" is none, for its hours would be lost
    "2026-01-31 12:30[:15[.123456][zone]]"    moments, in UTC unless they have a zone (Z, UTC, +02:00)
    "12:30:15[.123456]"                       times of day
    "1 02:03:04.5"                            durations: days, hours, minutes, seconds

Columns are parsed by Arrow's kernels, after their shape was checked; Arrow alone would take hexadecimal numbers and
other things that Spark does not. Values come in a type that holds all that the text says: whether the column holds it
too is found out where rows are cast.
"""

from __future__ import annotations

import re
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["parse_texts", "parsed_type", "type_of_texts"]

_INTEGER = r"^[+-]?[0-9]+$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_TRUE = pa.array(["t", "true", "y", "yes", "1"])
_FALSE = pa.array(["f", "false", "n", "no", "0"])
_WORDS = {"nan": "nan", "inf": "inf", "+inf": "inf", "infinity": "inf", "+infinity": "inf"}
_WORDS |= {"-inf": "-inf", "-infinity": "-inf"}
_ZONE = r" ?(?P<z>Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2})?)?"
_SECONDS = r":(?P<S>[0-9]{1,2})(?:\.(?P<f>[0-9]{0,9}))?"
_MOMENT = (
    r"^(?P<y>[0-9]{4})(?:-(?P<m>[0-9]{1,2})(?:-(?P<d>[0-9]{1,2})"
    rf"(?:[T ](?P<H>[0-9]{{1,2}}):(?P<M>[0-9]{{1,2}})(?:{_SECONDS}{_ZONE})?)?)?)?$"
)
_TIME = rf"^(?P<H>[0-9]{{1,2}}):(?P<M>[0-9]{{1,2}}){_SECONDS}$"
_DURATION = re.compile(
    r"^(?:INTERVAL )?'?([+-]?)(\d+) (\d{1,2}):(\d{2}):(\d{2}(?:\.\d{1,6})?)'?(?: DAY TO SECOND)?$", re.IGNORECASE
)
_TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_MICROSECONDS = 86_400_000_000


def parse_texts(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return what texts say, null where one says nothing of that type; in `wanted`, or a finer type of its kind."""
    types = pa.types
    trimmed = pc.utf8_trim_whitespace(texts)
    if types.is_integer(wanted):
        return _cast(_where(trimmed, _INTEGER), wanted)
    if types.is_floating(wanted):
        return _floats(trimmed)
    if types.is_decimal(wanted):
        return _cast(_where(trimmed, _NUMBER), wanted)
    if types.is_boolean(wanted):
        low = pc.utf8_lower(trimmed)
        known = pc.or_(pc.is_in(low, _TRUE), pc.is_in(low, _FALSE))
        return pc.if_else(known, pc.is_in(low, _TRUE), pa.scalar(None, pa.bool_()))
    if types.is_date(wanted):
        micros = _moments(trimmed, ignore_zone=True)
        is_day = pc.equal(_modulo(micros, _DAY_MICROSECONDS), 0)
        return pc.cast(pc.if_else(is_day, micros, None).view(pa.timestamp("us")), pa.date32())
    if types.is_timestamp(wanted):
        micros = _moments(trimmed, ignore_zone=wanted.tz is None)
        return micros.view(pa.timestamp("us", None if wanted.tz is None else "UTC"))
    if types.is_time(wanted):
        return _times(trimmed, wanted)
    if types.is_duration(wanted):
        return pa.array([_duration(text) for text in trimmed.to_pylist()], pa.duration("us"))
    return texts


def parsed_type(wanted: pa.DataType) -> pa.DataType:
    """Return the type in which texts are parsed for a column."""
    return parse_texts(pa.array([], pa.string()), wanted).type


def type_of_texts(texts: pa.Array) -> pa.DataType | None:
    """Return the narrowest type that all texts are of, by Spark's rules for new tables; None if there are none."""
    given = texts.filter(pc.and_(texts.is_valid(), pc.not_equal(texts, "")))
    if not len(given):
        return None
    if _are_all(_where(given, r"^[+-]?[0-9]+$")):
        if _are_all(parse_texts(given, pa.int64())):
            return pa.int64()
        digits = pc.max(pc.utf8_length(pc.utf8_ltrim(given, "+-0"))).as_py()
        return pa.decimal128(digits, 0) if digits <= 38 else pa.float64()
    for kind in (pa.float64(), pa.date32(), pa.timestamp("us", "UTC")):
        # Most columns of text are known for it by their first values.
        if _are_all(parse_texts(given.slice(0, 16), kind)) and _are_all(parse_texts(given, kind)):
            return kind
    low = pc.utf8_lower(given)
    return pa.bool_() if pc.all(pc.is_in(low, pa.array(["true", "false"]))).as_py() else pa.string()


def _are_all(values: pa.Array) -> bool:
    return bool(values.null_count == 0)


# --- by kind ---------------------------------------------------------------------------------------


def _where(texts: pa.Array, pattern: str) -> pa.Array:
    """Return texts without a plus in front, null where they do not have that shape."""
    fits = pc.match_substring_regex(texts, pattern)
    return pc.if_else(fits, pc.utf8_ltrim(texts, "+"), pa.scalar(None, pa.string()))


def _cast(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast texts; null where one is too large, or has more digits than the type."""
    try:
        return pc.cast(texts, wanted)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, wanted)
        middle = len(texts) // 2
        return pa.concat_arrays([_cast(texts.slice(0, middle), wanted), _cast(texts.slice(middle), wanted)])


def _floats(texts: pa.Array) -> pa.Array:
    values = _cast(_where(texts, _NUMBER), pa.float64())
    if values.null_count == texts.null_count:
        return values
    low = pc.utf8_lower(texts)
    for word, value in _WORDS.items():
        values = pc.if_else(pc.fill_null(pc.equal(low, word), False), pa.scalar(float(value)), values)
    return values


def _parts(texts: pa.Array, pattern: str, names: str) -> dict[str, pa.Array]:
    """Return the numbers that a pattern finds, by name; 0 where one is left out, null where the text is another."""
    found = pc.extract_regex(texts, pattern)
    is_null = found.is_null()
    fields = dict(zip((field.name for field in found.type), found.flatten(), strict=True))
    parts = {}
    for name in names:
        text = fields[name]
        if name == "f":  # digits behind the point, as nanoseconds
            text = pc.utf8_rpad(text, 9, "0")
        filled = pc.if_else(pc.equal(text, ""), "0", text)
        parts[name] = pc.if_else(is_null, pa.scalar(None, pa.int64()), pc.cast(pc.fill_null(filled, "0"), pa.int64()))
    if "z" in fields:
        parts["z"] = pc.if_else(is_null, pa.scalar(None, pa.string()), fields["z"])
    return parts


def _moments(texts: pa.Array, *, ignore_zone: bool) -> pa.Array:
    """Return microseconds since 1970, of days and of moments, in UTC."""
    parts = _parts(texts, _MOMENT, "ymdHMSf")
    month, day = (pc.if_else(pc.equal(parts[name], 0), 1, parts[name]) for name in "md")
    date_texts = pc.binary_join_element_wise(_padded(parts["y"], 4), _padded(month, 2), _padded(day, 2), "-")
    days = pc.cast(pc.cast(_cast(date_texts, pa.date32()), pa.int32()), pa.int64())
    micros = pc.add(pc.multiply(days, _DAY_MICROSECONDS), _of_day(parts))
    if ignore_zone:
        return micros
    zones = parts["z"]
    if not pc.any(pc.match_substring_regex(pc.fill_null(zones, ""), "^[+-]")).as_py():
        return micros
    shifts = pa.array([_zone_microseconds(zone) for zone in zones.to_pylist()], pa.int64())
    return pc.subtract(micros, shifts)


def _padded(numbers: pa.Array, width: int) -> pa.Array:
    return pc.utf8_lpad(pc.cast(numbers, pa.string()), width, "0")


def _of_day(parts: dict[str, pa.Array]) -> pa.Array:
    """Return the microseconds since midnight, null if an hour, minute or second cannot be."""
    hour, minute, second = parts["H"], parts["M"], parts["S"]
    fits = pc.and_(pc.and_(pc.less(hour, 24), pc.less(minute, 60)), pc.less(second, 60))
    seconds = pc.add(pc.add(pc.multiply(hour, 3600), pc.multiply(minute, 60)), second)
    micros = pc.add(pc.multiply(seconds, 1_000_000), pc.divide(parts["f"], 1_000))
    return pc.if_else(fits, micros, pa.scalar(None, pa.int64()))


def _zone_microseconds(zone: str | None) -> int:
    found = re.fullmatch(r"([+-])(\d{1,2}):?(\d{2})?", zone or "")
    if found is None:
        return 0
    minutes = int(found[2]) * 60 + int(found[3] or 0)
    return (-minutes if found[1] == "-" else minutes) * 60_000_000


def _modulo(numbers: pa.Array, by: int) -> pa.Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, by), by))


def _times(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    parts = _parts(texts, _TIME, "HMSf")
    micros = _of_day(parts)
    ticks = _TICKS_PER_SECOND[wanted.unit]
    if ticks >= 1_000_000:
        return pc.multiply(micros, ticks // 1_000_000)
    step = 1_000_000 // ticks
    return pc.if_else(pc.equal(_modulo(micros, step), 0), pc.divide(micros, step), pa.scalar(None, pa.int64()))


def _duration(text: str | None) -> np.timedelta64 | None:
    found = None if text is None else _DURATION.match(text)
    if found is None:
        return None
    sign, days, hours, minutes, seconds = found.groups()
    length = timedelta(days=int(days), hours=int(hours), minutes=int(minutes), seconds=float(seconds))
    return np.timedelta64(-length if sign == "-" else length, "us")
