"""A tablet changes hands: who leads it next has it, and who led it before changes nothing any more."""

from __future__ import annotations

import pytest

from ebla.metadata.values.assigning import Assignment, AssignTablets, PlaceTablets, StartTablets
from ebla.metadata.values.changes import (
    Change,
    Flush,
    FlushedTablet,
    NewFragment,
    RequirementFailed,
    TabletAt,
    TakeLog,
    update,
)
from ebla.metadata.values.handing_over import Offer, OfferTablets, TakeOver, VacateTablets
from ebla.metadata.values.recutting import BeginJoin, BeginSplit, FinishJoin, FinishSplit
from ebla.metadata.values.table_metadata import (
    FragmentRef,
    LogEnd,
    Replica,
    TableMetadata,
    TabletMetadata,
    initial_metadata,
)
from ebla.metadata.values.transaction_file import ChangeRecord, SnapshotRecord, decode, encode
from tests.metadata.metadata_world import SCHEMA

GROUP = SCHEMA.groups[0].id
A1 = Replica("A", "a1")
B1 = Replica("B", "b1")
END = LogEnd("A/1", "0000000000000007.log", 4096)


def led_by_a() -> TableMetadata:
    """Return two tablets that A leads at epoch 2, with writes in its log."""
    table = initial_metadata("t1", SCHEMA, ["x", "y"], [b"m"], state="preparing")
    return update(
        table,
        [
            AssignTablets((Assignment("x", 1, "A", (A1,)), Assignment("y", 1, "A", (A1,)))),
            StartTablets((TabletAt("x", 2), TabletAt("y", 2))),
            TakeLog((TabletAt("x", 2), TabletAt("y", 2)), "A", "A/1"),
        ],
    )


def changed(*changes: Change, base: TableMetadata | None = None) -> TabletMetadata:
    found = update(base or led_by_a(), changes).by_id("x")
    assert found is not None
    return found


def flush(epoch: int, flushed: int) -> Flush:
    ref = FragmentRef("f.parquet", 1, 1, b"a", b"b", 1, 1, SCHEMA.version)
    return Flush(GROUP, (NewFragment(ref, ("x",)),), (FlushedTablet("x", epoch, flushed),))


OFFERED = OfferTablets((Offer("x", 2, B1),))
VACATED = VacateTablets((TabletAt("x", 2),), "A")
RE_OFFERED = OfferTablets((Offer("x", 3, B1),))
TAKEN = TakeOver(TabletAt("x", 3), "B", "b1", "B/4", END)


def test_an_offer_changes_neither_the_leader_nor_the_epoch() -> None:
    tablet = changed(OFFERED)
    assert (tablet.leader, tablet.epoch, tablet.replicas, tablet.target) == ("A", 2, (A1,), B1)
    assert tablet.assigned == (A1, B1)
    assert changed(OFFERED, flush(2, 5)).group(GROUP).flushed == 5, "A goes on meanwhile"
    assert changed(OFFERED, OfferTablets((Offer("x", 2, None),))).target is None


def test_a_server_is_never_made_the_leader_of_what_it_does_not_have() -> None:
    with pytest.raises(RequirementFailed) as refused:
        changed(PlaceTablets((Assignment("x", 2, "B", (B1,)),)))
    assert refused.value.code == "empty_leader"


def test_the_target_leads_by_its_own_change_with_what_it_has_replayed() -> None:
    tablet = changed(OFFERED, VACATED, TAKEN, flush(4, 9))
    assert (tablet.leader, tablet.epoch, tablet.replicas, tablet.target) == ("B", 4, (B1,), None)
    assert (tablet.log, tablet.log_epoch, tablet.taken) == ("B/4", 4, END)
    assert tablet.group(GROUP).flushed == 9


def test_a_late_flush_of_who_led_before_is_refused() -> None:
    for changes in ((OFFERED, VACATED), (OFFERED, VACATED, TAKEN)):
        with pytest.raises(RequirementFailed) as refused:
            changed(*changes, flush(2, 5))
        assert refused.value.code == "stale_epoch"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ((TakeOver(TabletAt("x", 2), "B", "b1", "B/4", END),), "other_leader"),
        ((OFFERED, TakeOver(TabletAt("x", 2), "B", "b1", "B/4", END)), "other_leader"),
        ((VACATED, TAKEN), "not_offered"),
        ((OFFERED, VACATED, TakeOver(TabletAt("x", 3), "B", "b0", "B/4", END)), "not_offered"),
        ((OFFERED, VACATED, TakeOver(TabletAt("x", 3), "C", "b1", "C/1", END)), "not_offered"),
        ((OFFERED, VACATED, TakeOver(TabletAt("x", 3), "A", "a1", "A/2", END)), "not_offered"),
        ((OFFERED, VACATED, OfferTablets((Offer("x", 3, Replica("C", "c1")),)), TAKEN), "not_offered"),
        ((OFFERED, VACATED, TakeOver(TabletAt("x", 3), "B", "b1", "B/4")), "other_log"),
        ((OFFERED, VACATED, TakeOver(TabletAt("x", 3), "B", "b1", "B/4", LogEnd("A/0", "1", 0))), "other_log"),
        ((OFFERED, VACATED, TakeOver(TabletAt("x", 2), "B", "b1", "B/4", END)), "stale_epoch"),
        ((OFFERED, VACATED, TAKEN, TAKEN), "stale_epoch"),
        ((VacateTablets((TabletAt("x", 2),), "B"),), "other_leader"),
        ((OfferTablets((Offer("x", 2, A1),)),), "leads_already"),
        ((OfferTablets((Offer("x", 2, B1), Offer("x", 2, B1))),), "named_twice"),
    ],
)
def test_what_does_not_fit_is_refused(changes: tuple[Change, ...], code: str) -> None:
    with pytest.raises(RequirementFailed) as refused:
        changed(*changes)
    assert refused.value.code == code


def test_who_flushed_all_leaves_no_log_to_replay() -> None:
    left = VacateTablets((TabletAt("x", 2),), "A", is_flushed=True)
    assert changed(OFFERED, left).log is None
    assert changed(OFFERED, left, TakeOver(TabletAt("x", 3), "B", "b1", "B/4")).log == "B/4"


def test_a_server_that_was_started_again_takes_its_own_tablets_at_a_new_epoch() -> None:
    tablet = changed(VACATED, TakeOver(TabletAt("x", 3), "A", "a1", "A/2", END))
    assert (tablet.leader, tablet.epoch, tablet.log) == ("A", 4, "A/2")


def test_a_split_that_was_begun_does_not_keep_a_tablet_from_changing_hands() -> None:
    tablet = changed(BeginSplit(TabletAt("x", 2), b"g", ("l", "r")), VACATED, RE_OFFERED, TAKEN)
    assert (tablet.leader, tablet.state, tablet.split) == ("B", "running", None)
    again = changed(
        BeginSplit(TabletAt("x", 2), b"g", ("l", "r")), VACATED, RE_OFFERED, TAKEN,
        BeginSplit(TabletAt("x", 4), b"g", ("l", "r")),
    )  # fmt: skip
    assert again.state == "splitting", "who leads next begins again, with the same row"


def test_a_join_is_undone_on_both_sides() -> None:
    begun = update(led_by_a(), [BeginJoin(TabletAt("x", 2), TabletAt("y", 2), "xy")])
    after = update(begun, [VACATED])
    assert [(one.state, one.join, one.epoch) for one in after.tablets] == [("running", None, 3), ("running", None, 2)]
    with pytest.raises(RequirementFailed):
        update(after, [FinishJoin(TabletAt("x", 3), TabletAt("y", 2), 5, 0)])


def test_tablets_that_other_logs_may_name_stay_on_record_when_one_server_tells_of_its_log() -> None:
    """B splits what it took over from A, and something of its own: it knows nothing of how far A's log reaches."""
    moved = update(led_by_a(), [OFFERED, VACATED, TAKEN])
    split = update(moved, [BeginSplit(TabletAt("x", 4), b"g", ("l", "r")), FinishSplit(TabletAt("x", 4), 10, 0)])
    later = update(split, [BeginSplit(TabletAt("l", 4), b"c", ("ll", "lr")), FinishSplit(TabletAt("l", 4), 50, 40)])
    assert {one.tablet for one in later.retired} == {"x", "l"}
    own = update(led_by_a(), [BeginSplit(TabletAt("y", 2), b"t", ("l", "r")), FinishSplit(TabletAt("y", 2), 10, 0)])
    by_b = update(own, [OFFERED, VACATED, TAKEN])
    by_b = update(by_b, [BeginSplit(TabletAt("x", 4), b"c", ("p", "q")), FinishSplit(TabletAt("x", 4), 50, 40)])
    assert {one.tablet for one in by_b.retired} == {"x", "y"}, "y is named by A's log"
    by_a = update(own, [BeginSplit(TabletAt("x", 2), b"c", ("p", "q")), FinishSplit(TabletAt("x", 2), 50, 40)])
    assert {one.tablet for one in by_a.retired} == {"x"}, "A has said that its log begins behind y"


def test_changes_of_hands_are_read_as_they_were_written() -> None:
    base = led_by_a().with_txnid("one", 1)
    changes = (OFFERED, VACATED, TAKEN)
    after = update(base, changes).with_txnid("two", 2)
    record = ChangeRecord("t1", "one", "two", 2, after.checksum, changes)
    assert decode(encode(record), "a file") == record
    snapshot = SnapshotRecord(None, after.checksum, after)
    assert decode(encode(snapshot), "a file") == snapshot
