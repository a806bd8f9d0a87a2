"""The checksum of rows: the same in any order and however they are cut, another one for any other rows."""

from __future__ import annotations

import random
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ebla.pipeline.backups.row_checksum import RowSum, add_up, hashes_of

MAP = pa.map_(pa.string(), pa.binary())
STRUCT = pa.struct({"x": pa.int32(), "y": pa.string()})

# Values that are all different, some of them only just; those of one type.
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [0, 1, -1, 127, None]),
    (pa.uint64(), [0, 1, (1 << 64) - 1, None]),
    (pa.float16(), [0.0, 1.5, None]),
    (pa.float32(), [0.0, -0.0, 1.5, float("inf"), None]),
    (pa.float64(), [0.0, -0.0, 1.5, float("nan"), None]),
    (pa.decimal128(30, 2), [Decimal("0.00"), Decimal("-0.01"), Decimal("12345678901234567890123456.78"), None]),
    (pa.decimal256(60, 0), [Decimal(0), Decimal(10) ** 50, None]),
    (pa.string(), ["", "a", "b", "ab", "ba", "a\0", "\0", "12345678", "123456789", "1234567812345678", None]),
    (pa.large_string(), ["", "a", "long " * 100, None]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"\0" * 8, b"\0" * 9, b"\0" * 16, b"a", None]),
    (pa.binary(5), [b"12345", b"12354", None]),
    (pa.date32(), [date(1970, 1, 1), date(2026, 1, 1), None]),
    (pa.timestamp("ns"), [0, 1, 1_000, None]),
    (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1), datetime(2026, 1, 2), None]),
    (pa.time64("ns"), [time(0), time(1), None]),
    (pa.duration("s"), [timedelta(0), timedelta(1), None]),
    (pa.list_(pa.int32()), [[], [None], [None, None], [1], [1, 2], [2, 1], [1, None], [None, 1], None]),
    (
        pa.list_(pa.list_(pa.string())),
        [[], [[]], [["a"]], [["a"], []], [[], ["a"]], [["a", "b"]], [["a"], ["b"]], None],
    ),
    (pa.list_(pa.int32(), 2), [[1, 2], [2, 1], [None, 1], None]),
    (STRUCT, [{"x": 1, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": "a"}, {"x": None, "y": None}, None]),
    (
        MAP,
        [[], [("a", b"1")], [("a", b"2")], [("b", b"1")], [("a", b"1"), ("b", b"2")], [("a", b"2"), ("b", b"1")], None],
    ),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda given: str(given)[:30])
def test_different_values_have_different_hashes_wherever_they_lie(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, kind)
    expected = hashes_of(array)
    assert len(set(expected.tolist())) == len(values)
    for begin in range(len(values)):  # as part of a larger array, and by itself
        for end in range(begin, len(values) + 1):
            assert hashes_of(array.slice(begin, end - begin)).tolist() == expected[begin:end].tolist()
            assert hashes_of(pa.array(values[begin:end], kind)).tolist() == expected[begin:end].tolist()


def test_cells_count_in_any_order_and_a_dictionary_for_what_it_stands_for() -> None:
    one, other = (
        hashes_of(pa.array([cells], MAP)) for cells in ([("a", b"1"), ("b", b"2")], [("b", b"2"), ("a", b"1")])
    )
    assert one == other
    text = pa.array(["a", None, "b", "a"])
    assert hashes_of(text.dictionary_encode()).tolist() == hashes_of(text).tolist()


def _sum(table: pa.Table, rows_max: int = 1 << 20) -> tuple[int, str]:
    total = RowSum()
    for batch in table.to_batches(max_chunksize=rows_max):
        total.add(batch)
    return total.rows, total.checksum


def test_rows_count_in_any_order_and_columns_in_theirs() -> None:
    def of(*rows: tuple[int | None, int | None]) -> tuple[int, str]:
        return _sum(pa.table([pa.array(column, pa.int32()) for column in zip(*rows, strict=True)], ["a", "b"]))

    found = [of((1, 2), (3, None)), of((3, None), (1, 2)), of((2, 1), (3, None)), of((1, 2), (None, 3))]
    assert {count for count, _ in found} == {2}
    assert found[0] == found[1]
    assert len({checksum for _, checksum in found}) == 3
    assert of((1, 2), (1, 2)) != of((1, 2)) != of((1, 2), (1, 2), (1, 2))


def test_it_is_the_same_however_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(7)
    words = ["".join(drawn.choices("abc\0", k=drawn.randrange(30))) for _ in range(500)]
    table = pa.table({"n": list(range(500)), "t": words, "l": [words[n : n + n % 4] for n in range(500)]})
    whole = _sum(table)
    assert {_sum(table, rows) for rows in (1, 7, 100, 499)} == {whole}
    parts = []
    for at in range(0, 500, 90):
        parts.append(RowSum())
        for batch in table.slice(at, 90).to_batches():
            parts[-1].add(batch)
    joined = add_up(parts)
    assert (joined.rows, joined.checksum) == whole
    monkeypatch.setattr("ebla.pipeline.backups.row_checksum._PORTION_BYTES", 16)
    assert _sum(table) == whole


def test_it_stays_what_it_is_in_manifests_of_yesterday() -> None:
    table = pa.table(
        {
            "n": pa.array([1, -2, None], pa.int16()),
            "t": ["", "ebla", None],
            "l": pa.array([[1.5], None, []], pa.list_(pa.float64())),
            "c": pa.array([[("q", b"v")], [], None], MAP),
        }
    )
    assert _sum(table) == (3, "24d5466db9ba28b7dfed06cea90abe42")
    assert _sum(table.slice(0, 0)) == (0, "0" * 32)
