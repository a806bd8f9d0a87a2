"""``kill -9`` at any moment: every acknowledged commit is there, every other one fully or not at all."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import ebla
from tests.recovery.process import Held, writer
from tests.recovery.work import SCHEMA, SMALL, SPLITS, TABLE


def rounds(path: Path, count: int, threads: int, seed: int) -> None:
    """Write, kill, open and compare, over and over on the same store."""
    dice = random.Random(seed)
    held = Held(threads)
    txn_max = 0
    with ebla.open(path, settings=SMALL) as db:
        db.create_table(TABLE, SCHEMA, SPLITS)
    for _ in range(count):
        with writer(path, held.counts) as process:
            process.read_lines(dice.randint(1, 150))
            time.sleep(dice.random() * 0.02)  # not to wait for anything, but to die at any moment
            process.kill()
        assert process.txn_max > txn_max, "txns never go back"
        txn_max = process.txn_max
        with ebla.open(path, settings=SMALL) as db:
            # One operation of each thread may have been under way, or done and not told.
            held.find(db, process.synced, [acked + 1 for acked in process.acked])
            table = db.table(TABLE)
            first = table.put({"place": "z", "thread": -1, "row": 0, "number": 1})
            assert first > txn_max
            txn_max = first
            if dice.random() < 0.5:
                table.flush()


def test_nothing_acknowledged_is_lost_by_killing_a_writer(tmp_path: Path) -> None:
    rounds(tmp_path / "store", count=2, threads=1, seed=1)


def test_nothing_acknowledged_is_lost_by_killing_many_writers_at_once(tmp_path: Path) -> None:
    rounds(tmp_path / "store", count=3, threads=4, seed=2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost_by_killing_again_and_again(tmp_path: Path, seed: int) -> None:
    rounds(tmp_path / "store", count=60, threads=1 + seed, seed=100 + seed)
