"""Planning a scan: what Spark reads by itself, what is merged, and that together they are every row once."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from ebla.model.ranges import ALL, KeyRange, successor
from ebla.pipeline.scanning.plan import CleanRead, Cover, Limits, Merged, ScanPlan, Section, make_plan
from ebla.pipeline.scanning.stretches import Source, Span, cut_rows, mixed_sources

FINE = Limits(clean_records_min=1)


@dataclass(frozen=True)
class Erased:
    first: bytes
    last: bytes | None
    txn: int


def row(number: int) -> bytes:
    return b"%04d" % number


def fragment(
    first: int,
    last: int,
    file: str = "a",
    *,
    txn: int | tuple[int, int] = 1,
    shares: tuple[KeyRange, ...] = (ALL,),
    native: bool = True,
    whole: bool = False,
    group: int = 1,
    step: int = 100,
) -> Source:
    """A source with the rows [first, last), in spans of `step` rows."""
    txn_min, txn_max = txn if isinstance(txn, tuple) else (txn, txn)
    bounds = [*range(first, last, step), last]
    spans = tuple(Span(row(a), row(b), b - a, 100 * (b - a)) for a, b in pairwise(bounds))
    return Source(group, spans, shares, txn_min, txn_max, file, native, whole)


def dirty_ranges(plan: ScanPlan) -> list[KeyRange]:
    return [part for section in plan.dirty for part in section.ranges]


def test_fragments_that_meet_no_other_are_read_whole_and_without_a_filter() -> None:
    plan = make_plan([fragment(0, 400, "a"), fragment(400, 900, "b", txn=2)], [], limits=FINE)
    assert plan == ScanPlan((CleanRead(1, ("a", "b")),), ())


def test_an_empty_table_has_nothing_to_read() -> None:
    assert make_plan([], [], limits=FINE) == ScanPlan((), ())


def test_only_the_rows_that_a_correction_covers_are_dirty() -> None:
    plan = make_plan([fragment(0, 1000, "a"), fragment(300, 350, "b", txn=2)], [], limits=FINE)
    assert dirty_ranges(plan) == [KeyRange(row(300), row(350))]
    assert plan.clean == (CleanRead(1, ("a",), (KeyRange(row(0), row(300)), KeyRange(row(350), row(1000)))),)


def test_scattered_corrections_make_their_own_rows_dirty_and_not_what_is_between() -> None:
    scattered = replace(
        fragment(0, 1, "b", txn=2), spans=tuple(Span(row(n), successor(row(n)), 1, 100) for n in (150, 450, 750))
    )
    plan = make_plan([fragment(0, 1000, "a"), scattered], [], limits=FINE)
    assert [part.first for part in dirty_ranges(plan)] == [row(150), row(450), row(750)]
    assert len(plan.clean[0].ranges) == 4


def test_what_cannot_be_read_as_it_is_is_dirty_even_when_alone() -> None:
    plan = make_plan([fragment(0, 400, native=False)], [], limits=FINE)
    assert plan.clean == ()
    assert dirty_ranges(plan) == [KeyRange(row(0), row(400))]


def test_memory_makes_its_rows_dirty() -> None:
    memory = replace(fragment(200, 220), file=None, is_native=False)
    plan = make_plan([fragment(0, 400), memory], [], limits=FINE)
    assert dirty_ranges(plan) == [KeyRange(row(200), row(220))]


def test_a_file_in_which_only_some_tablets_take_part_is_read_with_a_filter() -> None:
    share = KeyRange(row(100), row(300))
    plan = make_plan([fragment(0, 400, shares=(share,))], [], limits=FINE)
    assert plan == ScanPlan((CleanRead(1, ("a",), (share,)),), ())


def test_a_gap_between_the_tablets_that_refer_to_a_file_is_not_read() -> None:
    shares = (KeyRange(b"", row(100)), KeyRange(row(200)))
    plan = make_plan([fragment(0, 400, shares=shares, step=400)], [], limits=FINE)
    assert plan.clean == (CleanRead(1, ("a",), (KeyRange(row(0), row(100)), KeyRange(row(200), row(400)))),)


def test_files_with_rows_in_the_ranges_of_one_another_are_read_apart() -> None:
    # Each has rows everywhere, and counts in one half only: as after a split and the compaction of both halves.
    left = fragment(0, 400, "a", shares=(KeyRange(b"", row(200)),))
    right = fragment(0, 400, "b", shares=(KeyRange(row(200)),))
    plan = make_plan([left, right], [], limits=FINE)
    assert plan.clean == (
        CleanRead(1, ("a",), (KeyRange(row(0), row(200)),)),
        CleanRead(1, ("b",), (KeyRange(row(200), row(400)),)),
    )
    crowded = make_plan([left, right], [], limits=replace(FINE, clean_reads_max=1))
    assert len(crowded.clean) == 1
    assert dirty_ranges(crowded) == [KeyRange(row(200), row(400))]


def test_parts_of_files_that_do_not_meet_share_one_read() -> None:
    share = KeyRange(row(100), row(700))
    plan = make_plan(
        [fragment(0, 400, "a", shares=(share,)), fragment(400, 900, "b", shares=(share,))], [], limits=FINE
    )
    assert [read.files for read in plan.clean] == [("a", "b")]


def test_a_range_erasure_makes_older_rows_dirty_only_if_some_of_them_may_be_left() -> None:
    erased = [(1, Erased(row(100), row(200), 5))]
    older = make_plan([fragment(0, 400, txn=4)], erased, limits=FINE)
    assert older.dirty == ()
    assert older.clean[0].ranges == (KeyRange(row(0), row(100)), KeyRange(row(200), row(400)))
    mixed = make_plan([fragment(0, 400, txn=(4, 6))], erased, limits=FINE)
    assert dirty_ranges(mixed) == [KeyRange(row(100), row(200))]
    newer = make_plan([fragment(0, 400, txn=5)], erased, limits=FINE)
    assert newer == ScanPlan((CleanRead(1, ("a",)),), ())


def test_a_range_erasure_hides_in_its_own_group_only() -> None:
    plan = make_plan([fragment(0, 400, txn=4)], [(2, Erased(b"", None, 5))], limits=FINE)
    assert plan == ScanPlan((CleanRead(1, ("a",)),), ())


def test_overwritten_rows_do_not_make_the_new_ones_dirty() -> None:
    plan = make_plan([fragment(0, 400, "a"), fragment(0, 500, "b", txn=9)], [(1, Erased(b"", None, 9))], limits=FINE)
    assert plan == ScanPlan((CleanRead(1, ("b",)),), ())


def test_rows_in_two_groups_are_dirty_and_rows_in_one_are_clean() -> None:
    plan = make_plan([fragment(0, 400, "a"), fragment(300, 500, "b", group=2)], [], limits=FINE)
    assert dirty_ranges(plan) == [KeyRange(row(300), row(400))]
    assert [(read.group, read.files) for read in plan.clean] == [(1, ("a",)), (2, ("b",))]


def test_small_clean_parts_are_merged_with_the_dirty_ones_around_them() -> None:
    corrections = [fragment(n, n + 10, f"c{n}", txn=2) for n in (100, 130, 800)]
    plan = make_plan([fragment(0, 1000, "a", step=10), *corrections], [], limits=replace(FINE, clean_records_min=50))
    assert dirty_ranges(plan) == [KeyRange(row(100), row(140)), KeyRange(row(800), row(810))]


def test_only_the_largest_clean_parts_are_read_natively_when_there_are_too_many() -> None:
    corrections = [fragment(n, n + 10, f"c{n}", txn=2) for n in range(90, 1000, 100)]
    base = fragment(0, 2000, "a", step=10)
    plan = make_plan([base, *corrections], [], limits=replace(FINE, clean_ranges_max=3))
    assert len(plan.clean[0].ranges) == 3
    assert KeyRange(row(1000), row(2000)) in plan.clean[0].ranges


@pytest.mark.parametrize(("cores", "sections"), [(1, 2), (2, 4), (4, 8), (40, 10)])
def test_dirty_rows_are_divided_among_the_cores_as_far_as_it_is_worth_it(cores: int, sections: int) -> None:
    limits = Limits(section_records_min=100)
    plan = make_plan([fragment(0, 1000, native=False, step=10)], [], cores, limits)
    assert len(plan.dirty) == sections
    sizes = [section.records for section in plan.dirty]
    assert sum(sizes) == 1000
    assert max(sizes) - min(sizes) <= 20


def test_sections_are_bounded_in_records_and_in_bytes() -> None:
    source = fragment(0, 1000, native=False, step=10)
    assert len(make_plan([source], [], 1, Limits(section_records=100)).dirty) == 10
    assert len(make_plan([source], [], 1, Limits(section_bytes=5_000)).dirty) == 20


def test_rows_are_cut_where_the_blocks_of_others_begin() -> None:
    rows = [row(n) for n in (5, 6, 7, 250, 251, 900)]
    spans = cut_rows(rows, [row(n) for n in range(0, 1000, 100)], 600)
    assert [(span.first, span.last, span.records) for span in spans] == [
        (row(5), successor(row(7)), 3),
        (row(250), successor(row(251)), 2),
        (row(900), successor(row(900)), 1),
    ]
    assert sum(span.bytes for span in spans) == 600
    assert cut_rows(rows, [], 600) == (Span(row(5), successor(row(900)), 6, 600),)
    assert cut_rows([], [row(1)], 0) == ()


def test_only_sources_that_meet_others_need_a_closer_look() -> None:
    sources = [fragment(0, 400, "a"), fragment(300, 350, "b", txn=2), fragment(500, 600, "c")]
    assert mixed_sources(sources, []) == {0, 1}
    assert mixed_sources(sources, [(1, Erased(row(500), row(550), 1))]) == {0, 1}
    assert mixed_sources(sources, [(1, Erased(row(500), row(550), 2))]) == {0, 1}
    assert mixed_sources([replace(sources[2], txn_max=3)], [(1, Erased(row(500), row(550), 2))]) == {0}


@pytest.mark.parametrize("seed", range(200))
def test_every_visible_row_is_read_once_and_no_other_is(seed: int) -> None:
    """Against a definition in loops: who has a record of a row that counts, and is not hidden."""
    dice = random.Random(seed)
    sources: list[Source] = []
    for number in range(dice.randint(1, 6)):
        first = dice.randint(0, 180)
        txn = dice.randint(1, 9)
        cuts = sorted(dice.sample(range(0, 200, 20), 2))
        shares = (ALL,) if dice.random() < 0.6 else (KeyRange(row(cuts[0]), row(cuts[1])), KeyRange(row(190)))
        sources.append(
            fragment(
                first,
                dice.randint(first + 1, 200),
                f"f{number}",
                txn=(txn, txn + dice.randint(0, 2)),
                shares=shares,
                native=dice.random() < 0.8,
                group=dice.choice((1, 1, 2)),
                step=dice.choice((7, 50, 500)),
            )
        )
    erasures = []
    for _ in range(dice.randint(0, 3)):
        first = dice.randint(0, 200)
        last = None if dice.random() < 0.2 else row(dice.randint(first + 1, 220))
        erasures.append((dice.choice((1, 2)), Erased(row(first), last, dice.randint(1, 11))))
    limits = Limits(
        section_records=dice.choice((20, 500)),
        section_records_min=dice.choice((1, 50)),
        clean_records_min=dice.choice((1, 10)),
        clean_ranges_max=dice.choice((1, 64)),
        clean_reads_max=dice.choice((1, 8)),
    )
    plan = make_plan(sources, erasures, dice.randint(1, 3), limits)
    by_file = {source.file: source for source in sources}
    for number in range(210):
        here = row(number)
        visible = [s for s in sources if _counts(s, here) and s.txn_max >= _erased_at(erasures, s.group, here)]
        natively = [
            file
            for read in plan.clean
            for file in read.files
            if _has(by_file[file], here) and (not read.ranges or any(part.contains(here) for part in read.ranges))
        ]
        merged = [part for part in dirty_ranges(plan) if part.contains(here)]
        assert len(natively) + len(merged) <= 1, here
        if natively:
            (owner,) = visible
            assert owner.file == natively[0]
            assert owner.is_native
            assert owner.txn_min >= _erased_at(erasures, owner.group, here)
        elif visible:
            assert merged, here
    assert all(isinstance(section, Section) for section in plan.dirty)
    assert len([read for read in plan.clean if read.ranges]) <= limits.clean_reads_max


def _has(source: Source, here: bytes) -> bool:
    return any(span.first <= here < span.last for span in source.spans)


def _counts(source: Source, here: bytes) -> bool:
    return _has(source, here) and any(share.contains(here) for share in source.shares)


def _erased_at(erasures: list[tuple[int, Erased]], group: int, here: bytes) -> int:
    over = [e.txn for g, e in erasures if g == group and e.first <= here and (e.last is None or here < e.last)]
    return max(over, default=0)


# --- layers --------------------------------------------------------------------------------------

LAYERED = replace(FINE, layer_records_min=1)
EVERY = (KeyRange(row(0), row(1000)),)


def memory(*numbers: int) -> Source:
    """A block in memory with some rows."""
    spans = tuple(Span(row(n), successor(row(n)), 1, 100) for n in numbers)
    return replace(fragment(0, 1, txn=(50, 60)), spans=spans, file=None, is_native=False)


def test_whole_rows_over_others_are_read_by_spark_from_both_files() -> None:
    plan = make_plan([fragment(0, 1000, "a"), fragment(300, 400, "b", txn=2, whole=True)], [], limits=LAYERED)
    assert plan.clean == (CleanRead(1, ("a", "b")),)
    assert plan.covers == (Cover(0, 1, (KeyRange(row(300), row(400)),)),)
    assert plan.dirty == ()
    assert plan.merged == ()


def test_the_newest_of_several_files_covers_all_others() -> None:
    sources = [fragment(0, 1000, name, txn=txn, whole=True) for name, txn in (("a", 3), ("b", 1), ("c", 2))]
    plan = make_plan(sources, [], limits=LAYERED)
    assert plan.covers == (Cover(1, 0, EVERY), Cover(1, 2, EVERY), Cover(2, 0, EVERY))


def test_records_that_set_some_columns_are_merged_row_by_row_over_a_file_that_is_read() -> None:
    scattered = replace(memory(150, 450, 750), file="b")
    plan = make_plan([fragment(0, 1000, "a"), scattered], [], limits=LAYERED)
    assert plan.clean == (CleanRead(1, ("a",)),)
    assert plan.dirty == ()
    ranges = (KeyRange(row(150), successor(row(750))),)
    assert plan.covers == (Cover(0, 1, ranges),)
    assert plan.merged == (Merged(1, ranges),)


def test_a_file_whose_txns_are_among_those_of_another_is_merged_with_it() -> None:
    mixed = fragment(300, 310, "b", txn=(4, 6), whole=True)
    plan = make_plan([fragment(0, 1000, "a", txn=(1, 5), whole=True), mixed], [], limits=LAYERED)
    assert [part.source for part in plan.merged] == [1]


def test_a_record_of_another_group_is_merged_with_the_row_it_belongs_to() -> None:
    other = fragment(300, 310, "b", txn=2, whole=True, group=2)
    plan = make_plan([fragment(0, 1000, "a", whole=True), other], [], limits=LAYERED)
    assert plan.clean == (CleanRead(1, ("a",)),)
    assert [part.source for part in plan.merged] == [1]


def test_rows_that_a_range_erasure_hid_in_memory_do_not_cover_what_was_written_after_it() -> None:
    over = replace(fragment(0, 1000, "a", txn=80), is_whole=True)
    plan = make_plan([over, memory(150, 450)], [(1, Erased(row(400), row(500), 70))], limits=LAYERED)
    assert plan.covers == (Cover(0, 1, (KeyRange(row(150), successor(row(150))),)),)
    assert plan.clean == (CleanRead(1, ("a",)),)


def test_a_file_of_which_much_has_changed_is_merged_and_not_read_row_by_row() -> None:
    many = memory(*range(0, 1000, 3))
    plan = make_plan([fragment(0, 1000, "a"), many], [], limits=LAYERED)
    assert plan.merged == ()
    assert plan.covers == ()
    assert plan.dirty


def test_layers_are_given_up_where_too_many_keys_would_have_to_be_compared_or_carried() -> None:
    sources = [fragment(0, 1000, "a"), memory(150, 450, 750)]
    assert make_plan(sources, [], limits=LAYERED).merged
    assert not make_plan(sources, [], limits=replace(LAYERED, layer_others_max=2)).merged
    assert not make_plan(sources, [], limits=replace(LAYERED, layer_records_max=500)).merged
    over = [fragment(0, 1000, "a"), fragment(0, 1000, "b", txn=2, whole=True)]
    assert make_plan(over, [], limits=LAYERED).covers
    assert not make_plan(over, [], limits=replace(LAYERED, layer_records_max=500)).covers


def test_a_layer_of_which_one_file_is_not_worth_a_read_is_merged() -> None:
    share = KeyRange(row(100), row(140))
    tiny = fragment(100, 200, "b", txn=2, whole=True, shares=(share,), step=10)
    plan = make_plan([fragment(0, 1000, "a"), tiny], [], limits=replace(LAYERED, clean_records_min=200))
    assert plan.covers == ()
    assert dirty_ranges(plan) == [KeyRange(row(0), row(140))]
    assert plan.clean == (CleanRead(1, ("a",), (KeyRange(row(140), row(1000)),)),)
