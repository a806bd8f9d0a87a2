"""Group commit: everybody gets the answer to their own request, and nobody waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ebla.errors import OutcomeUnknown
from ebla.metadata.group_commit import CommitQueue, Request

PATIENCE_SECONDS = 20


def until_waiting(queue: CommitQueue[Any, Any], count: int) -> None:
    """Return when so many requests wait for the next group."""
    for _ in range(PATIENCE_SECONDS * 1000):
        with queue._changed:
            if len(queue._waiting) == count:
                return
            queue._changed.wait(0.001)
    raise AssertionError("they did not come")


class Gate:
    """Carries out requests; holds the first group up until all others have asked."""

    def __init__(self, others: int) -> None:
        self.groups: list[list[int]] = []
        self.others = others
        self.queue: CommitQueue[int, str] = CommitQueue(self.carry_out)

    def carry_out(self, requests: list[Request[int, str]]) -> None:
        self.groups.append([request.asked for request in requests])
        if len(self.groups) == 1:
            until_waiting(self.queue, self.others)
        for request in requests:
            request.answer(f"answer {request.asked}")


def test_what_gathers_meanwhile_goes_together_in_order() -> None:
    gate = Gate(others=7)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(gate.queue.submit, range(8)))
    assert answers == [f"answer {number}" for number in range(8)]
    assert len(gate.groups) == 2
    assert sorted(gate.groups[0] + gate.groups[1]) == list(range(8))
    assert len(gate.groups[1]) == 7


def test_one_after_the_other_go_alone() -> None:
    gate = Gate(others=0)
    assert [gate.queue.submit(number) for number in range(3)] == ["answer 0", "answer 1", "answer 2"]
    assert gate.groups == [[0], [1], [2]]


def test_each_request_may_fail_by_itself() -> None:
    def carry_out(requests: list[Request[int, str]]) -> None:
        for request in requests:
            if request.asked % 2:
                request.fail(KeyError(request.asked))
            else:
                request.answer("fine")

    queue: CommitQueue[int, str] = CommitQueue(carry_out)
    assert queue.submit(2) == "fine"
    with pytest.raises(KeyError):
        queue.submit(3)
    assert queue.submit(4) == "fine"


def test_an_error_of_the_group_reaches_all_that_have_no_answer() -> None:
    def carry_out(requests: list[Request[int, str]]) -> None:
        if requests[0].asked == 1:
            requests[0].answer("answered before it went wrong")
        raise LookupError("planted")

    queue: CommitQueue[int, str] = CommitQueue(carry_out)
    assert queue.submit(1) == "answered before it went wrong"
    with pytest.raises(LookupError):
        queue.submit(2)


def test_an_interrupted_leader_leaves_the_others_with_an_unknown_outcome() -> None:
    leading, asked = threading.Event(), threading.Event()

    def carry_out(requests: list[Request[str, str]]) -> None:
        if requests[0].asked == "first":
            leading.set()
            assert asked.wait(PATIENCE_SECONDS)
            return
        raise KeyboardInterrupt

    queue: CommitQueue[str, str] = CommitQueue(carry_out)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(queue.submit, "first")
        assert leading.wait(PATIENCE_SECONDS)
        others = [pool.submit(queue.submit, name) for name in ("second", "third")]
        until_waiting(queue, 2)
        asked.set()
        assert isinstance(first.exception(PATIENCE_SECONDS), OutcomeUnknown)
        errors = sorted(type(other.exception(PATIENCE_SECONDS)).__name__ for other in others)
    assert errors == ["KeyboardInterrupt", "OutcomeUnknown"]
    with pytest.raises(KeyboardInterrupt):
        queue.submit("the queue goes on")
