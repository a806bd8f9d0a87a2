"""Group commit: everybody gets the answer to their own request, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ebla.errors import OutcomeUnknown
from ebla.metadata.server.group_commit import CommitQueue, Request

PATIENCE_SECONDS = 20


def until_waiting(queue: CommitQueue[Any, Any], count: int) -> None:
    """Return when so many requests wait for the next group."""
    for _ in range(PATIENCE_SECONDS * 1000):
        with queue._lock:
            if len(queue._waiting) == count:
                return
        time.sleep(0.001)
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


def test_what_one_asks_together_goes_together_and_each_has_its_own_answer() -> None:
    groups: list[list[int]] = []

    def carry_out(requests: list[Request[int, str]]) -> None:
        groups.append([request.asked for request in requests])
        for request in requests:
            if request.asked == 2:
                request.fail(ValueError("two"))
            else:
                request.answer(f"answer {request.asked}")

    queue: CommitQueue[int, str] = CommitQueue(carry_out)
    requests = queue.submit_all([1, 2, 3])
    assert groups == [[1, 2, 3]]
    assert [request.result() for request in (requests[0], requests[2])] == ["answer 1", "answer 3"]
    assert isinstance(requests[1].error, ValueError)
    assert queue.submit_all([]) == []


def test_an_interrupted_waiter_passes_the_lead_on() -> None:
    gate = Gate(others=3)
    queue = gate.queue
    original = queue._wait
    interrupted = threading.Event()

    def interrupt_first(first: Request[int, str]) -> None:
        if first.asked == 1:
            woken, first.woken = first.woken, _Interrupting(first.woken)
            assert woken is not None
        original(first)

    class _Interrupting:
        """A lock whose owner is interrupted as soon as it is to lead."""

        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def acquire(self) -> None:
            self._lock.acquire()
            interrupted.set()
            raise KeyboardInterrupt

        def release(self) -> None:
            self._lock.release()

    queue._wait = interrupt_first  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(queue.submit, 0)
        while not gate.groups:
            time.sleep(0.001)
        doomed = pool.submit(queue.submit, 1)
        until_waiting(queue, 1)
        others = [pool.submit(queue.submit, number) for number in (2, 3)]
        assert first.result(PATIENCE_SECONDS) == "answer 0"
        assert [other.result(PATIENCE_SECONDS) for other in others] == ["answer 2", "answer 3"]
        with pytest.raises(KeyboardInterrupt):
            doomed.result(PATIENCE_SECONDS)
    assert interrupted.is_set()
    assert queue.submit(4) == "answer 4"
    assert 1 not in {number for group in gate.groups for number in group}, "what was given up is never done"


def test_a_leader_that_is_interrupted_before_it_begins_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(others=0)

    def interrupt(first: Request[int, str]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gate.queue, "_lead", interrupt)
        with pytest.raises(KeyboardInterrupt):
            gate.queue.submit(1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(gate.queue.submit, 2).result(PATIENCE_SECONDS) == "answer 2"
    assert gate.groups == [[2]]
