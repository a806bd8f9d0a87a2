"""Keys of rows that are on their way into a table: encoded, tried, and placed between cuts, on Spark and without.

    columns of the key --> `encode_rows` --> rows, as bytes --> `places_of` --> which partition each belongs to
    a batch            --> `each_that_fits` --> the batch, or its halves, and one by one the rows that do not fit

On Spark its Python workers do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import RequestError
from ebla.model.keys import KeyCodec
from ebla.pipeline.spark.types import array_from_spark

__all__ = ["each_that_fits", "encode_rows", "places_of"]

Made = TypeVar("Made")


def encode_rows(codec: KeyCodec, arrays: Sequence[pa.Array]) -> pa.Array:
    """Return the rows of keys whose columns come in any types; raise if one of them cannot be a key of the table."""
    named = zip(arrays, codec.key, strict=True)
    return codec.encode_arrays([array_from_spark(a, column.type, f"key column {column.name!r}") for a, column in named])


def each_that_fits(
    rows: pa.RecordBatch,
    make: Callable[[pa.RecordBatch], Made],
    reject: Callable[[pa.RecordBatch, RequestError], None],
) -> Iterator[Made]:
    """Yield what `make` makes of rows, in their order, as many at a time as it takes; `reject` gets each it refuses."""
    if not rows.num_rows:
        return
    try:
        made = make(rows)
    except RequestError as reason:
        if rows.num_rows == 1:
            reject(rows, reason)
            return
        middle = rows.num_rows // 2
        yield from each_that_fits(rows.slice(0, middle), make, reject)
        yield from each_that_fits(rows.slice(middle), make, reject)
        return
    yield made


def places_of(rows: pa.Array, cuts: Sequence[bytes]) -> pa.Array:
    """Return for each row the number of cuts at or before it, which is its partition."""
    return pc.cast(pc.search_sorted(pa.array(cuts, pa.binary()), rows, side="right"), pa.int32())
