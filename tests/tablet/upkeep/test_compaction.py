"""The choice of what to merge: pure, so every claim of the strategy is tried on made-up fragments."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count, pairwise
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.metadata.values.table_metadata import FragmentRef, GroupState, RangeErasure
from ebla.model.declaration import Group, Schema
from ebla.service.job_orders import Strategy
from ebla.settings import MIB
from ebla.tablet.tables.runs import runs_of
from ebla.tablet.upkeep.compaction import Choice, choose, choose_all, expiry_of

FOREVER = 1 << 60
NUMBERS = count()


def ref(first: bytes, last: bytes, size: int = MIB, txn: int = 1, *, has_erasures: bool = False) -> FragmentRef:
    return FragmentRef(
        f"f{next(NUMBERS)}",
        10,
        size,
        first,
        last,
        txn_min=txn,
        txn_max=txn,
        schema_version=1,
        has_erasures=has_erasures,
    )


def state(*fragments: FragmentRef, erasures: tuple[RangeErasure, ...] = ()) -> GroupState:
    return GroupState(1, fragments, erasures)


def files(fragments: object) -> list[str]:
    return sorted(fragment.file for fragment in fragments)  # type: ignore[attr-defined]


def depth(fragments: list[FragmentRef]) -> int:
    """Return how many fragments overlap at the deepest place, found the slow way."""
    edges = {fragment.first for fragment in fragments}
    return max((sum(f.first <= edge <= f.last for f in fragments) for edge in edges), default=0)


def some_fragments(dice: Random, size: int) -> list[FragmentRef]:
    found = []
    for _ in range(size):
        first, last = sorted(dice.choices([b"%02d" % n for n in range(40)], k=2))
        found.append(ref(first, last, dice.choice([1, 2, 10, 100]) * MIB, dice.randint(1, 9)))
    return found


@given(st.randoms(use_true_random=True), st.integers(0, 20))
@settings(deadline=None, max_examples=200)
def test_runs_are_as_few_as_the_depth_and_hold_everything_once(dice: Random, size: int) -> None:
    fragments = some_fragments(dice, size)
    runs = runs_of(fragments)
    assert len(runs) == depth(fragments)
    assert files(f for run in runs for f in run) == files(fragments)
    for run in runs:
        assert all(before.last < after.first for before, after in pairwise(run))


@given(st.randoms(use_true_random=True))
@settings(deadline=None, max_examples=50)
def test_under_steady_flushes_depth_is_bounded_and_a_byte_is_rewritten_a_few_times(dice: Random) -> None:
    strategy = Strategy()
    held: list[FragmentRef] = []
    flushed = rewritten = 0
    for _ in range(300):
        size = dice.randint(1, 50) * MIB
        flushed += size
        held.append(ref(b"a", b"z", size))
        while (choice := choose(state(*held), FOREVER, strategy)) is not None:
            assert choice.reason == "depth"
            assert len(choice.fragments) >= 2
            rewritten += choice.bytes
            gone = set(files(choice.fragments))
            held = [f for f in held if f.file not in gone] + [ref(b"a", b"z", choice.bytes)]
        assert depth(held) < strategy.runs_max
    assert rewritten < 8 * flushed


def test_fragments_side_by_side_are_left_alone() -> None:
    assert choose(state(*(ref(b"%03d" % n, b"%03d" % n, 64 * MIB) for n in range(100))), FOREVER, Strategy()) is None


def test_many_small_ones_side_by_side_are_joined() -> None:
    choice = choose(state(*(ref(b"%03d" % n, b"%03d" % n, MIB) for n in range(20))), FOREVER, Strategy())
    assert choice is not None
    assert choice.reason == "small"
    assert len(choice.fragments) == Strategy().small_files_min


def test_a_fragment_that_nothing_overlaps_is_not_copied() -> None:
    apart = ref(b"x", b"z")
    choice = choose(state(*(ref(b"a", b"m") for _ in range(5)), apart), FOREVER, Strategy())
    assert choice is not None
    assert len(choice.fragments) == 5
    assert apart not in choice.fragments


def test_a_compaction_is_rooted_only_if_nothing_older_stays() -> None:
    small = [ref(b"a", b"z", MIB, txn=5) for _ in range(6)]
    large_old, large_new = ref(b"a", b"z", 999 * MIB, txn=1), ref(b"a", b"z", 999 * MIB, txn=9)

    def chosen(beside: FragmentRef) -> Choice:
        choice = choose(state(*small, beside), 7, Strategy())
        assert choice is not None
        assert files(choice.fragments) == files(small)
        return choice

    assert not chosen(large_old).is_rooted
    assert chosen(large_new).is_rooted
    everything = choose_all(state(*small, large_old), 7)
    assert everything is not None
    assert everything.is_rooted


def test_a_range_erasure_goes_with_the_last_record_that_it_hides() -> None:
    erasure = RangeErasure(b"a", b"c", 5)
    hidden, beside, later = ref(b"a", b"b", txn=1), ref(b"d", b"e", txn=1), ref(b"a", b"b", txn=6)
    choice = choose(state(hidden, beside, later, erasures=(erasure,)), 7, Strategy())
    assert choice == Choice((hidden,), "erased", is_rooted=False, erasures=(erasure,))
    nothing_hidden = choose(state(beside, later, erasures=(erasure,)), 7, Strategy())
    assert nothing_hidden == Choice((), "erased", is_rooted=False, erasures=(erasure,))
    assert choose(state(hidden, beside, erasures=(erasure,)), 4, Strategy()) is None, "a snapshot may look behind it"


def test_erasures_that_make_up_much_of_a_tablet_are_worth_a_rooted_compaction() -> None:
    data, erasures = ref(b"a", b"z", 3 * MIB), ref(b"a", b"z", MIB, txn=5, has_erasures=True)
    choice = choose(state(data, erasures), 7, Strategy())
    assert choice is not None
    assert choice.is_rooted
    assert choose(state(data, erasures), 4, Strategy()) is None
    assert choose(state(ref(b"a", b"z", 99 * MIB), erasures), 7, Strategy()) is None


class TestSurplus:
    def stale(self, name: str, **options: object) -> FragmentRef:
        given = {"rows": 10_000, "surplus": 9_000, "txn_min": 1, "txn_max": 50} | options
        return msgspec.structs.replace(ref(b"a", b"z"), file=name, **given)

    def chosen(self, *fragments: FragmentRef, is_cells: bool = False, purges: bool = True) -> list[str]:
        found = choose(GroupState(1, fragments), 100, Strategy(), purges=purges, is_cells=is_cells)
        return [] if found is None else [one.file for one in found.fragments]

    def test_a_fragment_of_versions_that_nobody_sees_is_rewritten_alone(self) -> None:
        assert self.chosen(self.stale("hot"), self.stale("clean", surplus=0)) == ["hot"]

    def test_not_where_all_versions_are_kept_nor_within_history_nor_twice(self) -> None:
        assert self.chosen(self.stale("hot"), purges=False) == []
        assert self.chosen(self.stale("hot", txn_max=101)) == []
        assert self.chosen(self.stale("hot", settled_txn=50)) == []

    def test_not_for_a_few(self) -> None:
        assert self.chosen(self.stale("hot", surplus=100)) == []
        assert self.chosen(self.stale("hot", rows=100_000)) == []

    def test_cells_go_together_with_all_that_is_older_if_that_is_not_too_much(self) -> None:
        older = self.stale("older", surplus=0)
        newer = self.stale("newer", surplus=0, txn_min=101, txn_max=102)
        assert self.chosen(older, self.stale("hot"), newer, is_cells=True) == ["older", "hot"]
        huge = self.stale("huge", surplus=0, bytes=1 << 40)
        assert self.chosen(huge, self.stale("hot"), is_cells=True) == []


class TestAged:
    def chosen(self, *fragments: FragmentRef, expired_before: int | None = 10, busy: Collection[str] = ()) -> list[str]:
        found = choose(state(*fragments), 99 << 10, Strategy(), expired_before=expired_before, busy=busy)
        return [] if found is None or found.reason != "aged" else [one.file for one in found.fragments]

    def test_fragments_that_are_too_old_as_a_whole_go_wherever_they_lie(self) -> None:
        old, newer = ref(b"a", b"b", txn=9 << 10), ref(b"c", b"d", txn=10 << 10)
        across = msgspec.structs.replace(newer, file="across", txn_min=1)
        assert self.chosen(old, newer, across) == [old.file]
        assert self.chosen(old, newer, expired_before=None) == []

    def test_not_if_they_lie_over_older_records_that_stay(self) -> None:
        spread = ref(b"c", b"f", txn=20 << 10)
        spread = msgspec.structs.replace(spread, txn_min=1 << 10)
        over, below, beside = ref(b"e", b"g", txn=9 << 10), ref(b"g", b"h", txn=8 << 10), ref(b"x", b"y", txn=9 << 10)
        assert self.chosen(spread, over, below, beside) == [below.file, beside.file]
        above_it = ref(b"f", b"g", txn=7 << 10)
        assert self.chosen(spread, over, above_it) == []
        assert self.chosen(over, above_it, below) == [over.file, above_it.file, below.file]

    def test_not_if_they_have_erasures_which_would_stay_nor_if_somebody_merges_them(self) -> None:
        assert self.chosen(ref(b"a", b"b", txn=9 << 10, has_erasures=True)) == []
        old = ref(b"a", b"b", txn=9 << 10)
        assert self.chosen(old, busy={old.file}) == []

    def test_age_counts_alone_unless_only_surplus_versions_go(self) -> None:
        def expiry(**options: Any) -> int | None:
            layout = {} if "families" in options else {"columns": {"n": "int8"}}
            schema = Schema(groups=[Group("g", **layout, **options)])
            return expiry_of(schema.number().groups[0], 99_000_000 << 10)

        assert expiry(max_age="9s") == expiry(max_age="9s", max_versions=3) == 90_000_000
        assert expiry(max_age="9s", max_versions="all", purge_join="and") == 90_000_000
        assert expiry(max_age="9s", max_versions=3, purge_join="and") is None
        assert expiry() is expiry(families=["f"], max_age="9s") is None


def test_files_that_somebody_else_merges_are_left_alone() -> None:
    held = [ref(b"a", b"m", 10 * MIB) for _ in range(4)]
    fresh = [ref(b"a", b"m") for _ in range(5)]
    busy = {one.file for one in held}
    choice = choose(state(*held, *fresh), 7, Strategy(), busy=busy)
    assert choice is not None
    assert set(choice.fragments) == set(fresh)
    assert not choice.is_rooted
    assert choose(state(*held, fresh[0]), 7, Strategy(), busy=busy) is None
    assert choose(state(*held, fresh[0]), 7, Strategy()) is not None
    erasure = RangeErasure(b"a", None, 6)
    assert choose(state(*held, erasures=(erasure,)), 7, Strategy(), busy=busy) is None
