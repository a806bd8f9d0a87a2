"""The block cache: bounded in bytes, least recently used first, within four classes."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from ebla.storage.cache import PRIORITIES, BlockCache


def test_what_was_put_is_found_until_it_is_dropped() -> None:
    cache = BlockCache(100)
    cache.put("a", "A", 10)
    assert cache.get("a") == "A"
    assert cache.get("b") is None
    cache.drop(["a", "never there"])
    assert cache.get("a") is None
    assert cache.stats() == {"bytes": 0, "bytes_max": 100, "entries": 0, "hits": 1, "misses": 2}


def test_the_least_recently_used_goes_first() -> None:
    cache = BlockCache(30)
    for key in "abc":
        cache.put(key, key, 10)
    cache.get("a")
    cache.put("d", "d", 10)
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]


def test_a_lower_class_is_emptied_before_a_higher_one_is_touched() -> None:
    cache = BlockCache(30)
    cache.put("kept", 1, 10, priority=1)
    cache.put("partly", 1, 10, priority=3)
    cache.put("old", 1, 10)
    cache.put("newer", 1, 10)
    assert [key for key in ("kept", "partly", "old", "newer") if cache.get(key)] == ["kept", "partly", "newer"]
    cache.put("also kept", 1, 20, priority=2)
    assert [key for key in ("kept", "partly", "newer", "also kept") if cache.get(key)] == ["kept", "also kept"]


def test_what_is_larger_than_the_cache_is_not_kept_and_costs_nobody_its_place() -> None:
    cache = BlockCache(30)
    cache.put("a", 1, 10)
    cache.put("huge", 1, 31)
    assert cache.get("huge") is None
    assert cache.get("a") == 1


def test_putting_again_replaces_and_may_change_the_class() -> None:
    cache = BlockCache(30)
    cache.put("a", "old", 30)
    cache.put("a", "new", 10, priority=1)
    cache.put("b", "b", 20)
    cache.put("c", "c", 20)
    assert cache.get("a") == "new"
    assert cache.get("b") is None
    assert cache.stats()["bytes"] == 30


PUTS = st.tuples(st.just("put"), st.sampled_from("abcdef"), st.integers(0, 40), st.sampled_from(PRIORITIES))
GETS = st.tuples(st.just("get"), st.sampled_from("abcdef"))
DROPS = st.tuples(st.just("drop"), st.sampled_from("abcdef"))


@given(st.lists(PUTS | GETS | DROPS, max_size=60))
def test_the_cache_never_holds_more_than_its_bytes_and_never_a_stale_value(script: list[tuple]) -> None:
    cache = BlockCache(64)
    newest: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for number, step in enumerate(script):
        if step[0] == "put":
            _, key, size, priority = step
            cache.put(key, number, size, priority)
            newest[key], sizes[key] = number, size
        elif step[0] == "get":
            assert cache.get(step[1]) in (None, newest.get(step[1]))
        else:
            cache.drop([step[1]])
            assert cache.get(step[1]) is None
        stats = cache.stats()
        held = [key for key in newest if cache.get(key) is not None]
        assert stats["bytes"] == sum(sizes[key] for key in held) <= 64
        assert stats["entries"] == len(held)


def test_threads_may_share_it() -> None:
    cache = BlockCache(1_000)
    wrong = []

    def work(seed: int) -> None:
        for number in range(2_000):
            key = (seed * 31 + number) % 97
            if cache.get(key) not in (None, key):
                wrong.append(key)
            cache.put(key, key, 20, PRIORITIES[key % 4])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.stats()["bytes"] <= 1_000
