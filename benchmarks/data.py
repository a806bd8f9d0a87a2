"""The rows that every workload uses, and their natural forms.

    row (16 random bytes) | id int64 | amount float64 | name ~40 characters | note ~40 characters

The keys are random, so they arrive shuffled. The strings are words drawn from a large vocabulary: hardly any string
occurs twice, so a dictionary encoding gains nothing, and a general compressor gains about what it does on real text.
A batch is a function of (seed, number), so that two processes can make the same rows without passing them around.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

KEY_BYTES = 16
BATCH_ROWS = 1_000
COLUMNS = {"id": "int64", "amount": "float64", "name": "string", "note": "string"}
NAMES = ("row", *COLUMNS)
ARROW_SCHEMA = pa.schema(
    [
        ("row", pa.binary()),
        ("id", pa.int64()),
        ("amount", pa.float64()),
        ("name", pa.string()),
        ("note", pa.string()),
    ]
)
# Key and values as they are, without any encoding: what "a row has so many bytes" means in the figures.
ROW_BYTES = KEY_BYTES + 8 + 8 + 40 + 40

_TEXT_BYTES_MIN, _TEXT_BYTES_MAX = 32, 48
_HEADER = struct.Struct("<qdH")


def _vocabulary() -> Any:
    rng = np.random.default_rng(20260101)
    words = rng.integers(ord("a"), ord("z") + 1, (4096, 8), dtype=np.uint8)
    words[:, 7] = ord(" ")
    return words


_VOCABULARY = _vocabulary()


def batch(number: int, rows: int = BATCH_ROWS, seed: int = 1, keys: Any = None) -> Any:
    """Return batch `number` as a RecordBatch of its own buffers; `keys` replaces its keys (n x 16 bytes, uint8)."""
    rng = np.random.default_rng((seed, number))
    if keys is None:
        keys = rng.integers(0, 256, (rows, KEY_BYTES), dtype=np.uint8)
    return pa.RecordBatch.from_arrays(
        [
            _binary(keys),
            pa.array(rng.integers(0, 1 << 40, rows)),
            pa.array(rng.normal(100.0, 25.0, rows)),
            _text(rng, rows),
            _text(rng, rows),
        ],
        schema=ARROW_SCHEMA,
    )


def batches(rows: int, seed: int = 1, batch_rows: int = BATCH_ROWS) -> list[Any]:
    """Return `rows` rows in batches of `batch_rows`, in shuffled key order."""
    return list(stream(rows, seed, batch_rows))


def stream(rows: int, seed: int = 1, batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
    """Make the same batches one at a time, for loads that must not fit in memory."""
    for number, begin in enumerate(range(0, rows, batch_rows)):
        yield batch(number, min(batch_rows, rows - begin), seed)


def _binary(keys: Any) -> Any:
    rows = len(keys)
    offsets = np.arange(rows + 1, dtype=np.int32) * KEY_BYTES
    flat = np.ascontiguousarray(keys).reshape(-1)
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(flat)])


def _text(rng: Any, rows: int) -> Any:
    lengths = rng.integers(_TEXT_BYTES_MIN, _TEXT_BYTES_MAX + 1, rows)
    letters = _VOCABULARY[rng.integers(0, len(_VOCABULARY), (rows, _TEXT_BYTES_MAX // 8))].reshape(rows, -1)
    flat = letters[np.arange(_TEXT_BYTES_MAX) < lengths[:, None]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(flat))


# --- natural forms -------------------------------------------------------------------------------


def tuples(given: Any) -> list[tuple[Any, ...]]:
    """Return the rows as tuples, key first: what SQL drivers take."""
    return list(zip(*(column.to_pylist() for column in given.columns), strict=True))


def dicts(given: Any) -> list[dict[str, Any]]:
    """Return the rows as dicts: what a user puts one at a time."""
    return list(given.to_pylist())


def pairs(given: Any) -> list[tuple[bytes, bytes]]:
    """Return the rows as (key, encoded values): what key-value stores take."""
    pack = _HEADER.pack
    return [
        (row, pack(number, amount, len(name)) + name.encode() + note.encode())
        for row, number, amount, name, note in tuples(given)
    ]


def decode(key: bytes, value: bytes) -> dict[str, Any]:
    """Turn the encoded values of `pairs` into the dict they came from, as a user of a key-value store would."""
    number, amount, name_bytes = _HEADER.unpack_from(value)
    begin = _HEADER.size
    return {
        "row": key,
        "id": number,
        "amount": amount,
        "name": value[begin : begin + name_bytes].decode(),
        "note": value[begin + name_bytes :].decode(),
    }


def keys_of(given: list[Any]) -> list[bytes]:
    """Return the keys of many batches, in their order."""
    return [key for one in given for key in one.column("row").to_pylist()]


def zipf(keys: list[bytes], count: int, exponent: float = 0.99, seed: int = 7) -> list[bytes]:
    """Draw `count` keys so that the k-th most popular one comes with a frequency of 1 / k ** exponent."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, len(keys) + 1, dtype=np.float64) ** -exponent
    ranks = rng.choice(len(keys), size=count, p=weights / weights.sum())
    return [keys[rank] for rank in ranks]


def distinct(keys: list[bytes], count: int, seed: int = 11) -> list[bytes]:
    """Draw `count` different keys uniformly."""
    chosen = np.random.default_rng(seed).choice(len(keys), size=count, replace=False)
    return [keys[at] for at in chosen]
