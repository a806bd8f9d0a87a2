"""Changes: what they require, what they make, and what they never do."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import Conflict
from ebla.metadata.values.changes import (
    JOBS_MAX,
    STREAMS_MAX,
    AddFragments,
    Change,
    Flush,
    FlushedTablet,
    NewFragment,
    RangeErase,
    RecordBatch,
    RecordJob,
    RequirementFailed,
    RequireSchema,
    TabletAt,
    TakeLog,
    apply,
)
from ebla.metadata.values.table_metadata import InvalidMetadata, RangeErasure, StreamBatch, TableMetadata
from tests.metadata.metadata_world import EVENTS, PROFILE, SCHEMA, files_of, flush, fragment, table

replace = msgspec.structs.replace
EVERYTHING = RangeErasure(b"", None, 5)
ALL_AT_1 = tuple(TabletAt(tablet, 1) for tablet in "abc")


def refused(metadata: TableMetadata, *changes: Change) -> str:
    """Apply changes that must be refused, and return the code."""
    with pytest.raises(RequirementFailed) as raised:
        apply(metadata, changes, "x")
    assert isinstance(raised.value, Conflict)
    assert raised.value.reason in str(raised.value)
    return raised.value.code


def test_a_transaction_gets_its_id_and_the_next_number() -> None:
    metadata = table().with_txnid("first", 1)
    after = apply(metadata, [RequireSchema(1)], "second")
    assert (after.txnid, after.sequence) == ("second", 2)
    assert after.tablets is metadata.tablets or after.tablets == metadata.tablets


def test_applying_leaves_the_base_as_it_was() -> None:
    metadata = table()
    before = msgspec.structs.asdict(metadata)
    apply(metadata, [flush("f", {"a": 1}), RecordJob("j", 1)], "x")
    assert msgspec.structs.asdict(metadata) == before


# --- logs ----------------------------------------------------------------------------------------


def test_taking_the_log_makes_the_server_the_leader() -> None:
    after = apply(table(), [TakeLog(ALL_AT_1, "server", "log")], "x")
    assert {(tablet.leader, tablet.log, tablet.epoch) for tablet in after.tablets} == {("server", "log", 1)}
    assert apply(after, [TakeLog(ALL_AT_1, "server", "log")], "y").tablets == after.tablets


def test_a_log_with_unflushed_writes_is_not_forgotten() -> None:
    after = apply(table(), [TakeLog(ALL_AT_1, "server", "old")], "x")
    assert refused(after, TakeLog(ALL_AT_1, "server", "new")) == "other_log"
    assert refused(after, TakeLog(ALL_AT_1, "server", "new", replayed="another")) == "other_log"
    replayed = apply(after, [TakeLog(ALL_AT_1, "server", "new", replayed="old")], "y")
    assert {tablet.log for tablet in replayed.tablets} == {"new"}


def test_a_tablet_led_by_another_server_is_not_taken() -> None:
    after = apply(table(), [TakeLog((TabletAt("b", 1),), "one", "log")], "x")
    assert refused(after, TakeLog(ALL_AT_1, "two", "log")) == "other_leader"


# --- flushes -------------------------------------------------------------------------------------


def test_a_flush_adds_the_fragment_to_its_tablets_and_moves_the_index() -> None:
    after = apply(table(), [flush("f", {"a": 3, "c": 4})], "x")
    states = [tablet.group(PROFILE) for tablet in after.tablets]
    assert [state.flushed for state in states] == [3, 0, 4]
    assert [len(state.fragments) for state in states] == [1, 0, 1]
    assert all(tablet.group(EVENTS).flushed == 0 for tablet in after.tablets)


def test_a_flush_may_move_the_index_of_tablets_that_get_nothing() -> None:
    after = apply(table(), [Flush(PROFILE, (), (FlushedTablet("a", 1, 9),))], "x")
    assert after.by_id("a").group(PROFILE).flushed == 9
    assert apply(after, [Flush(PROFILE, (), (FlushedTablet("a", 1, 9),))], "y").tablets == after.tablets


def test_a_flush_brings_its_range_erasures_once() -> None:
    first = apply(table(), [flush("f", {"a": 3}, erasures=(EVERYTHING,))], "x")
    second = apply(first, [flush("g", {"a": 4}, erasures=(EVERYTHING, RangeErasure(b"a", b"b", 6)))], "y")
    assert second.by_id("a").group(PROFILE).erasures == (EVERYTHING, RangeErasure(b"a", b"b", 6))


def test_a_flush_by_another_than_the_owner_is_refused_if_the_owner_flushed_meanwhile() -> None:
    def replayed(base: int) -> Flush:
        return Flush(PROFILE, (), (FlushedTablet("a", 1, 5, (), base),))

    after = apply(table(), [flush("f", {"a": 3})], "t2")
    assert refused(after, replayed(0)) == "flushed_meanwhile"
    assert apply(after, [replayed(3)], "t3").by_id("a").group(PROFILE).flushed == 5  # type: ignore[union-attr]
    assert refused(after, replayed(4)) == "flushed_meanwhile"


def test_a_flush_never_lowers_the_index_nor_comes_twice() -> None:
    after = apply(table(), [flush("f", {"a": 3})], "x")
    assert refused(after, flush("g", {"a": 2})) == "already_flushed"
    assert refused(after, flush("g", {"a": 3})) == "already_flushed"
    assert refused(after, flush("f", {"a": 3})) == "already_flushed"
    assert refused(after, flush("f", {"a": 4})) == "fragment_known"
    assert refused(after, Flush(PROFILE, (), (FlushedTablet("a", 1, 3, (EVERYTHING,)),))) == "already_flushed"
    assert refused(after, Flush(PROFILE, (), (FlushedTablet("a", 1, 2),))) == "already_flushed"


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda epoch: flush("f", {"a": 3}, epoch=epoch),
        lambda epoch: TakeLog((TabletAt("a", epoch),), "s", "s"),
        lambda epoch: AddFragments(PROFILE, (), (TabletAt("a", epoch),)),
        lambda epoch: RangeErase(RangeErasure(b"a", b"b", 5), (TabletAt("a", epoch),)),
    ],
)
def test_a_change_from_another_epoch_is_refused(change: object, epoch: int) -> None:
    assert refused(table(), change(epoch)) == "stale_epoch"


def test_a_change_of_what_is_not_there_is_refused() -> None:
    assert refused(table(), flush("f", {"z": 3})) == "unknown_tablet"
    assert refused(table(), flush("f", {"a": 3}, group=99)) == "unknown_group"
    assert refused(table(), AddFragments(99, (), ())) == "unknown_group"
    assert refused(table(), TakeLog((TabletAt("z", 1),), "s", "s")) == "unknown_tablet"


def test_a_change_that_contradicts_itself_is_refused() -> None:
    twice = (FlushedTablet("a", 1, 3), FlushedTablet("a", 1, 4))
    assert refused(table(), Flush(PROFILE, (), twice)) == "named_twice"
    unnamed = (NewFragment(fragment("f"), ("a", "b")),)
    assert refused(table(), Flush(PROFILE, unnamed, (FlushedTablet("a", 1, 3),))) == "wrong_tablets"
    future = (NewFragment(replace(fragment("f"), schema_version=2), ("a",)),)
    assert refused(table(), Flush(PROFILE, future, (FlushedTablet("a", 1, 3),))) == "schema_version"


def test_a_fragment_outside_its_tablet_breaks_the_invariants() -> None:
    outside = Flush(PROFILE, (NewFragment(fragment("f", b"x", b"y"), ("a",)),), (FlushedTablet("a", 1, 3),))
    with pytest.raises(InvalidMetadata, match="no row of the tablet"):
        apply(table(), [outside], "x")


# --- bulk ----------------------------------------------------------------------------------------


def test_overwriting_a_table_is_one_list_of_changes() -> None:
    before = apply(table(), [flush("old", {"a": 3, "b": 1, "c": 1})], "x")
    overwrite = [
        RecordJob("job", 1),
        RequireSchema(SCHEMA.version),
        RangeErase(EVERYTHING, ALL_AT_1),
        AddFragments(PROFILE, (NewFragment(fragment("new", txn=5), ("a", "b", "c")),), ALL_AT_1),
    ]
    after = apply(before, overwrite, "y")
    assert files_of(after) == {"old", "new"}
    for tablet in after.tablets:
        assert tablet.group(PROFILE).erasures == tablet.group(EVENTS).erasures == (EVERYTHING,)
    assert after.by_id("a").group(PROFILE).flushed == 3
    assert refused(after, *overwrite) == "job_done"


def test_a_list_is_all_or_nothing() -> None:
    assert refused(table(), flush("f", {"a": 3}), RequireSchema(2)) == "schema_version"
    assert refused(table(), flush("f", {"a": 3}), flush("g", {"a": 3})) == "already_flushed"


def test_a_range_erasure_names_all_tablets_it_overlaps_and_no_other() -> None:
    erasure = RangeErasure(b"h", b"p", 5)
    after = apply(table(), [RangeErase(erasure, (TabletAt("b", 1),))], "x")
    assert [len(tablet.group(PROFILE).erasures) for tablet in after.tablets] == [0, 1, 0]
    for tablets in ((), ALL_AT_1[:2], ALL_AT_1[2:]):
        assert refused(table(), RangeErase(erasure, tablets)) == "wrong_tablets"


def test_the_record_of_jobs_is_bounded() -> None:
    metadata = apply(table(), [RecordJob(f"j{number}", number) for number in range(JOBS_MAX + 5)], "x")
    assert len(metadata.jobs) == JOBS_MAX
    assert metadata.jobs[-1] == (f"j{JOBS_MAX + 4}", JOBS_MAX + 4)
    assert metadata.newest_job_txn == JOBS_MAX + 4
    assert metadata.job_txn("j4") is None
    assert metadata.job_txn("j5") == 5


def test_of_a_stream_the_newest_batch_is_on_record() -> None:
    first = apply(table(), [RecordBatch(StreamBatch("app", 7, 100)), RecordJob("j", 90)], "x")
    assert first.newest_job_txn == 100
    assert refused(first, RecordBatch(StreamBatch("app", 7, 110))) == "job_done"
    assert refused(first, RecordBatch(StreamBatch("app", 6, 110))) == "job_done"
    after = apply(first, [RecordBatch(StreamBatch("other", 0, 120)), RecordBatch(StreamBatch("app", 9, 130))], "y")
    assert after.streams == (StreamBatch("other", 0, 120), StreamBatch("app", 9, 130))
    assert after.stream_batch("app") == StreamBatch("app", 9, 130)
    assert after.stream_batch("none") is None
    assert first.checksum != after.checksum
    many = apply(after, [RecordBatch(StreamBatch(f"a{number}", 0, number)) for number in range(STREAMS_MAX)], "z")
    assert len(many.streams) == STREAMS_MAX
    assert many.stream_batch("app") is None


# --- any sequence --------------------------------------------------------------------------------


def some_change(dice: random.Random, name: str) -> Change:
    """A change that may or may not fit: epochs, indexes, names and tablets are often wrong."""
    tablets = dice.sample("abcd", dice.choice([1, 1, 1, 2, 3]))
    if "d" in tablets and dice.random() < 0.8:
        tablets.remove("d")
    at = tuple(TabletAt(tablet, dice.choice([1, 1, 1, 1, 1, 2])) for tablet in tablets)
    group = dice.choice([PROFILE, EVENTS, EVENTS, PROFILE, 99])
    new = NewFragment(fragment(dice.choice([name, name, name, "again"])), tuple(tablets))
    match dice.randrange(6):
        case 0:
            return TakeLog(at, dice.choice("st"), dice.choice("st"), dice.choice([None, "s", "t"]))
        case 1:
            return AddFragments(group, (new,), at)
        case 2:
            return RangeErase(RangeErasure(b"", dice.choice([None, b"g"]), 7), at)
        case _:
            flushed = tuple(FlushedTablet(each.tablet, each.epoch, dice.randrange(30), ()) for each in at)
            return Flush(group, (new,) if dice.random() < 0.8 else (), flushed)


@given(st.integers(0, 10**9))
def test_any_sequence_of_changes_keeps_the_invariants(seed: int) -> None:
    dice = random.Random(seed)
    metadata = table().with_txnid("x0", 1)
    for number in range(30):
        change = some_change(dice, f"f{number}")
        before = metadata
        try:
            metadata = apply(before, [change], f"x{number + 1}")
        except RequirementFailed:
            continue
        metadata.check()
        anew = TableMetadata(*(getattr(metadata, name) for name in TableMetadata.__struct_fields__))
        assert metadata.checksum == anew.checksum
        for old, new in zip(before.tablets, metadata.tablets, strict=True):
            assert (old.id, old.range, old.epoch) == (new.id, new.range, new.epoch)
            assert old.log is None or new.log is not None
            for group in (PROFILE, EVENTS):
                assert new.group(group).flushed >= old.group(group).flushed
                assert new.group(group).fragments[: len(old.group(group).fragments)] == old.group(group).fragments


@given(st.integers(0, 10**9))
def test_flushes_of_different_tablets_or_groups_commute(seed: int) -> None:
    dice = random.Random(seed)
    places = [(tablet, group) for tablet in "abc" for group in (PROFILE, EVENTS)]
    changes = [flush(f"f{n}", {tablet: n + 1}, group=group) for n, (tablet, group) in enumerate(places)]
    shuffled = dice.sample(changes, len(changes))
    assert apply(table(), changes, "x") == apply(table(), shuffled, "x")
