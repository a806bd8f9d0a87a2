"""YCSB A to F: mixed reads, updates, inserts and short scans over 1 KB rows, with compaction running on both sides.

    A  50 % read, 50 % update        B  95 % read, 5 % update       C  read only
    D  95 % read of what was inserted last, 5 % insert              E  95 % scan of 1 to 100 rows, 5 % insert
    F  50 % read, 50 % read-modify-write

A row has ten fields of 100 bytes; keys are drawn by zipf (0.99), spread over the key space. An update writes one field.
One thread; every write is durable when the call returns, on both sides. Steps are drawn anew all along, some tens of
thousands at a time with the clock stopped: a workload that repeated itself would be about the few rows it has drawn.

    Ebla       `get`, `put` of a partial dict, `scan(start, limit=n)`; a row comes as a dict
    rocksdict  the fields joined to one value; an update reads, changes and writes it; a row is made a dict of fields

Both sides have the same cache, three times as large as the rows, and then a quarter of them (`small cache`); Ebla
divides it between blocks and rows as it does by default, four to one. Before the small ones are timed, both sides are
read for a while, so that what a store makes for its readers is made. Timed: operations a second. The two stores take
turns of a few seconds, and the best turn of each counts. `steady` is about how it goes on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import ebla
from benchmarks.harness import Options, check, say, scratch, timed
from benchmarks.peers import CACHE_BYTES, Rocks
from benchmarks.report import Comparison, Figure, Report, at_least_ratio
from ebla.settings import Settings

FIELDS = 10
FIELD_BYTES = 100
NAMES = [f"field{n}" for n in range(FIELDS)]
SCAN_ROWS_MAX = 100
LOAD_ROWS = 2_000
OPERATIONS = 50_000
CLOCKED = 16
POOL = 4_096
INSERTS_MAX = 10_000_000
READ, UPDATE, INSERT, SCAN, MODIFY = range(5)
MIXES = {
    "A": {READ: 0.5, UPDATE: 0.5},
    "B": {READ: 0.95, UPDATE: 0.05},
    "C": {READ: 1.0},
    "D": {READ: 0.95, INSERT: 0.05},
    "E": {SCAN: 0.95, INSERT: 0.05},
    "F": {READ: 0.5, MODIFY: 0.5},
}
GOALS = {"A": 0.8, "B": 1.0, "C": 1.0, "D": 1.0, "E": 0.8, "F": 0.8}
SMALL_GOALS = {"A": 0.5, "B": 0.4, "C": 0.4, "D": 0.4, "E": 0.5, "F": 0.5}
CACHE_FACTOR = 3
SMALL_CACHE_SHARE = 4
WARMING_TURNS = 2


def run(options: Options) -> Report:
    """Measure and compare."""
    sizes = [options.rows] if options.rows else [20_000] if options.quick else [200_000, 1_000_000]
    seconds, turns = (1.0, 2) if options.quick else (10.0, 3)
    lines: list[Comparison] = []
    for rows in sizes:
        rows_bytes = rows * FIELDS * FIELD_BYTES
        large = max(CACHE_BYTES, CACHE_FACTOR * rows_bytes)
        lines += _with_cache(options, rows, large, GOALS, seconds, turns)
        lines += _with_cache(options, rows, rows_bytes // SMALL_CACHE_SHARE, SMALL_GOALS, seconds, turns)
    return Report("ycsb", "YCSB A to F, 1 KB rows, zipf", lines)


def _with_cache(
    options: Options, rows: int, cache_bytes: int, goals: dict[str, float], seconds: float, turns: int
) -> list[Comparison]:
    is_small = goals is SMALL_GOALS
    lines: list[Comparison] = []
    with scratch(options) as root:
        keys = Keys(rows)
        contenders: dict[str, Side] = {
            "Ebla": EblaSide(root / "ebla", cache_bytes),
            "rocksdict": RocksSide(root / "rocks", cache_bytes),
        }
        for name, side in contenders.items():
            say(f"ycsb: loading {rows:,} rows into {name}")
            load(side, keys)
        if is_small:
            measure(contenders, keys, "C", seconds, WARMING_TURNS)
        for mix, goal in goals.items():
            best = measure(contenders, keys, mix, seconds, turns)
            lines.append(
                Comparison(
                    f"{mix}, {rows:,} rows" + (", small cache" if is_small else ""),
                    Figure(best["Ebla"], "ops/s"),
                    "rocksdict",
                    Figure(best["rocksdict"], "ops/s"),
                    at_least_ratio(goal),
                )
            )
        contenders["rocksdict"].close()
        check_agreement(contenders["Ebla"], keys)
        contenders["Ebla"].close()
    return lines


# --- keys and operations -------------------------------------------------------------------------


def _spread(number: int) -> bytes:
    """Return the key of a row: numbers that lie side by side lie anywhere."""
    return b"user%020d" % ((number * 0x9E3779B97F4A7C15) & ((1 << 64) - 1))


class Keys:
    """The rows that there are; inserts add to them."""

    def __init__(self, count: int) -> None:
        self.loaded = count
        self.next_number = count
        weights = np.arange(1, count + 1, dtype=np.float64) ** -0.99
        self._cumulative = np.cumsum(weights / weights.sum())

    def zipf(self, count: int, seed: int) -> list[int]:
        """Draw numbers of rows; which ones are popular has nothing to do with their order."""
        drawn = np.searchsorted(self._cumulative, np.random.default_rng(seed).random(count))
        return ((drawn * 2_654_435_761 + 12_345) % self.loaded).tolist()

    def newest(self, rank: int, next_number: int) -> int:
        """Return the number of the row that was inserted so many rows ago; those loaded were inserted first."""
        ago = next_number - 1 - rank
        return ago if ago >= self.next_number else self.loaded - 1 - (self.next_number - 1 - ago) % self.loaded

    def ranks(self, count: int, seed: int) -> list[int]:
        """Draw ranks: 0 most often."""
        drawn: list[int] = np.searchsorted(self._cumulative, np.random.default_rng(seed).random(count)).tolist()
        return drawn


def values(seed: int, count: int = POOL) -> list[bytes]:
    """Return values of fields: letters, which compress as text does."""
    letters = np.random.default_rng(seed).integers(97, 123, (count, FIELD_BYTES), dtype=np.uint8)
    return [row.tobytes() for row in letters]


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a workload. `number` is that of a row, or how long ago it was inserted."""

    kind: int
    number: int
    field: str
    value: bytes
    count: int


def operations(keys: Keys, mix: str, seed: int) -> list[Operation]:
    """Draw some steps of a workload, outside the clock: a workload that goes on draws others."""
    # Not the dice that draw the rows: or reads would all be of popular ones, and writes of the others.
    dice = np.random.default_rng((seed, 1))
    kinds = dice.choice(list(MIXES[mix]), OPERATIONS, p=list(MIXES[mix].values())).tolist()
    numbers = keys.ranks(OPERATIONS, seed) if mix == "D" else keys.zipf(OPERATIONS, seed)
    fields = dice.integers(0, FIELDS, OPERATIONS).tolist()
    counts = dice.integers(1, SCAN_ROWS_MAX + 1, OPERATIONS).tolist()
    pool = values(seed)
    return [
        Operation(kind, number, NAMES[field], pool[at % POOL], count)
        for at, (kind, number, field, count) in enumerate(zip(kinds, numbers, fields, counts, strict=True))
    ]


# --- the two sides -------------------------------------------------------------------------------


class EblaSide:
    """Ebla with its defaults, but for the size of its two caches together."""

    def __init__(self, path: Path, cache_bytes: int) -> None:
        row_cache_bytes = cache_bytes * Settings().row_cache_bytes // CACHE_BYTES
        sizes = Settings(block_cache_bytes=cache_bytes - row_cache_bytes, row_cache_bytes=row_cache_bytes)
        self.database = ebla.open(path, settings=sizes)
        columns = dict.fromkeys(NAMES, "binary")
        self.table = self.database.create_table("usertable", ebla.Schema(key={"key": "binary"}, columns=columns))

    def load(self, batch: list[tuple[bytes, list[bytes]]]) -> None:
        arrays = [pa.array([key for key, _ in batch], pa.binary())]
        arrays += [pa.array([row[n] for _, row in batch], pa.binary()) for n in range(FIELDS)]
        self.table.put(pa.RecordBatch.from_arrays(arrays, names=["key", *NAMES]), wait="none")

    def loaded(self) -> None:
        self.table.flush()

    def read(self, key: bytes) -> Any:
        return self.table.get(key)

    def update(self, key: bytes, field: str, value: bytes) -> None:
        self.table.put({"key": key, field: value})

    def insert(self, key: bytes, row: dict[str, bytes]) -> None:
        self.table.put({"key": key, **row})

    def scan(self, key: bytes, count: int) -> Any:
        return list(self.table.scan(key, limit=count))

    def close(self) -> None:
        self.database.close()


class RocksSide:
    """rocksdict, a row as one value."""

    def __init__(self, path: Path, cache_bytes: int) -> None:
        self.peer = Rocks(path, cache_bytes=cache_bytes)
        self._get = self.peer.get
        self._synced = self.peer._synced

    def load(self, batch: list[tuple[bytes, list[bytes]]]) -> None:
        self.peer.put_batch([(key, b"".join(row)) for key, row in batch])

    def loaded(self) -> None:
        self.peer.flush()
        self.peer.settle()

    def read(self, key: bytes) -> Any:
        found = self._get(key)
        return None if found is None else _decoded(key, found)

    def update(self, key: bytes, field: str, value: bytes) -> None:
        found = self._get(key)
        at = int(field[5:]) * FIELD_BYTES
        self.peer.db.put(key, found[:at] + value + found[at + FIELD_BYTES :], self._synced)

    def insert(self, key: bytes, row: dict[str, bytes]) -> None:
        self.peer.db.put(key, b"".join(row.values()), self._synced)

    def scan(self, key: bytes, count: int) -> Any:
        found: Any = self.peer.db.items(from_key=key)
        return [_decoded(one, value) for one, value in itertools.islice(found, count)]

    def close(self) -> None:
        self.peer.close()


Side = EblaSide | RocksSide


def _decoded(key: bytes, value: bytes) -> dict[str, bytes]:
    row = {"key": key}
    for at, name in enumerate(NAMES):
        row[name] = value[at * FIELD_BYTES : (at + 1) * FIELD_BYTES]
    return row


def load(side: Side, keys: Keys) -> None:
    """Put all rows in batches, in the order of nothing."""
    pool = values(1)
    for begin in range(0, keys.loaded, LOAD_ROWS):
        numbers = range(begin, min(begin + LOAD_ROWS, keys.loaded))
        side.load([(_spread(n), [pool[(n * 7 + f) % POOL] for f in range(FIELDS)]) for n in numbers])
    side.loaded()


# --- measuring -----------------------------------------------------------------------------------


def runner(side: Side, keys: Keys, mix: str, seed: int) -> Callable[[float], tuple[int, float]]:
    """Return a function that goes on with a workload for so many seconds, and says how many steps it did, in which."""
    seeds = itertools.count(1_000_000 * seed)
    todo: Iterator[Operation] = iter(())
    row = dict(zip(NAMES, values(3, FIELDS), strict=True))
    next_number = keys.next_number
    reads_newest = mix == "D"

    def go(seconds: float) -> tuple[int, float]:
        nonlocal todo, next_number
        done, taken = 0, 0.0
        while taken < seconds:
            steps = list(itertools.islice(todo, CLOCKED))
            if not steps:
                todo = iter(operations(keys, mix, next(seeds)))
                continue
            begin = time.perf_counter()
            for step in steps:
                key = _spread(keys.newest(step.number, next_number) if reads_newest else step.number)
                if step.kind == READ:
                    side.read(key)
                elif step.kind == UPDATE:
                    side.update(key, step.field, step.value)
                elif step.kind == SCAN:
                    side.scan(key, step.count)
                elif step.kind == INSERT:
                    side.insert(_spread(next_number), row)
                    next_number += 1
                else:
                    side.read(key)
                    side.update(key, step.field, step.value)
            taken += time.perf_counter() - begin
            done += len(steps)
        return done, taken

    return go


def measure(contenders: dict[str, Side], keys: Keys, mix: str, seconds: float, turns: int) -> dict[str, float]:
    """Let the sides take turns; return the operations a second of the best turn of each."""
    runs = {name: runner(side, keys, mix, seed=ord(mix)) for name, side in contenders.items()}
    best = dict.fromkeys(contenders, 0.0)
    for turn in range(turns):
        for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
            say(f"  {mix}, {name}, turn {turn + 1} of {turns}")
            _, (done, taken) = timed(partial(runs[name], seconds))
            best[name] = max(best[name], done / taken)
    keys.next_number += INSERTS_MAX  # the next workload inserts rows of its own
    return best


def check_agreement(side: Side, keys: Keys) -> None:
    """Look at some rows: every one has all its fields."""
    for number in range(0, keys.loaded, max(1, keys.loaded // 50)):
        row = side.read(_spread(number))
        check(None if row is None else all(len(row[name]) == FIELD_BYTES for name in NAMES), True, f"row {number}")
