"""Point reads: one key at a time, and a thousand at once.

Set-up (not timed): rows flushed to one fragment by Ebla, compacted to one run by rocksdict; both have the same bytes of
cache, and a bloom filter. A get is timed in a loop over prepared keys, so the loop itself is in the figure on both
sides; the figure is the mean of one get.

    zipf, cached      keys by zipf (0.99) over rows that fit the caches; the same sequence was read once before
    uniform, cached   different keys, each asked for once, so that no row cache can help; the blocks are cached, because
                      Ebla was asked for one key in 250 before, and rocksdict has scanned everything
    cold              opened anew before every round, no block in the store's cache (the file system's is warm), each
                      key in another block where there are blocks enough; the first get after opening is counted
    get_many          1,000 random keys, and 1,000 that are neighbours in key order; blocks cached, other lists of
                      random keys read before; 20 lists one after the other, none of them twice
    small cache       keys by zipf, and different keys each once, with a sixteenth of the cache on both sides; the page
                      cache of the system is warm. Ebla has its lookup files, as after it was read for a while
    get_many, cold    the same, after opening anew; whatever index a store makes for it is made in this time

    Ebla       `table.get(key)` -> dict of all columns; `table.get_many(keys)` -> Arrow table in the order asked
    rocksdict  `db.get(key)` -> encoded bytes; `db.get(keys)` (its multi-get) -> list of encoded bytes. The line
               "decoded" shows what it costs to make the same dict of them
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks import data, store
from benchmarks.harness import Options, check, deal, in_turn, interleave, say, scratch, timed
from benchmarks.peers import CACHE_BYTES, Lmdb, Rocks, Sqlite
from benchmarks.report import (
    Comparison,
    Report,
    at_least_ratio,
    microseconds,
    milliseconds,
    rate,
    under,
    within_time,
)

MANY = 1_000
# One key in so many is read to warm Ebla's blocks: fewer than any block has rows.
WARM_STEP = 250
WARMING_ROUNDS = 3
LISTS_PER_ROUND = 20
SMALL_SHARE = 16


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(full=1_000_000, quick=200_000) // 2
    gets = 5_000 if options.quick else 30_000
    say("get: preparing rows")
    batches = data.batches(rows)
    keys = data.keys_of(batches)
    with scratch(options) as root:
        say("get: loading")
        store.load_flushed(root / "ebla", [batches])
        peer = Rocks(root / "rocks")
        for batch in batches:
            peer.put_batch(data.pairs(batch))
        peer.compact()
        peer.close()
        lines = [
            *_zipf(root, keys, batches, gets, options),
            *_uniform(root, keys, gets, options),
            *_cold(root, keys, options),
            *_many(root, keys, options),
            *_small(root, keys, gets, options),
        ]
    return Report("get", f"{rows:,} rows, which fit the caches; {gets:,} gets a round", lines)


def _zipf(root: Path, keys: list[bytes], batches: list[Any], gets: int, options: Options) -> list[Comparison]:
    say("get: zipf")
    asked = data.zipf(keys, gets)
    database, table = store.reopen(root / "ebla")
    rocks, lmdb, sqlite = Rocks(root / "rocks"), Lmdb(root / "lmdb"), Sqlite(root / "sqlite")
    for batch in batches:
        lmdb.put_batch(data.pairs(batch))
        sqlite.put_batch(data.tuples(batch))
    row = next(one for one in data.dicts(batches[0]))
    check(dict(table.get(row["row"])), row, "a row got from Ebla")

    def decoded() -> None:
        get, decode = rocks.get, data.decode
        for key in asked:
            decode(key, get(key))

    contenders: dict[str, Callable[[], float]] = {
        "Ebla": partial(_loop, table.get, asked),
        "rocksdict": partial(_loop, rocks.get, asked),
        "rocksdict, decoded": lambda: timed(decoded)[0],
        "lmdb": lambda: timed(lambda: lmdb.get_each(asked))[0],
        "sqlite": lambda: timed(lambda: sqlite.get_each(asked))[0],
    }
    for contender in contenders.values():
        contender()  # the sequence was read once before
    best = {name: microseconds(taken, gets) for name, taken in interleave(options.repeats(5), contenders).items()}
    for store_open in (database, rocks, lmdb, sqlite):
        store_open.close()
    lines = [Comparison("zipf, cached", best["Ebla"], "rocksdict", best["rocksdict"], within_time(2))]
    others = ("rocksdict, decoded", "lmdb", "sqlite")
    return lines + [Comparison("zipf, cached", best["Ebla"], name, best[name]) for name in others]


def _uniform(root: Path, keys: list[bytes], gets: int, options: Options) -> list[Comparison]:
    say("get: uniform")
    repeats = options.repeats()
    count = min(gets, len(keys) // (2 * repeats))
    drawn = data.distinct(keys, count * repeats)
    rounds = [drawn[begin : begin + count] for begin in range(0, len(drawn), count)]
    database, table = store.reopen(root / "ebla")
    rocks = Rocks(root / "rocks")
    _warm(table, rocks, keys)
    best = interleave(
        repeats,
        {
            "Ebla": in_turn(partial(_loop, table.get), rounds),
            "rocksdict": in_turn(partial(_loop, rocks.get), rounds),
        },
    )
    database.close()
    rocks.close()
    return [
        Comparison(
            "uniform, cached blocks",
            microseconds(best["Ebla"], count),
            "rocksdict",
            microseconds(best["rocksdict"], count),
            under(30, "us"),
        )
    ]


def _cold(root: Path, keys: list[bytes], options: Options) -> list[Comparison]:
    say("get: cold")
    ordered = sorted(keys)
    count = 50
    step = len(ordered) // count
    firsts: dict[str, list[float]] = {"Ebla": [], "rocksdict": []}

    def ebla_round(offset: int) -> float:
        database, table = store.reopen(root / "ebla")
        seconds = _each(table.get, ordered[offset::step][:count])
        database.close()
        firsts["Ebla"].append(seconds[0])
        return sum(seconds)

    def rocks_round(offset: int) -> float:
        rocks = Rocks(root / "rocks")
        seconds = _each(rocks.get, ordered[offset::step][:count])
        rocks.close()
        firsts["rocksdict"].append(seconds[0])
        return sum(seconds)

    best = interleave(
        options.repeats(4),
        {"Ebla": in_turn(ebla_round, range(step)), "rocksdict": in_turn(rocks_round, range(step))},
    )
    return [
        Comparison(
            "cold",
            milliseconds(best["Ebla"], count),
            "rocksdict",
            milliseconds(best["rocksdict"], count),
            under(2, "ms"),
            f"mean of {count} gets spread over the keys",
        ),
        Comparison(
            "cold, the very first get",
            milliseconds(min(firsts["Ebla"])),
            "rocksdict",
            milliseconds(min(firsts["rocksdict"])),
        ),
    ]


def _small(root: Path, keys: list[bytes], gets: int, options: Options) -> list[Comparison]:
    say("get: a cache smaller than the rows")
    repeats = options.repeats()
    store.make_lookups(root / "ebla")
    cache_bytes = CACHE_BYTES // SMALL_SHARE
    row_cache_bytes = cache_bytes // 5
    small = replace(store.AS_LOADED, block_cache_bytes=cache_bytes - row_cache_bytes, row_cache_bytes=row_cache_bytes)
    count = min(gets, len(keys) // (2 * repeats))
    drawn = data.distinct(keys, count * repeats, seed=7)
    asked = {
        "zipf": [data.zipf(keys, gets, seed=50 + turn) for turn in range(repeats + 1)],
        "uniform": [drawn[begin : begin + count] for begin in range(0, len(drawn), count)],
    }
    lines = []
    for kind, goal in (("zipf", 0.5), ("uniform", 0.33)):
        rounds = asked[kind]
        database, table = store.reopen(root / "ebla", small)
        rocks = Rocks(root / "rocks", cache_bytes=cache_bytes)
        if kind == "zipf":
            warming = rounds.pop()
            _loop(table.get, warming)
            _loop(rocks.get, warming)
        best = interleave(
            repeats,
            {
                "Ebla": in_turn(partial(_loop, table.get), rounds),
                "rocksdict": in_turn(partial(_loop, rocks.get), rounds),
            },
        )
        database.close()
        rocks.close()
        figures = {name: microseconds(taken, len(rounds[0])) for name, taken in best.items()}
        name = f"{kind}, small cache"
        lines.append(Comparison(name, figures["Ebla"], "rocksdict", figures["rocksdict"], at_least_ratio(goal)))
    firsts: dict[str, list[float]] = {"Ebla": [], "rocksdict": []}
    for turn in range(2 * repeats):
        database, table = store.reopen(root / "ebla")
        firsts["Ebla"] += _each(table.get, [keys[turn]])
        database.close()
        rocks = Rocks(root / "rocks")
        firsts["rocksdict"] += _each(rocks.get, [keys[turn]])
        rocks.close()
    best = {name: min(seconds) for name, seconds in firsts.items()}
    first = milliseconds(best["Ebla"]), "rocksdict", milliseconds(best["rocksdict"]), within_time(5)
    lines.append(Comparison("the very first get, lookup files there", *first))
    best = _many_cold(root, [data.distinct(keys, MANY, seed=200 + turn) for turn in range(repeats)])
    many = rate(MANY, best["Ebla"], "keys/s"), "rocksdict multi-get", rate(MANY, best["rocksdict"], "keys/s")
    lines.append(Comparison("get_many, random keys, cold, lookup files there", *many, at_least_ratio(0.3)))
    return lines


def _many(root: Path, keys: list[bytes], options: Options) -> list[Comparison]:
    ordered = sorted(keys)
    repeats = options.repeats(5)
    count = repeats * (LISTS_PER_ROUND + 1)
    begins = [len(ordered) * (turn + 1) // (count + 2) for turn in range(count)]
    asked = {
        "random": [data.distinct(keys, MANY, seed=100 + turn) for turn in range(count)],
        "neighbouring": [ordered[begin : begin + MANY] for begin in begins],
    }
    goals = {"random": at_least_ratio(3), "neighbouring": at_least_ratio(5)}
    lines = []
    for kind, lists in asked.items():
        say(f"get: get_many, {kind} keys")
        warm = _many_warm(root, keys, deal(lists[repeats:], repeats))
        cold = _many_cold(root, lists[:repeats])
        for suffix, best, goal in (("", warm, goals[kind]), (", cold", cold, None)):
            lines.append(
                Comparison(
                    f"get_many, {kind} keys{suffix}",
                    rate(MANY, best["Ebla"], "keys/s"),
                    "rocksdict multi-get",
                    rate(MANY, best["rocksdict"], "keys/s"),
                    goal,
                )
            )
    return lines


def _many_warm(root: Path, keys: list[bytes], rounds: Sequence[Sequence[list[bytes]]]) -> dict[str, float]:
    """Return the best seconds of reading a list, the mean of a round of lists, with all blocks cached."""
    database, table = store.reopen(root / "ebla")
    rocks = Rocks(root / "rocks")
    _warm(table, rocks, keys)
    for turn in range(WARMING_ROUNDS):  # what a store makes for many keys at once is made by now, by either
        others = data.distinct(keys, MANY, seed=900 + turn)
        _ebla_many(table, [others])
        _rocks_many(rocks, [others])
    best = interleave(
        len(rounds),
        {
            "Ebla": in_turn(partial(_ebla_many, table), rounds),
            "rocksdict": in_turn(partial(_rocks_many, rocks), rounds),
        },
    )
    database.close()
    rocks.close()
    return best


def _many_cold(root: Path, lists: Sequence[list[bytes]]) -> dict[str, float]:
    """Return the best seconds of reading one of the lists, opening anew for each."""

    def ebla_round(keys: list[bytes]) -> float:
        database, table = store.reopen(root / "ebla")
        seconds = _ebla_many(table, [keys])
        database.close()
        return seconds

    def rocks_round(keys: list[bytes]) -> float:
        rocks = Rocks(root / "rocks")
        seconds = _rocks_many(rocks, [keys])
        rocks.close()
        return seconds

    return interleave(len(lists), {"Ebla": in_turn(ebla_round, lists), "rocksdict": in_turn(rocks_round, lists)})


def _warm(table: Any, rocks: Rocks, keys: list[bytes]) -> None:
    """Bring every block of both stores to their caches: Ebla by a get now and then, rocksdict by a scan."""
    for key in sorted(keys)[::WARM_STEP]:
        table.get(key)
    rocks.scan()


def _ebla_many(table: Any, lists: Sequence[list[bytes]]) -> float:
    seconds, results = timed(lambda: [table.get_many(keys) for keys in lists])
    for keys, result in zip(lists, results, strict=True):
        check(int(pc.sum(result.column("_found")).as_py()), len(keys), "rows found by get_many")
        check(result.column("row").to_pylist(), keys, "order of the rows of get_many")
    return seconds / len(lists)


def _rocks_many(rocks: Rocks, lists: Sequence[list[bytes]]) -> float:
    seconds, results = timed(lambda: [rocks.get(keys) for keys in lists])
    for keys, result in zip(lists, results, strict=True):
        check(sum(value is not None for value in result), len(keys), "rows found by multi-get")
    return seconds / len(lists)


def _loop(get: Callable[[bytes], Any], keys: Sequence[bytes]) -> float:
    def run() -> None:
        for key in keys:
            get(key)

    return timed(run)[0]


def _each(get: Callable[[bytes], Any], keys: Sequence[bytes]) -> list[float]:
    """Time each get by itself; fails if one finds nothing."""
    seconds = []
    for key in keys:
        begin = time.perf_counter()
        found = get(key)
        seconds.append(time.perf_counter() - begin)
        check(found is None, False, "a key that was written is missing")
    return seconds
