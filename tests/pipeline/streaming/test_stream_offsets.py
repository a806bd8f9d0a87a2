"""Offsets of streams as values: ranges of rows, whatever tablets there are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import RequestError
from ebla.model.ranges import KeyRange
from ebla.pipeline.streaming.stream_offsets import Offset, Position

ROWS = st.binary(max_size=2)
RANGES = st.tuples(ROWS, st.none() | ROWS).map(lambda ends: KeyRange(*ends)).filter(lambda rows: not rows.is_empty)
PROBES = [b"", b"\0", b"a", b"aa", b"b", b"\xff\xff"]


def txn_at(position: Position, row: bytes) -> int:
    (found,) = (txn for rows, txn in position.ranges() if rows.contains(row))
    return found


@given(moves=st.lists(st.tuples(RANGES, st.integers(0, 5)), max_size=8))
def test_moving_a_range_moves_its_rows_and_no_others(moves: list[tuple[KeyRange, int]]) -> None:
    position = Position()
    expected = dict.fromkeys(PROBES, 0)
    for rows, txn in moves:
        position = position.moved(rows, txn)
        expected |= {row: txn for row in PROBES if rows.contains(row)}
    assert {row: txn_at(position, row) for row in PROBES} == expected
    assert all(a != b for a, b in zip(position.txns, position.txns[1:], strict=False))  # as few ranges as can be
    assert Offset.of_json(json.loads(json.dumps(Offset("t", "p", position).to_json()))).at == position


@given(moves=st.lists(st.tuples(RANGES, st.integers(1, 9)), max_size=6), cut=st.integers(0, 6))
def test_a_batch_is_what_lies_between_two_positions(moves: list[tuple[KeyRange, int]], cut: int) -> None:
    position = started = Position(txns=(1,))
    for number, (rows, txn) in enumerate(moves):
        if number == cut:
            started = position
        position = position.moved(rows, max(txn, position.newest))
    for row in PROBES:
        given_out = [(part.since, part.until) for part in started.to(position) if part.range.contains(row)]
        since, until = txn_at(started, row), txn_at(position, row)
        assert given_out == ([(since, until)] if since < until else [])


def test_a_first_batch_that_is_repeated_begins_where_it_began() -> None:
    started = Offset("t", "pin", Position(txns=(70,)))
    ended = started.next(Position(txns=(90,)))
    asked_again = Offset("t", "another", Position(txns=(95,)))
    for start in (started, asked_again):
        assert [(part.since, part.until) for part in ended.batch_since(start)] == [(70, 90)]
    later = ended.next(Position(txns=(99,)))
    assert [(part.since, part.until) for part in later.batch_since(ended)] == [(90, 99)]
    with pytest.raises(RequestError, match="two tables"):
        ended.batch_since(Offset("other", "pin", Position()))


def test_what_is_needed_is_the_oldest_that_is_read() -> None:
    assert Position().needed == 0
    assert Position((b"", b"m"), (90, 0)).needed == 90
    assert Position((b"", b"m"), (90, 70)).needed == 70


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"version": 2, "table": "t", "pin": "p", "at": [["", 1]]},
        {"version": 1, "table": "t", "pin": "p", "at": []},
        {"version": 1, "table": "t", "pin": "p", "at": [["61", 1]]},
        {"version": 1, "table": "t", "pin": "p", "at": [["", 1], ["62", 2], ["61", 3]]},
        {"version": 1, "table": "t", "pin": "p", "at": [["", "x"]]},
        {"version": 1, "table": "t", "pin": "p", "at": 7},
    ],
)
def test_a_damaged_offset_is_refused(damaged: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="checkpoint"):
        Offset.of_json(damaged)
