"""Tasks: one for each server, tablet and operation; repeated with growing pauses; ended by reports alone."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from ebla.master.tasks import Tasks


def always(tablet: str, operation: str, assignment_id: str) -> bool:
    return True


def test_task_asked_for_many_times_is_one_task_with_one_clock() -> None:
    tasks = Tasks(Random(1), 1.0, 8.0)
    sent = 0
    for tick in range(1000):  # ten seconds, in which every report asks for it again
        tasks.ensure("s1", "t1", "delete", tick / 100, "a1")
        sent += len(tasks.due("s1", tick / 100, 10, always))
    assert len(tasks) == 1
    assert sent == 4, "at 0, 1, 3 and 7 seconds or so"


def test_pauses_grow_to_the_longest_and_stay_there() -> None:
    tasks = Tasks(Random(1), 1.0, 8.0)
    tasks.ensure("s1", "t1", "alter", 0.0)
    times = [tick / 10 for tick in range(2000) if tasks.due("s1", tick / 10, 10, always)]
    pauses = [after - before for before, after in pairwise(times)]
    assert all(0.7 < pauses[0] < 1.4 and 5.9 < pause < 10.1 for pause in pauses[4:])


def test_task_ends_by_done_or_when_it_is_no_longer_wanted() -> None:
    tasks = Tasks(Random(1), 1.0, 8.0)
    for tablet in ("t1", "t2"):
        tasks.ensure("s1", tablet, "create", 0.0)
    tasks.done("s1", "t1", "create")
    assert tasks.due("s1", 0.0, 10, lambda tablet, operation, assignment: False) == []
    assert len(tasks) == 0


def test_new_assignment_starts_a_delete_anew() -> None:
    tasks = Tasks(Random(1), 1.0, 8.0)
    tasks.ensure("s1", "t1", "delete", 0.0, "a1")
    assert tasks.due("s1", 0.0, 10, always) == [("t1", "delete", "a1")]
    tasks.ensure("s1", "t1", "delete", 0.1, "a2")
    assert tasks.due("s1", 0.1, 10, always) == [("t1", "delete", "a2")]


def test_one_round_sends_a_bounded_number_and_the_rest_later() -> None:
    tasks = Tasks(Random(1), 1.0, 8.0)
    for number in range(25):
        tasks.ensure("s1", f"t{number}", "create", 0.0)
    assert [len(tasks.due("s1", 0.0, 10, always)) for _ in range(4)] == [10, 10, 5, 0]


def test_restarted_server_has_no_tasks() -> None:
    tasks = Tasks(Random(1), 1.0, 8.0)
    tasks.ensure("s1", "t1", "create", 0.0)
    tasks.ensure("s2", "t1", "create", 0.0)
    tasks.drop_server("s1")
    assert tasks.due("s1", 0.0, 10, always) == []
    assert len(tasks) == 1
