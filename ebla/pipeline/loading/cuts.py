"""Where the rows of a load are cut into partitions.

    tablets            |-------a-------|--b--|-c-|----------d----------|
    sample of keys      . .. ... .. ..  .      .   . . ...... ..........
    cuts                |---0---|---1---|------2-----|----3----|---4---|

A cut lies between tablets where it can, and inside a tablet where the sample says that too many rows fall into it.
Small neighbours share a partition. Every task then writes a range of rows that no other task writes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from itertools import pairwise
from typing import Any

import pyarrow as pa

from ebla.errors import InvalidKey
from ebla.model.keys import KeyCodec
from ebla.model.schema import Column

__all__ = ["choose_cuts", "key_of_cut"]

# A partition may have so much more than its share before a tablet is cut, and so much less before it is joined.
LARGE_SHARE = 1.5
SMALL_SHARE = 0.75
# Only for finding partitions: how long a key may be is checked elsewhere.
_KEY_BYTES_ANY = 1 << 30


def choose_cuts(bounds: Sequence[bytes], sample: Sequence[bytes], partitions: int) -> list[bytes]:
    """Return the rows at which partitions begin, but the first, ascending and each once.

    `bounds` are the first rows of all tablets but the first; `sample` is a sorted sample of the rows to come. Without
    a sample the tablets are divided evenly. There may be fewer partitions than asked for, or a few more.
    """
    if partitions <= 1:
        return []
    if not sample:
        step = max(1, -(-(len(bounds) + 1) // partitions))
        return list(bounds[step - 1 :: step])
    share = len(sample) / partitions
    edges = [0, *(bisect_left(sample, bound) for bound in bounds), len(sample)]
    cuts: list[bytes] = []
    begun = 0  # where in the sample the open partition begins
    for number, (low, high) in enumerate(pairwise(edges)):
        is_large = high - low > LARGE_SHARE * share
        if number and (low - begun >= SMALL_SHARE * share or (is_large and low > begun)):
            cuts.append(bounds[number - 1])
            begun = low
        if is_large:
            pieces = round((high - low) / share)
            inside = [low + (high - low) * piece // pieces for piece in range(1, pieces)]
            cuts += [sample[place] for place in inside]
            begun = inside[-1]
    return _ascending(cuts)


def _ascending(cuts: Sequence[bytes]) -> list[bytes]:
    """Drop cuts that repeat, because very frequent keys are sampled often, and one that cuts off nothing."""
    kept: list[bytes] = []
    for cut in cuts:
        if cut and (not kept or cut > kept[-1]):
            kept.append(cut)
    return kept


def key_of_cut(key: Sequence[Column], row: bytes) -> tuple[Any, ...] | None:
    """Return the key, or the first columns of one, that `row` is the bound of; None if there is no such key."""
    codec = KeyCodec(key, _KEY_BYTES_ANY)
    for count in range(len(key), 0, -1):
        rest = b""
        if count < len(key):
            rest = KeyCodec(key[count:], _KEY_BYTES_ANY).encode(tuple(_SMALL[_kind(c.type)] for c in key[count:]))
        try:
            values = codec.decode(row + rest)[:count]
            if codec.bound(values) == row:
                return values
        except (InvalidKey, OverflowError, ValueError):  # or a moment that Python has no datetime for
            continue
    return None


def _kind(type_: pa.DataType) -> str:
    types = pa.types
    checks: dict[str, Callable[[pa.DataType], bool]] = {
        "boolean": types.is_boolean,
        "float": types.is_floating,
        "string": types.is_string,
        "binary": types.is_binary,
        "date": types.is_date,
        "zoned": lambda t: types.is_timestamp(t) and t.tz is not None,
        "timestamp": types.is_timestamp,
        "time": types.is_time,
    }
    return next((kind for kind, check in checks.items() if check(type_)), "integer")


# Some value of each kind, to complete the first columns of a key with.
_SMALL: dict[str, object] = {
    "boolean": False,
    "float": 0.0,
    "string": "",
    "binary": b"",
    "date": date(1970, 1, 1),
    "zoned": datetime(1970, 1, 1, tzinfo=UTC),
    "timestamp": datetime(1970, 1, 1),
    "time": time.min,
    "integer": 0,
}
