"""The first load of a Spark session, and later ones, against Spark's own sorted Parquet in sessions of its own.

Every round starts a process with a session for either side. Timed, after the session is there:

    first    `ebla.pipeline.load` of a Parquet input of ten columns in random order of the key, into a new table
      against  `repartitionByRange + sortWithinPartitions + write.parquet` of the same input into as many files
    warm     the best of two more of the same, in the same session

The medians of the rounds are compared.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import ebla
import ebla.pipeline
from benchmarks.harness import Options, check, say, scratch, timed
from benchmarks.report import Comparison, Figure, Report, within_time
from benchmarks.spark import KEY, make_input
from benchmarks.store import AS_LOADED

FILES = 4


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(full=1_000_000, quick=200_000)
    rounds = 2 if options.quick else 3
    taken: dict[str, list[list[float]]] = {"ebla": [], "spark": []}
    with scratch(options) as root:
        _child("prepare", root, rows)
        for turn in range(rounds):
            for side in ("ebla", "spark") if turn % 2 == 0 else ("spark", "ebla"):
                say(f"firstload: {side}, round {turn + 1} of {rounds}")
                taken[side].append(_child(side, root, rows))
    lines = []
    for at, (measure, factor) in enumerate((("first load of a session", 1.6), ("warm load", 1.1))):
        own, peer = (statistics.median(times[at] for times in taken[side]) for side in ("ebla", "spark"))
        goal = within_time(factor)
        lines.append(Comparison(measure, Figure(own, "s"), "sorted write.parquet", Figure(peer, "s"), goal))
    return Report("firstload", f"{rows:,} rows of ten columns, local[*], medians of {rounds} sessions", lines)


def _child(side: str, root: Path, rows: int) -> list[float]:
    code = f"from benchmarks.firstload import one; one({side!r}, {str(root)!r}, {rows})"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(side: str, directory: str, rows: int) -> None:
    """Do one side in this process, and print how many seconds the first one took, and the best of two more."""
    root = Path(directory)
    spark = ebla.pipeline.session(app_name="ebla-benchmarks", log_level="OFF")
    if side == "prepare":
        make_input(spark, rows, root / "input")
        times = [0.0, 0.0, 0.0]
    else:
        work = _load if side == "ebla" else _write
        times = [work(spark, root, rows) for _ in range(3)]
    spark.stop()
    print(json.dumps([times[0], min(times[1:])]))


def _load(spark: Any, root: Path, rows: int) -> float:
    shutil.rmtree(root / "ebla", ignore_errors=True)
    with ebla.open(root / "ebla", settings=AS_LOADED) as db:
        source = spark.read.parquet(str(root / "input"))
        seconds, done = timed(lambda: ebla.pipeline.load(db, "bench", source, key=[KEY], spark=spark))
        check(done.rows, rows, "rows loaded")
    return seconds


def _write(spark: Any, root: Path, rows: int) -> float:
    shutil.rmtree(root / "sorted", ignore_errors=True)
    ordered = spark.read.parquet(str(root / "input")).repartitionByRange(FILES, KEY).sortWithinPartitions(KEY)
    return timed(lambda: ordered.write.parquet(str(root / "sorted")))[0]


if __name__ == "__main__":
    raise SystemExit(f"python -m benchmarks {Path(__file__).stem}")
