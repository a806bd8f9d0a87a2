"""The demo tells its story to the end, also with few rows, and cleans up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import ebla
from ebla import demo

ROOT = Path(__file__).resolve().parents[2]


def test_keys_are_shuffled_unique_and_lead_back_to_their_numbers() -> None:
    numbers = np.arange(5_000, dtype=np.uint64)
    keys = demo.rows_of(numbers)["event"].combine_chunks()
    assert demo.numbers_of(keys).tolist() == numbers.tolist()
    assert len(set(keys.to_pylist())) == len(numbers)
    assert sorted(keys.to_pylist()) != keys.to_pylist()


def test_demo_runs_to_the_end_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ebla.demo", "--rows", "20000", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "acknowledged rows are there" in done.stdout
    assert "kill -9" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["none", "changed", "twice", "unknown"])
def test_verification_would_notice_a_wrong_row(tmp_path: Path, fault: str) -> None:
    story = demo.Story(Console(quiet=True), str(tmp_path), rows=2_000, batch_rows=100)
    with ebla.open(tmp_path) as db:
        table = db.create_table(demo.TABLE, ebla.Schema(key={"event": "string"}, columns=demo.SCHEMA_COLUMNS))
        table.put(demo.rows_of(np.arange(1_500, dtype=np.uint64)))
        if fault == "none":
            assert demo.verify(story, table).tolist() == [True] * 1_500 + [False] * 500
            return
        if fault == "changed":
            table.put({"event": demo.keys_of(np.array([7]))[0].as_py(), "device": -1})
        elif fault == "twice":
            # The number is read from the digits, so that capital ones make a second row of the same number.
            row = demo.rows_of(np.array([7])).to_pylist()[0]
            table.put(row | {"event": row["event"].upper()})
        else:
            table.put(demo.rows_of(np.array([5_000])))
        with pytest.raises(demo.DemoFailed):
            demo.verify(story, table)
