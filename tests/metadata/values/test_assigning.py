"""Assignments in METADATA: every decision names the epoch it was taken at, so that one of two is refused."""

from __future__ import annotations

import pytest

from ebla.metadata.values.assigning import (
    Assign,
    Assignment,
    AssignTablets,
    ForgetReplaced,
    PlaceTablets,
    Replacement,
    ReplaceTablets,
    StartTablets,
)
from ebla.metadata.values.changes import RequirementFailed, TabletAt, update
from ebla.metadata.values.table_metadata import InvalidMetadata, Replica, TableMetadata, initial_metadata
from ebla.metadata.values.transaction_file import ChangeRecord, SnapshotRecord, decode, encode
from tests.metadata.metadata_world import SCHEMA


def prepared() -> TableMetadata:
    return initial_metadata("t1", SCHEMA, ["a", "b"], [b"m"], state="preparing")


def on(tablet: str, epoch: int, *servers: str) -> Assignment:
    return Assignment(tablet, epoch, servers[0], tuple(Replica(server, f"{tablet}-{server}") for server in servers))


CREATING = update(prepared(), [AssignTablets((on("a", 1, "s1", "s2"), on("b", 1, "s2", "s1")))])
RUNNING = update(CREATING, [StartTablets((TabletAt("a", 2), TabletAt("b", 2)))])


def test_tablets_go_from_preparing_over_creating_to_running() -> None:
    assert [(tablet.state, tablet.epoch, tablet.leader) for tablet in RUNNING.tablets] == [
        ("running", 2, "s1"),
        ("running", 2, "s2"),
    ]
    assert update(RUNNING, [StartTablets((TabletAt("a", 2),))]) == RUNNING


@pytest.mark.parametrize(
    ("metadata", "change", "code"),
    [
        (CREATING, AssignTablets((on("a", 1, "s3"),)), "stale_epoch"),
        (CREATING, AssignTablets((on("a", 2, "s3"),)), "other_state"),
        (prepared(), AssignTablets((Assignment("a", 1, "s9", (Replica("s1", "x"),)),)), "no_replica"),
        (prepared(), AssignTablets((on("a", 1, "s1"), on("a", 1, "s2"))), "named_twice"),
        (prepared(), StartTablets((TabletAt("a", 1),)), "other_state"),
        (CREATING, StartTablets((TabletAt("a", 1),)), "stale_epoch"),
        (RUNNING, ReplaceTablets((Replacement("a", 2, "c"),)), "other_state"),
        (CREATING, ReplaceTablets((Replacement("a", 1, "c"),)), "stale_epoch"),
        (RUNNING, PlaceTablets((on("a", 1, "s2", "s1"),)), "stale_epoch"),
        (CREATING, PlaceTablets((on("a", 2, "s2", "s1"),)), "other_state"),
        (RUNNING, PlaceTablets((on("a", 2, "s3", "s4"),)), "two_steps"),
        (RUNNING, PlaceTablets((on("z", 2, "s3", "s4"),)), "unknown_tablet"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_was_decided_on_old_news_is_refused(metadata: TableMetadata, change: Assign, code: str) -> None:
    with pytest.raises(RequirementFailed) as refused:
        update(metadata, [change])
    assert refused.value.code == code


def test_replaced_tablet_keeps_its_range_under_a_new_id_and_stays_on_record() -> None:
    replaced = update(CREATING, [ReplaceTablets((Replacement("a", 2, "c"),)), AssignTablets((on("c", 1, "s3"),))])
    replaced.check()
    assert [(tablet.id, tablet.first, tablet.state) for tablet in replaced.tablets] == [
        ("c", b"", "creating"),
        ("b", b"m", "creating"),
    ]
    assert [(one.tablet, one.servers) for one in replaced.replaced] == [("a", ("s1", "s2"))]
    forgotten = update(replaced, [ForgetReplaced(("a",))])
    assert [(one.tablet, one.servers) for one in forgotten.replaced] == [("a", ())]
    with pytest.raises(InvalidMetadata):
        update(CREATING, [ReplaceTablets((Replacement("a", 2, "b"),))])


def test_every_placement_raises_the_epoch() -> None:
    moved = update(RUNNING, [PlaceTablets((on("a", 2, "s2", "s3"),))])
    assert (moved.tablets[0].epoch, moved.tablets[0].leader) == (3, "s2")
    assert moved.tablets[1] is RUNNING.tablets[1]


@pytest.mark.parametrize(
    ("metadata", "change"),
    [
        (prepared(), AssignTablets((on("a", 1, "s1"),))),
        (CREATING, StartTablets((TabletAt("a", 2),))),
        (CREATING, ReplaceTablets((Replacement("a", 2, "c"),))),
        (RUNNING, PlaceTablets((on("a", 2, "s2", "s3"),))),
        (RUNNING, ForgetReplaced(("q",))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_changes_and_their_outcomes_are_read_back_with_the_same_checksum(
    metadata: TableMetadata, change: Assign
) -> None:
    changed = update(metadata, [change])
    record = ChangeRecord("t1", "x", "y", 2, changed.checksum, (change,))
    assert decode(encode(record), "file") == record
    found = decode(encode(SnapshotRecord(None, changed.checksum, changed)), "file")
    assert isinstance(found, SnapshotRecord)
    assert found.metadata == changed
    assert found.metadata.checksum == changed.checksum
