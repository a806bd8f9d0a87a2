"""What a server reports: everything until it is acknowledged, and nothing twice without need."""

from __future__ import annotations

import pytest

from ebla.master.messages import HeartbeatReply, Instance, Registration, RemovedTablet, ReportedTablet
from ebla.tablet_server import reporter as module
from ebla.tablet_server.reporter import Reporter


def replica(tablet: str, assignment: str = "a", epoch: int = 1) -> ReportedTablet:
    return ReportedTablet(tablet, "table", assignment, "running", 1, epoch)


def new() -> Reporter:
    return Reporter("cluster", Instance("server", 3), Registration("host", "host:1"))


def told(reporter: Reporter) -> Reporter:
    """Let everything be acknowledged."""
    while True:
        beat = reporter.heartbeat()
        if beat.report is None and beat.registration is None:
            return reporter
        sequence = None if beat.report is None else beat.report.sequence
        reporter.take_reply(beat, HeartbeatReply(1, acknowledged=sequence))


def test_it_begins_with_a_registration_and_a_full_report() -> None:
    reporter = new()
    reporter.has(replica("t"))
    beat = reporter.heartbeat()
    assert beat.registration == Registration("host", "host:1")
    assert beat.instance == Instance("server", 3)
    assert beat.report is not None
    assert beat.report.full is not None
    assert beat.report.tablets == (replica("t"),)


def test_what_changed_is_repeated_until_it_is_acknowledged() -> None:
    reporter = told(new())
    reporter.has(replica("t"))
    first = reporter.heartbeat()
    assert first.report is not None
    assert first.report.tablets == (replica("t"),)
    reporter.take_reply(first, HeartbeatReply(1))
    second = reporter.heartbeat()
    assert second.report is not None
    assert second.report.tablets == (replica("t"),)
    reporter.take_reply(second, HeartbeatReply(1, acknowledged=second.report.sequence))
    assert reporter.heartbeat().report is None


def test_an_acknowledgement_does_not_cover_what_changed_after_the_report() -> None:
    reporter = told(new())
    reporter.has(replica("t"))
    beat = reporter.heartbeat()
    reporter.has(replica("t", epoch=2))
    reporter.removed("u", "b")
    assert beat.report is not None
    reporter.take_reply(beat, HeartbeatReply(1, acknowledged=beat.report.sequence))
    report = reporter.heartbeat().report
    assert report is not None
    assert report.tablets == (replica("t", epoch=2),)
    assert report.removed == (RemovedTablet("u", "b"),)


def test_a_full_report_comes_in_numbered_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_TABLETS", 2)
    reporter = told(new())
    for name in "abcde":
        reporter.has(replica(name))
    told(reporter)
    beat = reporter.heartbeat()
    reporter.take_reply(beat, HeartbeatReply(2, needs_full_report=True))
    seen = []
    for chunk in range(3):
        beat = reporter.heartbeat()
        assert beat.report is not None
        assert beat.report.full is not None
        assert (beat.report.full.chunk, beat.report.full.is_last) == (chunk, chunk == 2)
        seen += [one.tablet for one in beat.report.tablets]
        reporter.take_reply(beat, HeartbeatReply(2, needs_full_report=chunk < 2, acknowledged=beat.report.sequence))
    assert seen == list("abcde")
    assert reporter.heartbeat().report is None
    assert not reporter.is_full_under_way


def test_a_chunk_that_another_master_does_not_take_begins_the_report_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_TABLETS", 1)
    reporter = new()
    reporter.has(replica("a"))
    reporter.has(replica("b"))
    reporter.take_reply(reporter.heartbeat(), HeartbeatReply(1, needs_register=True))
    reporter.take_reply(reporter.heartbeat(), HeartbeatReply(2, needs_full_report=True))
    beat = reporter.heartbeat()
    assert beat.report is not None
    assert beat.report.full is not None
    assert beat.report.full.chunk == 0
    assert [one.tablet for one in beat.report.tablets] == ["a"]


def test_it_registers_again_when_it_is_asked_to() -> None:
    reporter = told(new())
    assert reporter.heartbeat().registration is None
    reporter.take_reply(reporter.heartbeat(), HeartbeatReply(2, needs_register=True))
    assert reporter.heartbeat().registration is not None


def test_an_answer_of_a_former_master_is_passed_over() -> None:
    reporter = told(new())
    reporter.take_reply(reporter.heartbeat(), HeartbeatReply(5))
    reporter.has(replica("t"))
    beat = reporter.heartbeat()
    assert beat.report is not None
    reporter.take_reply(beat, HeartbeatReply(4, acknowledged=beat.report.sequence))
    assert reporter.heartbeat().report is not None


def test_a_replica_that_is_removed_and_comes_back_is_reported_as_there() -> None:
    reporter = told(new())
    reporter.has(replica("t"))
    reporter.removed("t", "a")
    reporter.has(replica("t"))
    report = reporter.heartbeat().report
    assert report is not None
    assert report.tablets == (replica("t"),)
    assert report.removed == ()


def test_removing_a_replica_of_another_assignment_leaves_the_one_that_is_there() -> None:
    reporter = told(new())
    reporter.has(replica("t", "new"))
    reporter.removed("t", "old")
    report = reporter.heartbeat().report
    assert report is not None
    assert report.tablets == (replica("t", "new"),)
    assert report.removed == (RemovedTablet("t", "old"),)
