"""MERGE of one percent into a table, against deltalake's merge of the same rows into the same table.

    table           5M rows of six columns, in the order of the key, as one load and as one `write_deltalake`
    source          half of the rows are there and half are new, at random places, in memory as Arrow
    merge           `ebla.pipeline.merge(db, table, source)`: updates what is there, inserts what is not, counts both
      against       `DeltaTable.merge(...).when_matched_update_all().when_not_matched_insert_all().execute()`

Each round merges another source. Beside it the memory that the process took more while merging, at its peak.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import ebla
import ebla.pipeline
from benchmarks.harness import Options, check, in_turn, interleave, scratch, timed
from benchmarks.report import Comparison, Figure, Report, at_least_ratio, rate
from benchmarks.store import AS_LOADED

KEY = "id"
MIB = 1 << 20


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(5_000_000, 500_000)
    rounds = options.repeats(3)
    with scratch(options) as root, ebla.open(root / "ebla", settings=AS_LOADED) as db:
        from deltalake import write_deltalake

        table = made(0, rows)
        ebla.pipeline.load(db, "bench", table, key=KEY)
        write_deltalake(str(root / "delta"), table)
        del table
        before = _peak_bytes()
        best = interleave(
            rounds,
            {
                "Ebla": in_turn(partial(_by_ebla, db), sources(rows, rounds)),
                "deltalake": in_turn(partial(_by_delta, root / "delta"), sources(rows, rounds)),
            },
        )
        count = rows // 100
        grown = _peak_bytes() - before
    lines = [
        Comparison(
            f"merge of {count:,} into {rows:,}",
            rate(count, best["Ebla"]),
            "deltalake",
            rate(count, best["deltalake"]),
            at_least_ratio(5),
            f"{best['Ebla']:.2f} s, against {best['deltalake']:.2f} s",
        ),
        Comparison("memory beside the table, both of them", Figure(grown / MIB, "MiB")),
    ]
    return Report("merge", "six columns, half of the source is there, compaction off", lines)


def made(first: int, count: int, seed: int = 7) -> pa.Table:
    """Return rows with keys from `first` on."""
    dice = np.random.default_rng(seed)
    keys = np.arange(first, first + count)
    return pa.table(
        {
            KEY: keys,
            "amount": dice.integers(0, 1_000, count),
            "price": dice.random(count),
            "name": pa.array(np.char.add("name-", (keys % 100_000).astype(str))),
            "ratio": dice.random(count),
            "small": dice.integers(0, 9, count),
        }
    )


def sources(rows: int, rounds: int) -> Iterator[pa.Table]:
    """Yield a hundredth of a table for every round: half of it is there, half is new."""
    count = rows // 200
    for turn in range(rounds):
        dice = np.random.default_rng(turn)
        there = made(0, count, seed=turn).set_column(0, KEY, pa.array(np.sort(dice.choice(rows, count, replace=False))))
        yield pa.concat_tables([there, made(rows + turn * count, count, seed=turn)])


def _by_ebla(db: ebla.Database, source: pa.Table) -> float:
    seconds, done = timed(lambda: ebla.pipeline.merge(db, "bench", source))
    check((done.updated, done.inserted), (len(source) // 2, len(source) // 2), "rows merged")
    return seconds


def _by_delta(path: Path, source: pa.Table) -> float:
    from deltalake import DeltaTable

    def merge() -> dict[str, int]:
        merger = DeltaTable(str(path)).merge(source, f"s.{KEY} = t.{KEY}", source_alias="s", target_alias="t")
        return merger.when_matched_update_all().when_not_matched_insert_all().execute()

    seconds, done = timed(merge)
    check(done["num_target_rows_updated"], len(source) // 2, "rows merged by deltalake")
    return seconds


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
