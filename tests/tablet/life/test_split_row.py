"""Where a tablet is split, and how large it is: the row divides, whatever the tablet looks like."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TabletMetadata
from ebla.model.ranges import KeyRange
from ebla.tablet.life.split_row import BlockIndex, choose_row, marks_of, payload, payload_at_most

RECORD_BYTES = 10

row_lists = st.lists(st.integers(0, 60).map(lambda n: b"%02d" % n), min_size=1, max_size=80)
bounds = st.none() | st.integers(0, 60).map(lambda n: b"%02d" % n)


def index_of(
    rows: list[bytes], block: int, name: str = "f", clip: tuple[bytes, bytes | None] | None = None
) -> BlockIndex:
    """The block index of a file that has these rows, some perhaps more than once."""
    rows = sorted(rows)
    blocks = [rows[at : at + block] for at in range(0, len(rows), block)]
    size = RECORD_BYTES * len(rows)
    ref = FragmentRef(f"fragments/t/{name}.parquet", len(rows), size, rows[0], rows[-1], 1, 1, 1, clip=clip)
    return BlockIndex(ref, [own[0] for own in blocks], [len(own) for own in blocks])


@given(st.lists(st.tuples(row_lists, st.integers(1, 20)), min_size=1, max_size=4), bounds, bounds)
def test_the_row_divides_and_is_never_an_end(
    files: list[tuple[list[bytes], int]], first: bytes | None, last: bytes | None
) -> None:
    rows = KeyRange(first or b"", last)
    if rows.is_empty:
        return
    marks = [mark for own, block in files for mark in marks_of(index_of(own, block), rows)]
    chosen = choose_row(marks, rows)
    if chosen is None:
        return
    held = [row for own, _ in files for row in own if rows.contains(row)]
    assert rows.first < chosen
    assert rows.contains(chosen)
    assert any(row < chosen for row in held), "the first child has a row"
    assert any(row >= chosen for row in held), "the second child has a row"


@given(st.sets(st.integers(0, 10_000), min_size=2), st.integers(1, 8))
def test_a_row_is_found_wherever_two_are_known_and_divides_as_evenly_as_blocks_allow(
    numbers: set[int], block: int
) -> None:
    rows = sorted(b"%05d" % number for number in numbers)
    chosen = choose_row(marks_of(index_of(rows, block), KeyRange()), KeyRange())
    assert chosen is not None
    left = bisect_left(rows, chosen)
    assert abs(2 * left - len(rows)) <= 2 * block + 2


def test_one_huge_row_is_not_divided() -> None:
    index = index_of([b"row"] * 10_000, 100)
    assert choose_row(marks_of(index, KeyRange()), KeyRange()) is None
    assert choose_row(marks_of(index, KeyRange(b"a", b"z")), KeyRange(b"a", b"z")) is None


def test_a_huge_row_among_others_is_cut_off_from_them() -> None:
    index = index_of([b"a", b"b"] + [b"m"] * 10_000 + [b"x", b"y"], 100)
    assert choose_row(marks_of(index, KeyRange()), KeyRange()) in (b"b", b"m")


def test_nothing_is_known_of_an_empty_tablet() -> None:
    assert choose_row([], KeyRange()) is None
    assert choose_row(marks_of(index_of([b"a", b"b"], 1), KeyRange(b"m")), KeyRange(b"m")) is None


def test_rows_that_are_clipped_off_do_not_count() -> None:
    index = index_of([b"%02d" % n for n in range(60)], 4, clip=(b"30", b"40"))
    chosen = choose_row(marks_of(index, KeyRange()), KeyRange())
    assert chosen is not None
    assert b"30" < chosen < b"40"


def tablet_of(first: bytes, last: bytes | None, *indexes: BlockIndex) -> TabletMetadata:
    state = GroupState(1, tuple(index.ref for index in indexes))
    return TabletMetadata("t", first, last, "running", 1, groups=(state,))


def by_ref(*indexes: BlockIndex) -> dict[FragmentRef, BlockIndex]:
    return {index.ref: index for index in indexes}


def test_a_shared_file_counts_as_far_as_it_lies_in_the_tablet() -> None:
    index = index_of([b"%03d" % n for n in range(1000)], 10)
    halves = [tablet_of(b"", b"400", index), tablet_of(b"400", None, index)]
    sizes = [payload(half, by_ref(index)) for half in halves]
    assert abs(sizes[0] - 4_000) < 400
    assert abs(sizes[1] - 6_000) < 400
    assert all(payload_at_most(half) == 10_000 for half in halves)


def test_versions_that_lie_on_each_other_do_not_count_twice() -> None:
    rows = [b"%03d" % n for n in range(1000)]
    over = [index_of(rows, 10, name) for name in ("one", "two", "three")]
    assert payload(tablet_of(b"", None, *over), by_ref(*over)) < 1.1 * 10_000
    beside = [index_of(rows[:500], 10, "low"), index_of(rows[500:], 10, "high")]
    assert abs(payload(tablet_of(b"", None, *beside), by_ref(*beside)) - 10_000) < 500


def test_footers_are_no_payload() -> None:
    index = index_of([b"%03d" % n for n in range(100)], 10)
    ref = FragmentRef("f", 100, 1_000_000, b"000", b"099", 1, 1, 1, tail_bytes=999_000)
    heavy = BlockIndex(ref, index.first_rows, index.block_rows)
    assert payload(tablet_of(b"", None, heavy), by_ref(heavy)) < 2_000
