"""Keys of rows on their way: encoded, tried, placed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.errors import InvalidKey, RequestError
from ebla.model.declaration import Schema
from ebla.model.keys import KeyCodec
from ebla.pipeline.loading.keyed_rows import each_that_fits, encode_rows, places_of

SCHEMA = Schema(key={"n": "int8", "s": "string"}, columns={"v": "int64"}).number()


def test_every_row_is_made_or_rejected_once_and_in_order() -> None:
    rows = pa.record_batch({"n": [*range(20)]})
    refused = {0, 7, 8, 19}
    rejected: list[int] = []

    def make(part: pa.RecordBatch) -> list[int]:
        numbers: list[int] = part.column("n").to_pylist()
        if refused.intersection(numbers):
            raise InvalidKey("refused")
        return numbers

    def reject(one: pa.RecordBatch, reason: RequestError) -> None:
        assert str(reason) == "refused"
        rejected.extend(one.column("n").to_pylist())

    made = [*each_that_fits(rows, make, reject)]
    assert [n for part in made for n in part] == [n for n in range(20) if n not in refused]
    assert rejected == sorted(refused)
    assert len(made) < 16  # not one by one
    assert [*each_that_fits(rows.slice(0, 0), make, reject)] == []


def test_keys_are_encoded_from_types_that_hold_them() -> None:
    codec = KeyCodec(SCHEMA.key)
    given = [pa.array([1, -3], pa.int64()), pa.array(["a", "b"])]
    assert encode_rows(codec, given).to_pylist() == [codec.encode((1, "a")), codec.encode((-3, "b"))]
    with pytest.raises(RequestError, match="key column 'n'"):
        encode_rows(codec, [pa.array([1_000], pa.int64()), pa.array(["a"])])


def test_a_row_at_a_cut_is_behind_it() -> None:
    rows = pa.array([b"", b"a", b"b", b"ba", b"z"], pa.binary())
    assert places_of(rows, [b"b", b"c"]).to_pylist() == [0, 0, 1, 1, 2]
    assert places_of(rows, []).to_pylist() == [0] * 5
