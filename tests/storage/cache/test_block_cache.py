"""The block cache: bounded in bytes, least recently used first, within four classes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebla
from ebla.storage.cache.block_cache import MUCH_BYTES, PRIORITIES, BlockCache, class_of
from tests.support.inside import engine_of


def found(cache: BlockCache, *files: str) -> list[str]:
    return [file for file in files if cache.get((file, 0)) is not None]


def test_what_was_put_is_found_until_it_is_dropped() -> None:
    cache = BlockCache(100)
    cache.put(("a", 0), "A", 10)
    assert cache.get(("a", 0)) == "A"
    assert cache.get(("b", 0)) is None
    cache.drop([("a", 0), ("never there", 0)])
    assert cache.get(("a", 0)) is None
    stats = cache.stats()
    assert (stats["bytes"], stats["bytes_max"], stats["entries"], stats["hits"], stats["misses"]) == (0, 100, 0, 1, 2)


def test_nothing_is_left_when_it_is_cleared() -> None:
    cache = BlockCache(100)
    cache.set_classes({"a": 1})
    cache.put(("a", 0), "A", 10)
    cache.put(("b", 0), "B", 20)
    assert cache.clear() == 30
    assert found(cache, "a", "b") == []
    assert (cache.stats()["bytes"], cache.stats()["entries"], cache.clear()) == (0, 0, 0)


def test_somebody_is_told_each_time_that_much_has_gone() -> None:
    told: list[int] = []
    cache = BlockCache(MUCH_BYTES, lambda: told.append(cache.stats()["bytes"]))
    for n in range(20):
        cache.put((str(n), 0), n, MUCH_BYTES // 4)
        assert len(told) == max(0, n - 3) // 4
    assert told == [MUCH_BYTES] * 4


def test_the_least_recently_used_goes_first() -> None:
    cache = BlockCache(30)
    for key in "abc":
        cache.put((key, 0), key, 10)
    cache.get(("a", 0))
    cache.put(("d", 0), "d", 10)
    assert found(cache, *"abcd") == ["a", "c", "d"]


def test_a_lower_class_is_emptied_before_a_higher_one_is_touched() -> None:
    cache = BlockCache(30)
    cache.set_classes({"kept": 1, "partly": 3, "also kept": 2})
    for file in ("kept", "partly", "old", "newer"):
        cache.put((file, 0), 1, 10)
    assert found(cache, "kept", "partly", "old", "newer") == ["kept", "partly", "newer"]
    cache.put(("also kept", 0), 1, 20)
    assert found(cache, "kept", "partly", "newer", "also kept") == ["kept", "also kept"]


def test_what_is_cached_moves_with_the_class_of_its_file() -> None:
    cache = BlockCache(30)
    for file in ("a", "b", "c"):
        cache.put((file, 0), file, 10)
    cache.set_classes({"a": 1})
    cache.put(("d", 0), "d", 20)
    assert found(cache, *"abcd") == ["a", "d"]
    cache.set_classes({"d": 3})
    cache.put(("e", 0), "e", 10)
    assert found(cache, *"ade") == ["d", "e"], "what was in the first class is in the last now"


def test_hits_and_misses_are_counted_by_class() -> None:
    cache = BlockCache(100)
    cache.set_classes({"kept": 1})
    cache.put(("kept", 0), 1, 10)
    cache.get(("kept", 0))
    cache.get(("kept", 1))
    cache.get(("kept", 2), is_last=False)
    cache.get(("other", 0))
    classes = cache.stats()["classes"]
    assert (classes["1"]["hits"], classes["1"]["misses"], classes["1"]["hit_rate"]) == (1, 1, 0.5)
    assert (classes["1"]["files"], classes["1"]["bytes"], classes["1"]["entries"]) == (1, 10, 1)
    assert (classes["4"]["hits"], classes["4"]["misses"], classes["4"]["hit_rate"]) == (0, 1, 0.0)
    assert classes["2"]["hit_rate"] is None


def test_there_is_room_for_what_matters_more_than_what_is_there() -> None:
    cache = BlockCache(30)
    cache.set_classes({"kept": 1, "partly": 3})
    cache.put(("other", 0), 1, 30)
    assert cache.has_room("kept", 30)
    cache.put(("partly", 0), 1, 20)
    assert cache.has_room("kept", 30)
    assert not cache.has_room("partly", 20)
    assert not cache.has_room("kept", 31)


@pytest.mark.parametrize(
    ("groups", "priority"),
    [([True], 1), ([True, True], 2), ([True, False], 3), ([False], 4), ([False, False], 4), ([], 4)],
)
def test_the_class_of_a_file_follows_from_its_groups(groups: list[bool], priority: int) -> None:
    assert class_of(groups) == priority


def test_what_is_larger_than_the_cache_is_not_kept_and_costs_nobody_its_place() -> None:
    cache = BlockCache(30)
    cache.put(("a", 0), 1, 10)
    cache.put(("huge", 0), 1, 31)
    assert cache.get(("huge", 0)) is None
    assert cache.get(("a", 0)) == 1


def test_putting_again_replaces() -> None:
    cache = BlockCache(30)
    cache.put(("a", 0), "old", 30)
    cache.put(("a", 0), "new", 10)
    cache.put(("b", 0), "b", 20)
    assert cache.get(("a", 0)) == "new"
    assert cache.stats()["bytes"] == 30


PUTS = st.tuples(st.just("put"), st.sampled_from("abcdef"), st.integers(0, 40))
GETS = st.tuples(st.just("get"), st.sampled_from("abcdef"))
DROPS = st.tuples(st.just("drop"), st.sampled_from("abcdef"))
CLASSES = st.tuples(st.just("class"), st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(PRIORITIES)))


@given(st.lists(PUTS | GETS | DROPS | CLASSES, max_size=60))
def test_the_cache_never_holds_more_than_its_bytes_and_never_a_stale_value(script: list[tuple]) -> None:
    cache = BlockCache(64)
    newest: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for number, step in enumerate(script):
        if step[0] == "put":
            _, key, size = step
            cache.put((key, 0), number, size)
            newest[key], sizes[key] = number, size
        elif step[0] == "get":
            assert cache.get((step[1], 0)) in (None, newest.get(step[1]))
        elif step[0] == "class":
            cache.set_classes(step[1])
        else:
            cache.drop([(step[1], 0)])
            assert cache.get((step[1], 0)) is None
        stats = cache.stats()
        held = found(cache, *newest)
        assert stats["bytes"] == sum(sizes[key] for key in held) <= 64
        assert stats["entries"] == len(held)
        assert stats["bytes"] == sum(one["bytes"] for one in stats["classes"].values())


def test_threads_may_share_it() -> None:
    cache = BlockCache(1_000)
    cache.set_classes({str(key): PRIORITIES[key % 4] for key in range(97)})
    wrong = []

    def work(seed: int) -> None:
        for number in range(2_000):
            key = (str((seed * 31 + number) % 97), 0)
            if cache.get(key) not in (None, key):
                wrong.append(key)
            cache.put(key, key, 20)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.stats()["bytes"] <= 1_000


def test_a_closed_store_holds_no_blocks(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"n": "int64"}))
        table.put([{"k": k, "n": k} for k in range(1_000)])
        table.flush()
        assert table.get(5, columns=["n"])["n"] == 5
        assert engine_of(db).cache.stats()["bytes"] > 0
    assert engine_of(db).cache.stats()["bytes"] == 0


def test_what_is_reserved_is_taken_from_what_is_cached_but_no_more_than_half() -> None:
    cache = BlockCache(1_000)
    for n in range(10):
        cache.put(("f", n), n, 100)
    cache.reserve(300)
    assert (cache.room, cache.stats()["bytes"]) == (700, 1_000)
    cache.put(("f", 10), 10, 100)
    assert cache.stats()["bytes"] == 700
    cache.reserve(900)
    cache.put(("f", 11), 11, 100)
    assert cache.stats()["bytes"] == cache.room == 500
    assert cache.peek(("f", 11)) == 11
    cache.reserve(-1_200)
    assert cache.room == cache.bytes_max
