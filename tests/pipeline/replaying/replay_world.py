"""Stores that died with their log unflushed, and what is in them: to replay them in one way and in another."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import ebla
from ebla.client.embedded.owning import owning
from ebla.direct.log_replay import LogReplay, ReplaySummary
from ebla.direct.log_sorting import ReplayTask
from ebla.settings import KIB, Settings
from ebla.tablet.recovery.log_sort import SortedPortion
from tests.pipeline.scanning.test_scan_random import SHAPES, Story
from tests.reference.comparing import as_rows
from tests.support.inside import abandon

# Nothing is flushed or merged but when it is asked for, and a log has many segments.
UNFLUSHED = Settings(background_compaction=False, log_segment_bytes=4 * KIB, recent_row_slots=1 << 10)
Contents = dict[str, list[Any]]


class Here:
    """Sorts portions in this process, in any order, as tasks do it elsewhere."""

    parallelism = 2

    def __init__(self, dice: random.Random | None = None) -> None:
        self._dice = dice or random.Random(0)

    def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
        numbers = list(range(len(task.portions)))
        self._dice.shuffle(numbers)
        return [
            msgspec.msgpack.decode(msgspec.msgpack.encode(task.run(number)), type=SortedPortion) for number in numbers
        ]


def replay_here(root: Path, portions: int | None = None, sorters: Any = None) -> ReplaySummary:
    """Replay without Spark: all but who sorts is the same."""
    with owning(root) as owned:
        return LogReplay(owned, str(root)).run(lambda: sorters or Here(), portions)


def died(root: Path, seed: int, tables: int = 3) -> list[int]:
    """Make a store of random tables that dies with much in its log; return txns at which one may look back."""
    dice = random.Random(seed)
    db = ebla.open(root, settings=UNFLUSHED)
    stories = [Story(db, SHAPES[(seed + n) % len(SHAPES)], dice, f"t{n}") for n in range(tables)]
    for story in stories:
        story.tell()
        if dice.random() < 0.5:
            story.tell_more()
    gone = db.create_table("gone", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
    txns = []
    for step in range(dice.randint(10, 40)):
        story = dice.choice(stories)
        dice.choices(
            (story.put_some, story.erase, story.erase_range, story.replace, story.split, story.table.flush),
            (8, 3, 2, 2, 0.3, 0.2),
        )[0]()
        if step % 5 == 0:
            gone.put({"k": str(step), "n": step})
        txns.append(story.table.scan().txn)
    db.drop_table("gone")
    abandon(db)
    return dice.sample(txns, min(4, len(txns)))


def copied(root: Path, name: str = "copy") -> Path:
    """Return a copy of a store, as it lies there."""
    copy = root.with_name(name)
    shutil.copytree(root, copy)
    return copy


def contents(db: ebla.Database, txns: Sequence[int] = ()) -> Contents:
    """Return all rows of all tables with all their versions and txns: now, and as of some moments before."""
    found: Contents = {}
    for name in db.tables():
        table = db.table(name)
        for as_of in (None, *txns):
            for versions in (1, 1_000):
                found[f"{name} as of {as_of}, {versions}"] = as_rows(table.scan(as_of=as_of, versions=versions))
    return found


def opened(root: Path, txns: Sequence[int] = ()) -> Contents:
    """Return what a store has when it is opened."""
    with ebla.open(root, settings=UNFLUSHED) as db:
        return contents(db, txns)


def log_of(root: Path) -> dict[str, bytes]:
    """Return the log as it lies there."""
    return {path.name: path.read_bytes() for path in sorted((root / "log").rglob("*.log"))}


def unflushed_bytes(db: ebla.Database) -> int:
    """Return how much the store has in memory."""
    return int(db.stats()["memory_bytes"])
