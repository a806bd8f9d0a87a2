"""How it goes on: YCSB A for ten minutes, then the other mixes, with default settings; and a row updated all along.

The rows are those of `ycsb`, several times as large as the caches. The last tenth of the ten minutes is held against
the first, which has nothing to compact yet. The peak of resident memory is that of the whole process, from the load on:
interpreter, libraries and the workload's own lists included. rocksdict with a cache of the same size goes through the
same mixes afterwards; what it has not cached, it reads in blocks of 4 KB, and Ebla in blocks of 256. Then, in another
store, one row of ten thousand is updated a million times, and reading it is held against reading one that was updated a
thousand times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ebla
from benchmarks import ycsb
from benchmarks.harness import Options, check, say, scratch
from benchmarks.memory import peak_mib
from benchmarks.peers import CACHE_BYTES
from benchmarks.report import Comparison, Figure, Report, at_least_ratio, microseconds, under, within_time
from ebla.settings import MIB, Settings

ROOM_MIB = 300
PARTS = 10
HOT_ROWS = 10_000
HOT_KEY = 5_000
HOT_FEW = 1_000
READS = 2_000
# Within noise.
HOT_FACTOR = 1.5


def run(options: Options) -> Report:
    """Measure."""
    rows = options.rows_or(1_000_000, 20_000)
    seconds = 12.0 if options.quick else 600.0
    with scratch(options) as root:
        lines = _mixed(root / "mixed", rows, seconds)
        lines += _hot(root / "hot", 20_000 if options.quick else 1_000_000)
    return Report("steady", f"{rows:,} rows of 1 KB, default settings", lines)


def _mixed(path: Path, rows: int, seconds: float) -> list[Comparison]:
    keys = ycsb.Keys(rows)
    side = ycsb.EblaSide(path, CACHE_BYTES)
    say(f"steady: loading {rows:,} rows")
    ycsb.load(side, keys)
    say(f"steady: A for {seconds:.0f} s")
    go = ycsb.runner(side, keys, "A", seed=77)
    speeds = [done / taken for done, taken in (go(seconds / PARTS) for _ in range(PARTS))]
    say(f"  tenths: {', '.join(f'{speed:,.0f}' for speed in speeds)} ops/s")
    lines = [
        Comparison(
            f"A for {seconds:.0f} s, last tenth",
            Figure(speeds[-1], "ops/s"),
            "first tenth",
            Figure(speeds[0], "ops/s"),
            at_least_ratio(0.8),
            note="tenths: " + ", ".join(f"{speed:,.0f}" for speed in speeds),
        )
    ]
    found = {"A": sum(speeds) / PARTS} | _mixes(side, keys, "BCDEF", seconds / 30)
    stats = side.database.stats()
    amplification = stats["writing"]["amplification"] or 0.0
    lines.append(Comparison("bytes written to files by bytes put", Figure(amplification, "x")))
    ycsb.check_agreement(side, keys)
    side.close()
    settings = Settings()
    limits = (settings.block_cache_bytes + settings.row_cache_bytes + settings.memory_bytes_max) / MIB
    goal = under(limits + ROOM_MIB, "MiB")
    note = f"limits of {limits:.0f} MiB; compactions: {stats['compactions']['count']}"
    lines.append(Comparison("peak memory", Figure(peak_mib(), "MiB"), goal=goal, note=note))
    peer = ycsb.RocksSide(path.with_name("rocks"), CACHE_BYTES)
    say(f"steady: loading {rows:,} rows into rocksdict")
    ycsb.load(peer, keys)
    theirs = _mixes(peer, keys, "ABCDEF", seconds / 30)
    peer.close()
    for mix, speed in found.items():
        name, figure = f"{mix}, cache smaller than the rows", Figure(theirs[mix], "ops/s")
        lines.append(Comparison(name, Figure(speed, "ops/s"), "rocksdict", figure))
    return lines


def _mixes(side: ycsb.Side, keys: ycsb.Keys, mixes: str, seconds: float) -> dict[str, float]:
    """Return the operations a second of some mixes, each for so long."""
    found = {}
    for mix in mixes:
        say(f"steady: {mix}")
        done, taken = ycsb.runner(side, keys, mix, seed=ord(mix))(seconds)
        keys.next_number += ycsb.INSERTS_MAX
        found[mix] = done / taken
    return found


def _hot(path: Path, updates: int) -> list[Comparison]:
    many, few = _read_seconds(path / "many", updates), _read_seconds(path / "few", HOT_FEW)
    return [
        Comparison(
            f"{name}, updated {updates:,} times",
            microseconds(many[name], READS),
            f"updated {HOT_FEW:,} times",
            microseconds(few[name], READS),
            within_time(HOT_FACTOR),
        )
        for name in many
    ]


def _read_seconds(path: Path, updates: int) -> dict[str, float]:
    """Return the seconds of many reads of a row that was updated so often, and of those around it."""
    say(f"steady: one row updated {updates:,} times")
    found = {}
    with ebla.open(path) as database:
        table = database.create_table("hot", ebla.Schema(key={"k": "int64"}, columns={"n": "int64", "s": "string"}))
        table.put([{"k": k, "n": 0, "s": "as it was"} for k in range(HOT_ROWS)])
        table.flush()
        for n in range(1, updates + 1):
            table.put({"k": HOT_KEY, "n": n}, wait="none")
        database.sync()
        found |= _reads("a hot row in memory", table, updates)
        table.flush()
        found |= _reads("a hot row in a file", table, updates)
    with ebla.open(path) as database:
        found |= _reads("a hot row opened again", database.table("hot"), updates)
    return found


def _reads(state: str, table: Any, updates: int) -> dict[str, float]:
    expected = {"k": HOT_KEY, "n": updates, "s": "as it was"}
    works: dict[str, Callable[[], Any]] = {
        # No row cache answers a get of some columns.
        f"{state}: get": lambda: check(table.get(HOT_KEY, columns=["s", "n"]), expected, "the hot row"),
        f"{state}: scan of ten rows": lambda: check(len(list(table.scan(HOT_KEY, limit=10))), 10, "rows"),
    }
    return {name: min(_seconds(work) for _ in range(7)) for name, work in works.items()}


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    for _ in range(READS):
        work()
    return time.perf_counter() - begin
