"""Everything that can happen to a table, at the same time, in threads: readers see whole rows, and nothing is lost.

Every write sets all columns of a row to its next number, so that a row in which they differ is torn, and one with a
smaller number than was acknowledged has lost a write. Columns move between groups, tablets are cut and joined, files
merged and collected, the table cloned, and taken offline, all the while.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.settings import KIB, Settings
from tests.crash.machine import bounded

ROWS = 300
RESTLESS = Settings(
    history_seconds=0.0,
    garbage_age_seconds=2.0,
    garbage_round_seconds=0.0,
    flush_bytes=16 * KIB,
    memory_bytes_max=256 * KIB,
    log_segment_bytes=16 * KIB,
    log_bytes_max=128 * KIB,
    open_files_max=8,
    block_cache_bytes=256 * KIB,
    tablet_idle_seconds=0.2,
    scanners_max=2,
    scanner_expiry_seconds=0.1,
    scan_batch_rows=20,
    tablet_bytes_max=64 * KIB,
    join_bytes_max=8 * KIB,
)
SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[
        ebla.Group("a", columns={"n": "int64", "m": "int64"}),
        ebla.Group("b", columns={"s": "string"}),
        ebla.Group("c", families=["f"]),
        ebla.Group("d", families=["g"]),
    ],
)


def row(number: int, value: int) -> dict[str, Any]:
    return {"k": f"k{number:04}", "n": value, "m": value, "s": str(value), "f:x": b"%d" % value}


class World:
    """A table, what was acknowledged of each of its rows, and what happens to it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.seed = seed
        self.db = ebla.open(path, settings=RESTLESS)
        self.table = self.db.create_table("t", SCHEMA, splits=["k0150"])
        self.table.put([row(number, 0) for number in range(ROWS)])
        self.acked = [0] * ROWS
        self.locks = [threading.Lock() for _ in range(ROWS)]
        self.stop = threading.Event()
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()

    def run(self, seconds: float, works: Sequence[Callable[[random.Random], None]]) -> None:
        threads = [threading.Thread(target=self._repeat, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            bounded(thread.join)
        assert not self.wrong, self.wrong[0]

    def _repeat(self, work: Callable[[random.Random], None]) -> None:
        name = work.__name__
        dice = random.Random(f"{self.seed} {name}")
        while not self.stop.is_set():
            try:
                work(dice)
                self.done[name] += 1
            except (ebla.Unavailable, ebla.Conflict, ebla.CannotSplit, ebla.CannotJoin):
                time.sleep(0.001)  # offline, altered, or cut by somebody else
            except BaseException:
                self.wrong.append(f"{name}: {traceback.format_exc()}")
                self.stop.set()

    def check(self, found: Sequence[Any], least: Sequence[int]) -> None:
        assert len(found) == ROWS
        for number, one in enumerate(found):
            assert dict(one) == row(number, one["n"])
            assert one["n"] >= least[number], one

    # --- readers ---

    def scan(self, dice: random.Random) -> None:
        least = list(self.acked)
        found = []
        for one in self.table.scan(reverse=True):
            found.append(one)
            if dice.random() < 0.01:
                time.sleep(0.02)
        self.check(found[::-1], least)

    def get(self, dice: random.Random) -> None:
        number = dice.randrange(ROWS)
        least = self.acked[number]
        one = self.table.get(f"k{number:04}")
        assert one is not None
        assert dict(one) == row(number, one["n"])
        assert one["n"] >= least

    def snapshot(self, dice: random.Random) -> None:
        least = list(self.acked)
        with self.db.snapshot() as taken:
            first = [dict(one) for one in taken.table("t").scan()]
            time.sleep(0.05)
            second = [dict(one) for one in taken.table("t").scan()]
        self.check(first, least)
        assert first == second

    # --- writers ---

    def put(self, dice: random.Random) -> None:
        first = dice.randrange(ROWS - 20)
        numbers = range(first, first + dice.choice((1, 20)))
        for number in numbers:
            self.locks[number].acquire()
        try:
            new = {number: self.acked[number] + 1 for number in numbers}
            if len(new) == 1 and dice.random() < 0.3:
                self.table.erase(f"k{first:04}:")  # a row that is not there
            self.table.put([row(number, value) for number, value in new.items()], replace=dice.random() < 0.3)
            for number, value in new.items():
                self.acked[number] = value
        finally:
            for number in numbers:
                self.locks[number].release()

    # --- the life of the table ---

    def cut(self, dice: random.Random) -> None:
        time.sleep(0.02)
        ids = [tablet["id"] for tablet in self.table.tablets()]
        if dice.random() < 0.5 or len(ids) == 1:
            self.table.split(f"k{dice.randrange(ROWS):04}")
        else:
            at = dice.randrange(len(ids) - 1)
            self.table.join(tablets=(ids[at], ids[at + 1]))

    def alter(self, dice: random.Random) -> None:
        time.sleep(0.05)
        name = dice.choice(("n", "m", "s"))
        place = self.table.schema.resolve(name).group.name
        family = self.table.schema.resolve("f:x").group.name
        self.db.alter_table(
            "t",
            **dice.choice(
                [
                    {"move": {name: "b" if place == "a" else "a"}},
                    {"move": {"f": "d" if family == "c" else "c"}},
                    {"move": {name: "b" if place == "a" else "a", "f": "d" if family == "c" else "c"}},
                    {"change_groups": {"a": {"compression": dice.choice(("none", "lz4", "zstd"))}}},
                ]
            ),
        )

    def compact(self, dice: random.Random) -> None:
        time.sleep(0.03)
        self.table.compact()

    def flush(self, dice: random.Random) -> None:
        time.sleep(0.02)
        self.table.flush()

    def collect(self, dice: random.Random) -> None:
        time.sleep(0.01)
        self.db.gc(dry_run=False)

    def clone(self, dice: random.Random) -> None:
        time.sleep(0.05)
        least = list(self.acked)
        name = f"clone{dice.randrange(1 << 40)}"
        made = self.db.clone_table("t", name)
        self.check(list(made.scan()), least)
        made.put(row(0, 1_000_000_000))
        made.compact()
        self.check(list(made.scan()), least)
        self.db.drop_table(name)

    def unload(self, dice: random.Random) -> None:
        time.sleep(0.5)
        self.db.unload_table("t")
        self.db.load_table("t")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_whole_and_nothing_is_lost_whatever_happens_at_the_same_time(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path / "store", seed)
    works: list[Callable[[random.Random], None]] = [
        world.scan,
        world.get,
        world.snapshot,
        world.put,
        world.cut,
        world.alter,
        world.compact,
        world.flush,
        world.collect,
        world.clone,
        world.unload,
    ]
    # All of them, or some: the fewer they are, the more often each comes in the middle of another.
    chosen = works if seed % 2 == 0 else [*works[:4], *random.Random(seed).sample(works[4:], 3)]
    world.run(20, chosen)
    assert min(world.done[work.__name__] for work in chosen) > 0, world.done
    world.check(list(world.table.scan()), world.acked)
    world.db.close()
    with ebla.open(tmp_path / "store", read_only=True) as db:
        world.check(list(db.table("t").scan()), world.acked)
    assert ebla.verify(tmp_path / "store").is_clean
