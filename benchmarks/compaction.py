"""Compaction: five sorted runs into one, on one core, against rocksdict's `compact_range` on the same data.

    Ebla       five fragments, flushed one by one; timed is `table.compact()`
    rocksdict  the same batches as five table files, compaction off until then; timed is `compact_range`

`distinct`: all rows are different. `updated`: the runs overwrite each other, and no history is kept. `partial`: the
first run has all columns, the others set one of them. Records are those read. The CPU time of the whole process counts,
so that a second thread does not help: the rate is that of one core. Both sides read from the file cache.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data, store
from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.peers import Rocks
from benchmarks.report import Comparison, Report, at_least, at_least_ratio, rate

RUNS = 5
CASES = ("distinct", "updated", "partial")
NO_HISTORY = replace(store.NO_FLUSH, history_seconds=0.0)


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(2_000_000, 200_000)
    lines = []
    for case in CASES:
        say(f"compaction: {case}")
        runs = [_batches(case, number, rows // RUNS) for number in range(RUNS)]
        with scratch(options) as root:
            sides: dict[str, Callable[[], float]] = {"Ebla": partial(_ebla, root, runs, case)}
            if case != "partial":
                sides["rocksdict"] = partial(_rocks, root, runs)
            best = interleave(options.repeats(2), sides)
        peer = best.get("rocksdict")
        lines.append(
            Comparison(
                f"{case}, {rows:,} records",
                rate(rows, best["Ebla"], "records/s"),
                "" if peer is None else "rocksdict",
                None if peer is None else rate(rows, peer, "records/s"),
                at_least(1e6, "records/s") if peer is None else at_least_ratio(1),
            )
        )
    return Report("compaction", "compaction of five runs into one, on one core", lines)


def _batches(case: str, number: int, rows: int) -> list[Any]:
    """Return the batches of one run."""
    if case == "distinct":
        return [data.batch(number * 1_000 + n, 10_000, seed=5) for n in range(rows // 10_000)]
    keys = np.random.default_rng(9).integers(0, 256, (rows, data.KEY_BYTES), dtype=np.uint8)
    batches = [
        data.batch(number * 1_000 + n, 10_000, seed=6, keys=keys[n * 10_000 : (n + 1) * 10_000])
        for n in range(rows // 10_000)
    ]
    if case == "partial" and number:
        column = list(data.COLUMNS)[number % len(data.COLUMNS)]
        return [batch.select(["row", column]) for batch in batches]
    return batches


def _cpu(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    timed(work)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def _ebla(root: Path, runs: list[list[Any]], case: str) -> float:
    path = root / f"ebla-{np.random.default_rng().integers(1 << 40)}"
    database, table = store.create(path, NO_HISTORY)
    for batches in runs:
        for batch in batches:
            table.put(batch, wait="none")
        table.flush()
    read = sum(batch.num_rows for batches in runs for batch in batches)
    seconds = _cpu(table.compact)
    done = database.stats()["compactions"]["recent"][-1]
    check(done["records_read"], read, "records read")
    check(done["records_written"], read if case == "distinct" else read // RUNS, "records left")
    check(done["fragments_read"], RUNS, "runs")
    database.close()
    return seconds


def _rocks(root: Path, runs: list[list[Any]]) -> float:
    peer = Rocks(root / f"rocks-{np.random.default_rng().integers(1 << 40)}", 1 << 30, compacts=False)
    for batches in runs:
        for batch in batches:
            peer.put_batch(data.pairs(batch))
        peer.flush()
    seconds = _cpu(lambda: peer.db.compact_range(None, None))
    peer.close()
    return seconds
