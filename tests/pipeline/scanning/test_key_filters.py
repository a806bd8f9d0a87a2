"""Which rows conditions on a key leave: ranges, held against every key of a small table."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product

import pyarrow as pa
import pytest

from ebla.model.keys import KeyCodec
from ebla.model.schema import Column
from ebla.pipeline.scanning.key_filters import POINTS_MAX, AllOf, AnyOf, Compared, Condition, key_ranges


def codec(**columns: pa.DataType) -> KeyCodec:
    return KeyCodec([Column(at, name, kind) for at, (name, kind) in enumerate(columns.items(), 1)])


PAIR = codec(shop=pa.int32(), day=pa.string())
PAIRS = [(shop, day) for shop in range(-2, 4) for day in ("", "a", "a\0", "ab", "b", "\uffff")]
NAME = codec(name=pa.string())


def is_true(condition: Condition | None, key: dict[str, object]) -> bool:
    if condition is None:
        return True
    if isinstance(condition, AllOf):
        return all(is_true(part, key) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return any(is_true(part, key) for part in condition.parts)
    if condition.column not in key:
        return True
    held, value = key[condition.column], condition.values[0] if condition.values else None
    if condition.how == "in":
        return held in condition.values
    if condition.how == "begins":
        return str(held).startswith(str(value))
    compared = {"=": "__eq__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[condition.how]
    return bool(getattr(held, compared)(value))


def kept(conditions: list[Condition | None]) -> list[tuple[int, str]]:
    ranges = key_ranges(conditions, PAIR)
    return [key for key in PAIRS if ranges is None or any(one.contains(PAIR.encode(key)) for one in ranges)]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([Compared("=", "shop", (2,))], [key for key in PAIRS if key[0] == 2]),
        ([Compared("<", "shop", (0,))], [key for key in PAIRS if key[0] < 0]),
        ([Compared("<=", "shop", (0,))], [key for key in PAIRS if key[0] <= 0]),
        ([Compared(">", "shop", (2,))], [key for key in PAIRS if key[0] > 2]),
        ([Compared(">=", "shop", (2,)), Compared("<", "shop", (3,))], [key for key in PAIRS if key[0] == 2]),
        ([Compared("in", "shop", (-1, 3))], [key for key in PAIRS if key[0] in (-1, 3)]),
        ([Compared("=", "shop", (1,)), Compared(">", "day", ("a",))], [(1, "a\0"), (1, "ab"), (1, "b"), (1, "\uffff")]),
        ([Compared("in", "shop", (1, 2)), Compared("=", "day", ("b",))], [(1, "b"), (2, "b")]),
        ([Compared("=", "shop", (1,)), Compared("=", "shop", (2,))], []),
        ([AnyOf((Compared("=", "shop", (1,)), Compared(">", "shop", (2,))))], [k for k in PAIRS if k[0] in (1, 3)]),
    ],
)
def test_conditions_on_the_first_columns_of_a_key_leave_exactly_their_rows(
    conditions: list[Condition | None], expected: list[tuple[int, str]]
) -> None:
    assert kept(conditions) == expected


@pytest.mark.parametrize(
    "conditions",
    [
        [],
        [None],
        [Compared("=", "day", ("a",))],
        [Compared("=", "amount", (1,))],
        [AnyOf((Compared("=", "shop", (1,)), None))],
        [AnyOf((Compared("=", "shop", (1,)), Compared("=", "day", ("a",))))],
        [Compared("=", "shop", (1 << 40,))],
        [Compared("=", "shop", ("1",))],
    ],
)
def test_where_conditions_say_nothing_about_the_first_column_it_is_every_row(
    conditions: list[Condition | None],
) -> None:
    assert key_ranges(conditions, PAIR) is None


def test_ranges_never_lack_a_row_for_which_the_conditions_are_true() -> None:
    dice = random.Random(290)

    def one(depth: int) -> Condition | None:
        if depth and dice.random() < 0.4:
            parts = tuple(one(depth - 1) for _ in range(dice.randrange(1, 4)))
            return AllOf(parts) if dice.random() < 0.5 else AnyOf(parts)
        if dice.random() < 0.1:
            return None
        name, values = dice.choice([("shop", range(-2, 4)), ("day", ("", "a", "ab", "b", "c"))])
        if dice.random() < 0.3:
            return Compared("in", name, tuple(dice.choices(values, k=dice.randrange(1, 4))))
        return Compared(dice.choice(("=", "<", "<=", ">", ">=")), name, (dice.choice(values),))

    narrowed = 0
    for _ in range(1_000):
        conditions = [one(2) for _ in range(dice.randrange(1, 4))]
        found = set(kept(conditions))
        wanted = {k for k in PAIRS if all(is_true(part, {"shop": k[0], "day": k[1]}) for part in conditions)}
        assert wanted <= found, conditions
        narrowed += len(found) < len(PAIRS)
    assert narrowed > 500


def test_a_key_of_one_string_is_compared_whole_or_by_how_it_begins() -> None:
    names = ["", "a", "a\0", "ab", "b"]

    def left(condition: Condition) -> list[str]:
        ranges = key_ranges([condition], NAME)
        assert ranges is not None
        return [name for name in names if any(one.contains(name.encode()) for one in ranges)]

    assert left(Compared("=", "name", ("a",))) == ["a"]
    assert left(Compared("<=", "name", ("a",))) == ["", "a"]
    assert left(Compared(">", "name", ("a",))) == ["a\0", "ab", "b"]
    assert left(Compared("begins", "name", ("a",))) == ["a", "a\0", "ab"]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.uint64(), Decimal(1), Decimal((1 << 64) - 1)),
        (pa.binary(), b"\0", b"\xff"),
        (pa.date32(), date(1969, 1, 1), date(2026, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)),
        (pa.timestamp("us"), datetime(1969, 1, 1), datetime(2026, 1, 1, microsecond=1)),
    ],
)
def test_values_of_every_type_that_spark_orders_alike_are_compared(
    kind: pa.DataType, low: object, high: object
) -> None:
    own = codec(at=kind)
    stored = [int(one) if isinstance(one, Decimal) else one for one in (low, high)]
    for how, given in product(("=", "<", "<=", ">", ">="), (low, high)):
        ranges = key_ranges([Compared(how, "at", (given,))], own)  # type: ignore[arg-type]
        assert ranges is not None
        for key, value in zip(stored, (low, high), strict=True):
            is_in = any(one.contains(own.encode(key)) for one in ranges)
            assert is_in == is_true(Compared(how, "at", (given,)), {"at": value})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [pa.float64(), pa.timestamp("ns"), pa.timestamp("s"), pa.bool_()])
def test_types_that_spark_compares_in_its_own_way_are_left_to_it(kind: pa.DataType) -> None:
    assert key_ranges([Compared("<", "at", (1,))], codec(at=kind)) is None


def test_many_keys_are_looked_for_by_their_first_column_alone() -> None:
    many = tuple(range(POINTS_MAX + 1))
    ranges = key_ranges([Compared("in", "shop", many), Compared("=", "day", ("a",))], PAIR)
    assert ranges is not None
    assert len(ranges) == len(many)
    assert ranges[0] == PAIR.prefix_range((0,))
