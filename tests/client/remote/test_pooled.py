"""Calls in a pool of threads that wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ebla.client.remote.pooled import Pooled

WAIT_SECONDS = 30.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(1)
    yield pool
    pool.shutdown(cancel_futures=True)


def test_a_call_that_no_thread_has_begun_is_made_by_whoever_wants_its_answer(pool: ThreadPoolExecutor) -> None:
    release = threading.Event()
    first = Pooled(pool, lambda: release.wait(WAIT_SECONDS))
    assert Pooled(pool, threading.get_ident).answer() == threading.get_ident()
    release.set()
    assert first.answer()


def test_a_call_that_a_thread_has_begun_is_made_once(pool: ThreadPoolExecutor) -> None:
    began, release = threading.Event(), threading.Event()
    made: list[int] = []

    def call() -> int:
        made.append(threading.get_ident())
        began.set()
        release.wait(WAIT_SECONDS)
        return len(made)

    pooled = Pooled(pool, call)
    assert began.wait(WAIT_SECONDS)
    threading.Timer(0.01, release.set).start()
    assert pooled.answer() == 1
    assert made != [threading.get_ident()]


def test_a_call_of_a_pool_that_was_shut_down_fails_as_it_would_anywhere(pool: ThreadPoolExecutor) -> None:
    release = threading.Event()

    def refused() -> None:
        raise ValueError("closed")

    Pooled(pool, lambda: release.wait(WAIT_SECONDS))
    waiting = Pooled(pool, refused)
    pool.shutdown(wait=False, cancel_futures=True)
    release.set()
    for late in (waiting, Pooled(pool, refused)):
        with pytest.raises(ValueError, match="closed"):
            late.answer()


def test_a_call_that_is_dropped_is_not_made(pool: ThreadPoolExecutor) -> None:
    release = threading.Event()
    made: list[bool] = []
    Pooled(pool, lambda: release.wait(WAIT_SECONDS))
    Pooled(pool, lambda: made.append(True)).drop()
    release.set()
    assert pool.submit(lambda: list(made)).result(WAIT_SECONDS) == []
