"""What a log says of replicas, and which of its segments are needed."""

from __future__ import annotations

from ebla.replication.configuration import LogEnd
from ebla.replication.messages import Entry
from ebla.replication.server_log import Appended, Dropped, Gone, Record, ServerLog, Standing, replay

KEY = ("t", "a1")
OTHER = ("u", "a2")


def appended(epoch: int, index: int, key: tuple[str, str] = KEY) -> Appended:
    return Appended(key, Entry(epoch, index, index, "empty"))


def numbered(*records: Record) -> list[tuple[int, Record]]:
    return list(enumerate(records, 1))


def found(*records: Record, ends: tuple[LogEnd, ...] = ()) -> list[tuple[int, int]]:
    replayed = replay(numbered(*records), ends)[KEY]
    return [(entry.epoch, index) for index, entry in sorted(replayed.entries.items())]


def test_an_entry_removes_those_of_lower_epochs_from_its_index_on() -> None:
    assert found(appended(1, 1), appended(1, 2), appended(1, 3), appended(2, 2)) == [(1, 1), (2, 2)]


def test_a_record_of_a_drop_removes_what_stands_before_it() -> None:
    assert found(appended(1, 1), appended(3, 2), Dropped(KEY, 2), appended(2, 2)) == [(1, 1), (2, 2)]


def test_the_highest_epoch_is_remembered_without_any_entry() -> None:
    assert replay(numbered(Standing(KEY, 4), Standing(KEY, 2)))[KEY].epoch == 4


def test_a_replica_that_is_gone_is_not_replayed() -> None:
    assert replay(numbered(Standing(KEY, 1), appended(1, 1), Gone(KEY))) == {}


def test_nothing_behind_a_recorded_end_is_replayed() -> None:
    records = (appended(1, 1), appended(1, 2), appended(1, 3))
    assert found(*records, ends=(LogEnd("a1", "log", 2),)) == [(1, 1), (1, 2)]


def test_segments_go_when_their_entries_are_flushed() -> None:
    log = ServerLog((), 2)
    log.append(appended(1, 1))
    log.append(appended(1, 2))
    assert log.is_full
    log.taken()
    log.rotate()
    log.append(appended(1, 3))
    log.taken()
    log.rotate()
    assert log.free(lambda key, index: index > 1) == []
    assert log.free(lambda key, index: index > 2) == [1]
    assert log.free(lambda key, index: index > 3) == [2]


def test_a_record_of_a_drop_stays_as_long_as_what_it_drops() -> None:
    log = ServerLog((), 2)
    log.append(appended(3, 7))
    log.append(appended(1, 1, OTHER))
    log.taken()
    log.rotate()
    log.append(Dropped(KEY, 7))
    log.taken()
    log.rotate()
    assert log.free(lambda key, index: key == OTHER or index > 6) == []
    assert log.free(lambda key, index: False) == [1, 2]


def test_what_holds_a_segment_is_found_again_after_a_restart() -> None:
    on_disk = [(1, 1, appended(3, 7)), (2, 2, Dropped(KEY, 7)), (2, 3, appended(2, 7))]
    log = ServerLog(on_disk, 2)
    assert log.next_sequence == 4
    assert log.current == 3
    assert log.free(lambda key, index: index > 6) == []
    assert log.free(lambda key, index: False) == [1, 2]
