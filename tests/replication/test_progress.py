"""What a leader knows of a replica: for how long it has lacked something."""

from __future__ import annotations

from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication.messages import Ack
from ebla.replication.progress import Progress


def progress(last: int = 0, now: float = 100.0) -> Progress:
    """Return a replica that was met when the log ended there, and has acknowledged nothing."""
    return Progress(Replica("b", "of-b", "log-of-b", True), last + 1, now)


def acknowledge(one: Progress, index: int, now: float) -> None:
    one.take(Ack("t/t0", "of-b", "log-of-b", 1, 1, index, now), now)


def test_a_replica_that_has_everything_is_not_behind_however_long_nothing_happens() -> None:
    one = progress(last=5)
    acknowledge(one, 5, 101.0)
    one.mark(5, 101.0)
    assert one.behind_seconds(900.0) == 0


def test_a_replica_is_behind_from_when_it_was_first_to_have_what_it_lacks() -> None:
    one = progress()
    one.mark(0, 500.0)
    one.mark(3, 501.0)
    one.mark(9, 502.0)  # more comes, and nothing is acknowledged
    assert one.behind_seconds(501.0) == 0
    assert one.behind_seconds(511.0) == 10
    acknowledge(one, 2, 512.0)
    assert one.behind_seconds(521.0) == 20
    acknowledge(one, 9, 522.0)
    assert one.behind_seconds(522.0) == 0


def test_a_replica_that_keeps_up_with_a_stream_is_behind_by_what_is_on_its_way() -> None:
    one = progress()
    for index in range(1, 100):
        now = 100.0 + index
        one.mark(index, now)
        assert one.behind_seconds(now) <= 2, "each entry is acknowledged two seconds later"
        acknowledge(one, index - 2, now)


def test_a_replica_that_was_never_heard_of_is_behind_since_the_leader_knows_it() -> None:
    assert progress(last=7, now=100.0).behind_seconds(130.0) == 30


def test_a_replica_whose_log_was_lost_is_behind_from_then_on() -> None:
    one = progress()
    one.mark(4, 100.0)
    acknowledge(one, 4, 101.0)
    one.mark(4, 200.0)
    one.take(Ack("t/t0", "of-b", "log-of-b-anew", 2, 1, 0, 200.0), 200.0)
    assert one.behind_seconds(203.0) == 3
