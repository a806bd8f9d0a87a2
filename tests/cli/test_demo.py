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


def assert_told(out: str, directory: Path) -> None:
    assert "acknowledged rows are there" in out
    assert "kill -9" in out
    assert list(directory.iterdir()) == []


@pytest.mark.usefixtures("spark")
def test_demo_runs_to_the_end_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--rows", "20000", "--directory", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "the first answer again" in out
    assert_told(out, tmp_path)


WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from ebla.demo import main; sys.exit(main())"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(("-c", WITHOUT_SPARK), id="without Spark"),
        pytest.param(("-m", "ebla.demo"), id="with a Spark of its own", marks=pytest.mark.soak),
    ],
)
def test_demo_runs_as_a_process(tmp_path: Path, program: tuple[str, str]) -> None:
    command = [sys.executable, *program, "--rows", "20000", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("Spark is not installed" in done.stdout) is (program[0] == "-c")
    assert_told(done.stdout, tmp_path)


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
