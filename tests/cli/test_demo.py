"""The demo tells its story to the end, also with few rows, and cleans up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

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
