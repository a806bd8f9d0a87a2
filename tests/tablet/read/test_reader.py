"""What the reader decides before it reads: whether sources need a merge, and whether their order is known at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure
from ebla.storage.merge.rules import Rules
from ebla.storage.record.records import Block
from ebla.tablet.read.answers import is_clean, is_stacked
from ebla.tablet.read.view import Sources


def fragment(txn_min: int, txn_max: int) -> FragmentRef:
    return FragmentRef("f", 1, 1, b"a", b"z", txn_min, txn_max, 1, unique=True)


def block(txn_min: int, txn_max: int) -> Block:
    records = pa.record_batch({"_row": pa.array([b"a", b"b"], pa.binary()), "_txn": pa.array([txn_min, txn_max])})
    return Block(records, unique=True)


@pytest.mark.parametrize(
    ("spans", "as_of", "stacked"),
    [
        ([], 9, True),
        ([(1, 3)], 3, True),
        ([(1, 3)], 2, False),
        ([(1, 3), (4, 6)], 6, True),
        ([(4, 6), (1, 3)], 6, True),
        ([(1, 3), (3, 6)], 6, False),
        ([(1, 9), (3, 4)], 9, False),
        ([(5, 5), (5, 5)], 9, False),
    ],
)
def test_sources_are_stacked_if_each_is_wholly_older_or_newer_than_any_other(
    spans: list[tuple[int, int]], as_of: int, stacked: bool
) -> None:
    fragments = Sources((), tuple(fragment(*span) for span in spans), ())
    assert is_stacked(fragments, Rules(as_of)) == stacked
    mixed = Sources(tuple(block(*span) for span in spans[1:]), tuple(fragment(*span) for span in spans[:1]), ())
    assert is_stacked(mixed, Rules(as_of)) == stacked


@pytest.mark.parametrize(
    "rules",
    [
        Rules(9, versions=2),
        Rules(9, erasures=[RangeErasure(b"a", b"c", 2)]),
        Rules(9, expired_before=1),
    ],
)
def test_rules_that_ask_for_the_txn_of_a_record_need_it(rules: Rules) -> None:
    sources = Sources((), (fragment(1, 3), fragment(4, 6)), ())
    assert not is_stacked(sources, rules)
    assert not is_clean(Sources((), (fragment(1, 3),), ()), rules)


def test_one_source_is_clean_and_two_are_not() -> None:
    assert is_clean(Sources((), (fragment(1, 3),), ()), Rules(9))
    assert is_clean(Sources((block(1, 3),), (), ()), Rules(9))
    assert not is_clean(Sources((), (fragment(1, 3),), ()), Rules(2))
    assert not is_clean(Sources((block(4, 5),), (fragment(1, 3),), ()), Rules(9))
