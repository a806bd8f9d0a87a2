"""Logs are compared by epoch and index."""

from __future__ import annotations

from random import Random

import pytest

from ebla.replication.append_log import AppendLog, Gap
from ebla.replication.configuration import NOWHERE, Position
from ebla.replication.messages import Entry


def entry(epoch: int, index: int) -> Entry:
    return Entry(epoch, index, epoch * 1000 + index, "empty")


def log_of(*epochs: int, base: Position = NOWHERE) -> AppendLog:
    log = AppendLog(base)
    for at, epoch in enumerate(epochs, base.index + 1):
        log.append(entry(epoch, at))
    return log


def test_runs_tell_the_last_index_of_each_epoch() -> None:
    assert log_of(1, 1, 3, 4, 4).runs() == (NOWHERE, Position(1, 2), Position(3, 3), Position(4, 5))


def test_runs_of_an_empty_log_are_its_base() -> None:
    assert log_of(base=Position(3, 7)).runs() == (Position(3, 7),)


def test_logs_match_up_to_the_last_entry_that_both_have() -> None:
    leader = log_of(1, 1, 2, 5)
    assert leader.match(log_of(1, 1, 2).runs()) == 3
    assert leader.match(log_of(1, 1, 1, 1).runs()) == 2
    assert leader.match(log_of(1, 1, 3, 3).runs()) == 2
    assert leader.match(log_of().runs()) == 0


def test_a_log_that_begins_at_a_flushed_point_matches_there() -> None:
    leader = log_of(2, 5, base=Position(1, 2))
    assert leader.match(log_of(base=Position(1, 2)).runs()) == 2
    assert leader.match(log_of(base=Position(2, 3)).runs()) == 3
    assert leader.match(log_of(1, 1).runs()) == 2


def test_matching_finds_the_common_part_of_any_two_logs_of_one_tablet() -> None:
    """Logs as leaders make them: each epoch goes on behind some part of what one replica had."""
    random = Random(5)
    for _ in range(300):
        logs = [log_of(1)]
        for epoch in range(2, 8):
            former = random.choice(logs)
            kept = [one.epoch for one in former.entries][: random.randint(1, len(former.entries))]
            logs.append(log_of(*kept, *[epoch] * random.randint(1, 3)))
        one, other = random.choice(logs), random.choice(logs)
        common = 0
        for mine, theirs in zip(one.entries, other.entries, strict=False):
            if mine != theirs:
                break
            common += 1
        assert one.match(other.runs()) == common


def test_the_flushed_point_drops_what_is_below_and_lower_epochs_above() -> None:
    log = log_of(1, 1, 2, 2)
    log.trim(Position(2, 3))
    assert [(one.epoch, one.index) for one in log.entries] == [(2, 4)]
    stale = log_of(1, 1, 1, 1, 1)
    stale.trim(Position(2, 3))
    assert stale.entries == []
    assert stale.last == Position(2, 3)


def test_a_replay_drops_the_same_and_tells_a_gap() -> None:
    found = {at: entry(1, at) for at in range(3, 7)}
    log = AppendLog.replayed(found, Position(1, 3))
    assert [one.index for one in log.entries] == [4, 5, 6]
    with pytest.raises(Gap):
        AppendLog.replayed(found, Position(1, 1))


def test_a_gap_in_the_middle_is_told_too() -> None:
    """Segments go in any order: METADATA that is older than the log finds the first entries, and lacks later ones."""
    found = {at: entry(1, at) for at in (1, 2, 5, 6)}
    with pytest.raises(Gap):
        AppendLog.replayed(found, NOWHERE)
    assert [one.index for one in AppendLog.replayed(found, Position(1, 4)).entries] == [5, 6]
