"""Arrays into the declared types, without losing anything.

    Python values  --array_of-->  pa.Array of the type  <--cast_array--  pa.Array of another type
                 (value_arrays.py)

Arrow itself is generous: it reads 1.5 as the int 1, drops the zone of a datetime, cuts microseconds to seconds, turns
a number that is too large for a float32 into infinity. A store that promises to give back what it was given refuses
these. The one thing allowed is that a finite float is rounded to a narrower float column, as declaring one asks for.

What goes where (an array may also be a dictionary of these, or all null):

    integer    <- integer, decimal without fraction; float without fraction that no other integer is rounded to, which
                  is below 2**53 for a float64 (arrays only)
    float      <- float, integer that it holds exactly
    decimal    <- decimal, integer
    string     <- string; binary that is UTF-8 (arrays only)
    binary     <- binary; string (arrays only), as UTF-8
    date       <- date, naive midnight
    timestamp  <- timestamp, both with a zone or both without; date where there is no zone
    time, duration, list, struct  <- the same in another unit or with other items

Errors name the place and the first value that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch, RequestError

__all__ = [
    "ARROW_ERRORS",
    "ZONE_HINTS",
    "Unfit",
    "cast_array",
    "cast_bytes",
    "cast_hint",
    "castable",
    "check_castable",
    "exact_cast",
    "is_text",
    "kind_of",
    "list_array",
    "text_lengths",
]

ARROW_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)
_TEXT = frozenset({"string", "binary"})
# Integers from 2 to the power of these on are rounded by floats.
_MANTISSA_BITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}


class Unfit(Exception):
    """A cast would lose something; the message says what. Becomes a typed error where the place is known."""


# --- which types go together ---------------------------------------------------------------------


@lru_cache(maxsize=1024)
def kind_of(type_: pa.DataType) -> str:
    """Return in a word what values of a type are; types of one kind differ in width, unit or form."""
    types = pa.types
    checks: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("boolean", types.is_boolean),
        ("string", lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t)),
        ("binary", lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_binary_view(t)),
        ("binary", types.is_fixed_size_binary),
        ("date", types.is_date),
        ("zoned timestamp", lambda t: types.is_timestamp(t) and t.tz is not None),
        ("timestamp", types.is_timestamp),
        ("time", types.is_time),
        ("duration", types.is_duration),
        ("list", lambda t: types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t)),
        ("struct", types.is_struct),
        ("null", types.is_null),
        ("dictionary", types.is_dictionary),
    )
    return next((kind for kind, check in checks if check(type_)), str(type_))


_FROM: dict[str, frozenset[str]] = {
    "integer": frozenset({"integer", "float", "decimal"}),
    "float": frozenset({"float", "integer"}),
    "decimal": frozenset({"decimal", "integer"}),
    "string": _TEXT,
    "binary": _TEXT,
    "date": frozenset({"date", "timestamp"}),
    "timestamp": frozenset({"timestamp", "date"}),
}


def castable(given: pa.DataType, to: pa.DataType) -> bool:
    """Tell whether arrays of type `given` may be cast to `to`, values permitting."""
    if given == to:
        return True
    if isinstance(given, pa.BaseExtensionType):
        return castable(given.storage_type, to)
    from_, into = kind_of(given), kind_of(to)
    if from_ == "null":
        return True
    if from_ == "dictionary":
        return kind_of(given.value_type) not in ("list", "struct") and castable(given.value_type, to)
    if into == "list" and from_ == "list":
        return castable(given.value_type, to.value_type)
    if into == "struct" and from_ == "struct":
        fields = {field.name: field.type for field in given}
        return len(fields) == given.num_fields == to.num_fields and all(
            field.name in fields and castable(fields[field.name], field.type) for field in to
        )
    return from_ in _FROM.get(into, (into,))


def is_text(type_: pa.DataType) -> bool:
    """Tell whether values of the type are strings or bytes of any length."""
    return kind_of(type_) in _TEXT


# --- sizes ---------------------------------------------------------------------------------------


def text_lengths(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the length in bytes of every value of a string or binary array; 0 for null."""
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        # Arrow has no kernel for these. A view is 16 bytes and begins with the length.
        lengths: np.ndarray[Any, Any] = np.zeros(len(array), np.int64)
        if len(array):
            lengths[:] = np.frombuffer(array.buffers()[1], np.int32, 4 * len(array), 16 * array.offset)[::4]
            lengths[np.asarray(array.is_null())] = 0
        return lengths
    return np.asarray(pc.fill_null(pc.binary_length(array), 0)).astype(np.int64)


def cast_bytes(array: pa.Array, to: pa.DataType) -> int:
    """Return about how many bytes `array` will have as `to`. Dictionaries, views and nulls can be small and unfold."""
    if isinstance(array, pa.ExtensionArray):
        return cast_bytes(array.storage, to)
    count, from_, into = len(array), kind_of(array.type), kind_of(to)
    if from_ == "list" and into == "list":
        return 8 * count + cast_bytes(array.values, to.value_type)
    if from_ == "struct" and into == "struct":
        return count + sum(cast_bytes(array.field(field.name), field.type) for field in to)
    if from_ == "dictionary" and is_text(array.type.value_type):
        lengths = text_lengths(array.dictionary)
        return 8 * count + int(lengths[np.asarray(pc.drop_null(array.indices)).astype(np.int64)].sum())
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return 8 * count + int(text_lengths(array).sum())
    if is_text(array.type):
        return 8 * count + int(array.get_total_buffer_size())
    return count * 32  # the widest there is: a decimal256


# --- arrays --------------------------------------------------------------------------------------


def check_castable(given: pa.DataType, to: pa.DataType, what: str, error: type[RequestError] = InvalidBatch) -> None:
    """Raise `error` if `what`, which is of type `to`, takes no arrays of type `given`."""
    if not castable(given, to):
        raise error(f"{what} is {to} and does not take {given}{cast_hint(given, to)}")


def cast_array(array: pa.Array, to: pa.DataType, what: str, error: type[RequestError] = InvalidBatch) -> pa.Array:
    """Return `array` as the type `to`, or raise `error` saying that `what` does not take it, and why."""
    given = array.type
    if given == to:
        return array
    check_castable(given, to, what, error)
    try:
        return exact_cast(array, to)
    except (Unfit, *ARROW_ERRORS) as reason:
        at = _first_unfit(array, to)
        value = _shown(array[at])
        raise error(f"{what} is {to} and does not take {value} of row {at}: {reason}") from None


def exact_cast(array: pa.Array, to: pa.DataType) -> pa.Array:
    """Return `array` as the type `to`; `Unfit`, or an error of Arrow, if that would lose something."""
    if isinstance(array, pa.ExtensionArray):
        return exact_cast(array.storage, to)
    if array.type == to:
        return array
    from_, into = kind_of(array.type), kind_of(to)
    if from_ == "dictionary":
        return _cast_dictionary(array, to)
    if from_ == into == "struct":
        fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        columns = [exact_cast(fields[field.name], field.type) for field in to]
        return pa.StructArray.from_arrays(columns, fields=list(to), mask=array.is_null())
    if from_ == into == "list":
        if pa.types.is_fixed_size_list(to):
            return pc.cast(exact_cast(array, pa.list_(to.value_type)), to)
        # Arrow casts all that lies under a list, also what a slice or a null leaves out; so flatten, cast, and rebuild.
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
        return list_array(lengths, exact_cast(array.flatten(), to.value_type), array.is_null(), to)
    if from_ == "integer" and into == "decimal":
        # Arrow wants room for the widest integer, not for the ones that are there: give it room, then take it back.
        return pc.cast(pc.cast(array, pa.decimal256(20 + max(0, to.scale), to.scale)), to)
    result = pc.cast(array, to)
    _check_kept(array, result)
    return result


def _cast_dictionary(array: pa.Array, to: pa.DataType) -> pa.Array:
    try:
        return exact_cast(array.dictionary, to).take(array.indices)
    except (Unfit, *ARROW_ERRORS):
        # A value that nobody refers to does no harm.
        return exact_cast(array.dictionary_decode(), to)


def _check_kept(given: pa.Array, result: pa.Array) -> None:
    """Catch what Arrow's safe casts let pass: floats that became infinite or were rounded, dates with a time of day."""
    from_, into = kind_of(given.type), kind_of(result.type)
    if from_ == into == "float":
        if result.type.bit_width < given.type.bit_width and _became_infinite(given, result):
            raise Unfit("it is too large")
    elif from_ == "float" and into == "integer":
        if _has_rounded(given):
            raise Unfit(f"a float of this size may stand for several integers: give {result.type}")
    elif from_ == "timestamp" and into == "date" and not pc.cast(result, given.type).equals(given):
        raise Unfit("it has a time of day")
    elif from_ == "integer" and result.type == pa.float16() and not pc.cast(result, given.type).equals(given):
        raise Unfit("it would be rounded")


def _became_infinite(given: pa.Array, result: pa.Array) -> bool:
    before, after = pc.cast(given, pa.float64()), pc.cast(result, pa.float64())
    return bool(pc.any(pc.and_(pc.is_inf(after), pc.is_finite(before))).as_py())


def _has_rounded(floats: pa.Array) -> bool:
    """Tell whether there is a float so large that integers beside it are rounded to it."""
    limit = float(1 << _MANTISSA_BITS[floats.type])
    span = pc.min_max(pc.cast(floats, pa.float64()))
    return bool(span["min"].is_valid and max(-span["min"].as_py(), span["max"].as_py()) >= limit)


def list_array(
    lengths: Sequence[int] | np.ndarray[Any, Any], items: pa.Array, is_null: pa.Array, to: pa.DataType
) -> pa.Array:
    """Return lists of so many of the items each, null where `is_null` says so."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    large = pa.types.is_large_list(to)
    build = pa.LargeListArray.from_arrays if large else pa.ListArray.from_arrays
    return build(pa.array(offsets, pa.int64() if large else pa.int32()), items, type=to, mask=is_null)


def _first_unfit(array: pa.Array, to: pa.DataType) -> int:
    """Return the position of the first value that does not cast, by halving."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            exact_cast(array.slice(low, middle - low), to)
            low = middle
        except (Unfit, *ARROW_ERRORS):
            high = middle
    return low


def _shown(scalar: pa.Scalar) -> str:
    try:
        text = repr(scalar.as_py())
    except Exception:  # a moment that Python has no datetime for, in a zone that it does not know: show the number
        text = repr(getattr(scalar, "value", str(scalar.type)))
    return text if len(text) <= 60 else text[:57] + "..."


def cast_hint(given: pa.DataType, to: pa.DataType) -> str:
    """Say what to do with values of type `given` that `to` does not take; it goes on after the reason."""
    from_, into = kind_of(given), kind_of(to)
    if {from_, into} == {"timestamp", "zoned timestamp"}:
        return ": " + ZONE_HINTS[into]
    if from_ == "integer" and into in ("timestamp", "zoned timestamp", "date", "time", "duration"):
        return f": the unit of a bare number is a guess, cast it to {into} first"
    return ": convert it first"


ZONE_HINTS = {
    "timestamp": "it has no time zone, so give datetimes without one",
    "zoned timestamp": "it has a time zone, so give datetimes with one, such as datetime(..., tzinfo=timezone.utc)",
}
