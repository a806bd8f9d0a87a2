from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ebla.client.remote.parallel_reading import read_together


@pytest.mark.parametrize("in_order", [True, False])
def test_parts_of_several_servers_are_read_at_the_same_time(in_order: bool) -> None:
    both = threading.Barrier(2, timeout=20)

    def part(*portions: str) -> Iterator[str]:
        both.wait()
        yield from portions

    found = list(read_together([("a", part("1", "2")), ("b", part("3", "4"))], in_order=in_order))
    assert (found if in_order else sorted(found)) == ["1", "2", "3", "4"]


def test_parts_come_in_their_order_whoever_has_them_and_whoever_is_quicker() -> None:
    quick = threading.Event()

    def slow() -> Iterator[int]:
        assert quick.wait(20)
        yield 1

    def other() -> Iterator[int]:
        yield 2
        quick.set()

    parts = [("a", slow()), ("b", other()), ("a", iter([3]))]
    assert list(read_together(parts, in_order=True)) == [1, 2, 3]


@pytest.mark.parametrize("in_order", [True, False])
def test_the_error_of_a_part_is_raised_where_portions_are_taken(in_order: bool) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        list(read_together([("a", iter([0])), ("b", failing())], in_order=in_order))


def test_whoever_takes_no_more_ends_the_readers() -> None:
    ended = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    portions = read_together([("a", endless()), ("b", iter([2]))], in_order=False)
    assert next(portions) in (1, 2)
    portions.close()  # type: ignore[attr-defined]
    assert ended.wait(20)
