"""Split and join in METADATA: plans, guards, successors, and no hole or overlap whatever happens in between."""

from __future__ import annotations

from itertools import count, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.metadata.values.changes import (
    AddFragments,
    Change,
    NewFragment,
    ReplaceFragments,
    RequirementFailed,
    TabletAt,
    TakeLog,
    apply,
)
from ebla.metadata.values.recutting import BeginJoin, BeginSplit, CancelJoin, CancelSplit, FinishJoin, FinishSplit
from ebla.metadata.values.table_metadata import (
    FragmentRef,
    InvalidMetadata,
    RangeErasure,
    Retired,
    TableMetadata,
    initial_metadata,
)
from ebla.metadata.values.transaction_file import ChangeRecord, SnapshotRecord, decode, encode
from tests.metadata.metadata_world import EVENTS, PROFILE, files_of, flush, fragment, table

A, B, C = (TabletAt(tablet, 1) for tablet in "abc")


def refused(metadata: TableMetadata, *changes: Change) -> str:
    with pytest.raises(RequirementFailed) as raised:
        apply(metadata, changes, "x")
    return raised.value.code


def after(metadata: TableMetadata, *changes: Change) -> TableMetadata:
    made = apply(metadata, changes, "x")
    made.check()
    assert made.checksum == msgspec.structs.replace(made).checksum, "the incremental checksum is that of the value"
    return made


def ranges(metadata: TableMetadata) -> dict[str, tuple[bytes, bytes | None]]:
    return {tablet.id: (tablet.first, tablet.last) for tablet in metadata.tablets}


def refs(metadata: TableMetadata, tablet: str, group: int = PROFILE) -> tuple[FragmentRef, ...]:
    found = metadata.by_id(tablet)
    assert found is not None
    return found.group(group).fragments


def split(metadata: TableMetadata, at: TabletAt, row: bytes, children: tuple[str, str]) -> TableMetadata:
    return after(metadata, BeginSplit(at, row, children), FinishSplit(at, 9, 0))


def join(metadata: TableMetadata, left: TabletAt, right: TabletAt, child: str) -> TableMetadata:
    return after(metadata, BeginJoin(left, right, child), FinishJoin(left, right, 9, 0))


# --- split -----------------------------------------------------------------------------------------


def test_a_split_is_planned_first_and_then_carried_out() -> None:
    begun = after(table(), BeginSplit(B, b"k", ("b1", "b2")))
    tablet = begun.by_id("b")
    assert tablet is not None
    assert tablet.split is not None
    assert (tablet.state, tablet.split.row, tablet.split.children) == ("splitting", b"k", ("b1", "b2"))
    done = after(begun, FinishSplit(B, 7, 0))
    assert ranges(done) == {"a": (b"", b"g"), "b1": (b"g", b"k"), "b2": (b"k", b"p"), "c": (b"p", None)}
    assert {one.state for one in done.tablets} == {"running"}
    assert done.retired == (Retired("b", 7),)


def test_children_share_the_fragments_that_have_rows_of_theirs() -> None:
    erasures = (RangeErasure(b"a", b"b", 3), RangeErasure(b"a", b"z", 4), RangeErasure(b"m", b"n", 5))
    base = after(table(()), TakeLog((A,), "s", "log"), flush("whole", {"a": 5}, erasures=erasures))
    low, high = fragment("low", b"a", b"c"), fragment("high", b"k", b"z")
    added = AddFragments(PROFILE, (NewFragment(low, ("a",)), NewFragment(high, ("a",))), (A,))
    done = split(after(base, added), A, b"k", ("l", "r"))
    names = {tablet: [ref.file.split("/")[-1] for ref in refs(done, tablet)] for tablet in ("l", "r")}
    assert names == {"l": ["whole.parquet", "low.parquet"], "r": ["whole.parquet", "high.parquet"]}
    left, right = done.tablets
    assert left.group(PROFILE).erasures == erasures[:2]
    assert right.group(PROFILE).erasures == erasures[1:]
    assert (left.log, right.log, left.leader) == ("log", "log", "s")
    assert left.group(PROFILE).flushed == right.group(PROFILE).flushed == 0, "their log is a new one"


def test_children_inherit_the_floor_of_history() -> None:
    base = after(table(()), flush("f", {"a": 1}))
    base = after(base, ReplaceFragments(A, PROFILE, refs(base, "a"), (fragment("g"),), (), 44))
    done = split(base, A, b"k", ("l", "r"))
    assert [tablet.group(PROFILE).floor_txn for tablet in done.tablets] == [44, 44]


@pytest.mark.parametrize("row", [b"", b"g", b"p", b"z", b"a"], ids=["empty", "first", "last", "after", "before"])
def test_a_row_that_does_not_divide_is_refused(row: bytes) -> None:
    assert refused(table(), BeginSplit(B, row, ("x", "y"))) == "outside"


def test_a_tablet_that_has_a_plan_gets_no_second_one() -> None:
    splitting = after(table(), BeginSplit(B, b"k", ("x", "y")))
    assert refused(splitting, BeginSplit(B, b"m", ("v", "w"))) == "busy"
    assert refused(splitting, BeginJoin(A, B, "z")) == "busy"
    assert refused(splitting, BeginJoin(B, C, "z")) == "busy"
    joining = after(table(), BeginJoin(A, B, "z"))
    assert refused(joining, BeginSplit(B, b"k", ("x", "y"))) == "busy"
    assert refused(joining, BeginJoin(B, C, "y")) == "busy"


def test_what_was_not_begun_is_neither_finished_nor_cancelled() -> None:
    for change in (FinishSplit(B, 1, 0), CancelSplit(B), FinishJoin(A, B, 1, 0), CancelJoin(A, B)):
        assert refused(table(), change) == "not_begun"
    joining = after(table(), BeginJoin(A, B, "z"))
    assert refused(joining, FinishJoin(B, C, 1, 0)) == "not_begun"
    assert refused(joining, FinishJoin(B, A, 1, 0)) == "not_begun"


def test_a_cancelled_plan_leaves_the_tablets_as_they_were() -> None:
    assert after(table(), BeginSplit(B, b"k", ("x", "y")), CancelSplit(B)).tablets == table().tablets
    assert after(table(), BeginJoin(A, B, "x"), CancelJoin(A, B)).tablets == table().tablets


def test_a_finished_split_is_not_finished_again() -> None:
    done = split(table(), B, b"k", ("x", "y"))
    assert refused(done, FinishSplit(B, 9, 0)) == "unknown_tablet"
    assert refused(done, BeginSplit(B, b"k", ("v", "w"))) == "unknown_tablet"
    assert refused(done, flush("f", {"b": 1})) == "unknown_tablet"


def test_a_stale_epoch_neither_plans_nor_finishes() -> None:
    stale = TabletAt("b", 0)
    assert refused(table(), BeginSplit(stale, b"k", ("x", "y"))) == "stale_epoch"
    begun = after(table(), BeginSplit(B, b"k", ("x", "y")))
    assert refused(begun, FinishSplit(stale, 1, 0)) == "stale_epoch"


def test_ids_are_new() -> None:
    assert refused(table(), BeginSplit(B, b"k", ("c", "x"))) == "tablet_known"
    assert refused(table(), BeginSplit(B, b"k", ("x", "x"))) == "tablet_known"
    assert refused(table(), BeginJoin(A, B, "a")) == "tablet_known"
    assert refused(split(table(), B, b"k", ("x", "y")), BeginSplit(C, b"q", ("b", "z"))) == "tablet_known"


def test_a_fixed_table_is_not_cut_anew() -> None:
    fixed = initial_metadata("t1", table().schema, ["a", "b"], [b"g"], is_fixed=True)
    assert refused(fixed, BeginSplit(A, b"c", ("x", "y"))) == "fixed"
    assert refused(fixed, BeginJoin(A, B, "x")) == "fixed"


def test_what_happens_while_a_split_is_under_way_reaches_the_children() -> None:
    begun = after(table(()), BeginSplit(A, b"k", ("l", "r")))
    begun = after(begun, flush("f", {"a": 1}), flush("g", {"a": 1}, EVENTS, erasures=(RangeErasure(b"a", b"c", 2),)))
    done = after(begun, FinishSplit(A, 9, 0))
    assert files_of(done) == {"f", "g"}
    assert [len(tablet.group(EVENTS).erasures) for tablet in done.tablets] == [1, 0]


# --- join ------------------------------------------------------------------------------------------


def test_a_join_unites_ranges_and_references() -> None:
    base = after(table(), flush("ab", {"a": 1, "b": 1}), flush("b", {"b": 2}), flush("c", {"c": 1}))
    done = join(base, A, B, "x")
    assert ranges(done) == {"x": (b"", b"p"), "c": (b"p", None)}
    assert {ref.file.split("/")[-1]: ref.clip for ref in refs(done, "x")} == {
        "ab.parquet": (b"", b"p"),  # it reaches on into c, which may have merged its part
        "b.parquet": (b"g", b"p"),
    }
    assert set(done.retired) == {Retired("a", 9), Retired("b", 9)}


def test_a_file_of_one_neighbour_does_not_count_in_the_other() -> None:
    base = after(table((b"g",)), flush("ab", {"a": 1, "b": 1}))
    # b has merged its part of the file with others, so that what was erased is gone from it
    base = after(base, ReplaceFragments(B, PROFILE, refs(base, "b"), (fragment("new", b"h", b"z"),), (), 5))
    done = join(base, A, B, "x")
    assert {ref.file.split("/")[-1]: ref.clip for ref in refs(done, "x")} == {
        "ab.parquet": (b"", b"g"),
        "new.parquet": None,
    }
    assert done.tablets[0].group(PROFILE).floor_txn == 5


def test_a_split_undone_by_a_join_leaves_the_references_as_they_were() -> None:
    base = after(table(()), flush("f", {"a": 1}), flush("g", {"a": 2}, erasures=(RangeErasure(b"b", b"q", 7),)))
    before = base.tablets[0]
    halves = split(base, A, b"k", ("l", "r"))
    whole = join(halves, TabletAt("l", 1), TabletAt("r", 1), "x").tablets[0]
    assert [state.fragments for state in whole.groups] == [state.fragments for state in before.groups]
    assert [state.erasures for state in whole.groups] == [state.erasures for state in before.groups]


def test_tablets_that_are_not_neighbours_are_not_joined() -> None:
    assert refused(table(), BeginJoin(A, C, "x")) == "not_neighbours"
    assert refused(table(), BeginJoin(B, A, "x")) == "not_neighbours"
    assert refused(table(), BeginJoin(C, A, "x")) == "not_neighbours"


def test_tablets_of_different_logs_are_not_joined() -> None:
    base = after(table(), TakeLog((A,), "s1", "one"), TakeLog((B,), "s2", "two"))
    assert refused(base, BeginJoin(A, B, "x")) == "other_leader"
    base = after(table(), TakeLog((A,), "s", "one"), TakeLog((B,), "s", "two"))
    assert refused(base, BeginJoin(A, B, "x")) == "other_log"
    taken = join(after(table(), TakeLog((B,), "s", "log")), A, B, "x")
    assert (taken.tablets[0].leader, taken.tablets[0].log) == ("s", "log")


def test_a_file_may_count_in_two_places() -> None:
    base = after(table(), flush("abc", {"a": 1, "b": 1, "c": 1}))
    base = after(base, ReplaceFragments(B, PROFILE, refs(base, "b"), (), (), 5))
    joined = join(join(base, A, B, "x"), TabletAt("x", 1), C, "y")
    assert [(ref.file.split("/")[-1], ref.clip) for ref in refs(joined, "y")] == [
        ("abc.parquet", (b"", b"g")),
        ("abc.parquet", (b"p", None)),
    ]
    left = refs(joined, "y")[0]
    merged = after(joined, ReplaceFragments(TabletAt("y", 1), PROFILE, (left,), (), (), 6))
    assert [ref.clip for ref in refs(merged, "y")] == [(b"p", None)]


def test_a_restriction_on_one_side_stays_on_that_side() -> None:
    base = after(table((b"g",)), flush("ab", {"a": 1, "b": 1}))
    b = base.by_id("b")
    assert b is not None
    (ref,) = refs(base, "b")
    restricted = msgspec.structs.replace(b.group(PROFILE), fragments=(msgspec.structs.replace(ref, columns=(2,)),))
    base = base.with_tablets([b.with_group(restricted)])
    joined = join(base, A, B, "x")
    assert [(ref.columns, ref.clip) for ref in refs(joined, "x")] == [(None, (b"", b"g")), ((2,), (b"g", None))]


def test_references_that_differ_only_in_rows_of_others_become_one() -> None:
    base = after(table((b"g",)), flush("ab", {"a": 1, "b": 1}))
    b = base.by_id("b")
    assert b is not None
    (ref,) = refs(base, "b")
    # As joins and splits leave them, if the columns came to the group one after the other.
    clipped = tuple(msgspec.structs.replace(ref, columns=(), clip=(first, None)) for first in (b"c", b"e"))
    base = base.with_tablets([b.with_group(msgspec.structs.replace(b.group(PROFILE), fragments=clipped))])
    joined = join(base, A, B, "x")
    assert [(ref.columns, ref.clip) for ref in refs(joined, "x")] == [(None, (b"", b"g")), ((), (b"g", None))]


def test_references_put_together_that_count_as_another_does_become_one() -> None:
    base = after(table((b"g",)), flush("ab", {"b": 1}))
    b = base.by_id("b")
    assert b is not None
    (ref,) = refs(base, "b")
    rows_alone = msgspec.structs.replace(ref, columns=())
    # As columns leave them that went, one after the other, from a tablet that was cut at `m` for a while.
    clips = (None, (b"g", b"m"), (b"m", None))
    several = tuple(msgspec.structs.replace(rows_alone, clip=clip) for clip in clips)
    base = base.with_tablets([b.with_group(msgspec.structs.replace(b.group(PROFILE), fragments=several))])
    assert [(ref.columns, ref.clip) for ref in refs(join(base, A, B, "x"), "x")] == [((), (b"g", None))]


# --- invariants ------------------------------------------------------------------------------------


def test_successors_must_cover_what_went() -> None:
    base = table()
    b = base.by_id("b")
    assert b is not None
    for first, last in ((b"h", b"p"), (b"g", b"o"), (b"a", b"p"), (b"g", None)):
        with pytest.raises(InvalidMetadata, match="cover"):
            base.with_recut(["b"], [msgspec.structs.replace(b, id="x", first=first, last=last)])
    left = msgspec.structs.replace(b, id="x", last=b"j")
    with pytest.raises(InvalidMetadata, match="hole"):
        base.with_recut(["b"], [left, msgspec.structs.replace(b, id="y", first=b"k")])
    with pytest.raises(InvalidMetadata, match="overlap"):
        base.with_recut(["b"], [left, msgspec.structs.replace(b, id="y", first=b"i")])
    with pytest.raises(InvalidMetadata, match="same id"):
        base.with_recut(["b"], [left, msgspec.structs.replace(b, id="a", first=b"j")])
    with pytest.raises(InvalidMetadata, match="side by side"):
        base.with_recut(["a", "c"], [b])


def test_retired_tablets_are_on_record_as_long_as_the_log_may_name_them() -> None:
    base = split(table(()), A, b"k", ("l", "r"))
    left = TabletAt("l", 1)
    later = after(base, BeginSplit(left, b"c", ("x", "y")), FinishSplit(left, 20, 9))
    assert later.retired == (Retired("a", 9), Retired("l", 20))
    right = TabletAt("r", 1)
    later = after(later, BeginSplit(right, b"q", ("v", "w")), FinishSplit(right, 30, 10))
    assert later.retired == (Retired("l", 20), Retired("r", 30))


def test_plans_and_clips_are_kept_in_files() -> None:
    changes = (BeginSplit(A, b"d", ("l", "r")), BeginJoin(B, C, "x"))
    made = after(table(), flush("f", {"a": 1, "b": 1, "c": 1}), *changes)
    (again,) = [decode(encode(SnapshotRecord(None, made.checksum, made)), "f")]
    assert isinstance(again, SnapshotRecord)
    assert again.metadata == made
    assert again.metadata.checksum == made.checksum
    finish = (FinishSplit(A, 1, 0), FinishJoin(B, C, 2, 1), CancelSplit(A), CancelJoin(B, C))
    record = ChangeRecord("t", "b", "x", 1, 2, (*changes, *finish))
    assert decode(encode(record), "f") == record


@given(st.lists(st.tuples(st.sampled_from(["split", "join", "cancel", "flush", "compact"]), st.integers(0, 99))))
def test_no_walk_of_splits_and_joins_leaves_a_hole_or_loses_a_record(steps: list[tuple[str, int]]) -> None:
    """A record is a (file, row): which of them count must change by nothing but flushes and compactions."""
    metadata = table(())
    ids = (f"n{number}" for number in count())
    indexes = count(1)
    rows = [bytes([row]) for row in range(0, 200, 3)]

    def counted(now: TableMetadata) -> dict[bytes, list[str]]:
        found: dict[bytes, list[str]] = {}
        for row in rows:
            of = now.tablet_for(row).group(PROFILE).fragments
            here = [ref.file for ref in of if ref.first <= row <= ref.last]
            found[row] = sorted(
                file
                for file, ref in zip(here, [r for r in of if r.first <= row <= r.last], strict=True)
                if (own := ref.within(now.tablet_for(row).range)) is not None and own.contains(row)
            )
        return found

    for kind, number in steps:
        before = counted(metadata)
        tablet = metadata.tablets[number % len(metadata.tablets)]
        at = TabletAt(tablet.id, 1)
        position = metadata.tablets.index(tablet)
        try:
            if kind in ("split", "cancel"):
                begin = BeginSplit(at, bytes([number + 1, number]), (next(ids), next(ids)))
                end: Change = FinishSplit(at, 1, 0) if kind == "split" else CancelSplit(at)
                metadata = after(metadata, begin, end)
            elif kind == "join" and position + 1 < len(metadata.tablets):
                metadata = join(metadata, at, TabletAt(metadata.tablets[position + 1].id, 1), next(ids))
            elif kind == "flush":
                index = next(indexes)
                metadata = after(metadata, flush(f"f{index}", {one.id: index for one in metadata.tablets}))
                continue
            elif kind == "compact":
                name = f"c{next(indexes)}"
                last = b"\xfe" if tablet.last is None else bytes([tablet.last[0] - 1, 255])
                new = (fragment(name, tablet.first, max(last, tablet.first)),)
                metadata = after(metadata, ReplaceFragments(at, PROFILE, refs(metadata, tablet.id), new, (), 0))
                continue
        except RequirementFailed:
            continue
        assert counted(metadata) == before, f"{kind} changed what counts"
        assert all(left.last == right.first for left, right in pairwise(metadata.tablets))
