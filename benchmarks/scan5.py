"""Full scan over five overlapping fragments, where every row must be merged.

Set-up (not timed): five rounds of ingest, each followed by a flush. Every round writes a fifth of the rows all over
the key space; from the second round on, a quarter of them overwrite rows of earlier rounds. So a scan gives fewer
rows than were written (the figures count the rows that come out, the same for everybody).

rocksdict compacts in the background as it always does and is left to finish, so its iterator may meet fewer than five
runs; the line "rocksdict, not compacted" switches that off, and it too has to merge five. Rounds and timed regions are
those of `scan`: stores opened anew, first scan timed, all columns.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import data, store
from benchmarks.harness import Options, interleave, say, scratch
from benchmarks.peers import Rocks
from benchmarks.report import Comparison, Report, at_least_ratio, rate
from benchmarks.scan import ebla_scan, parquet_read, rocks_scan

ROUNDS = 5


def run(options: Options) -> Report:
    """Measure and compare."""
    written = options.rows_or(full=1_000_000, quick=200_000)
    say("scan5: preparing rows")
    rounds = overlapping_rounds(written)
    rows, expected = _outcome(rounds)
    with scratch(options) as root:
        say("scan5: loading")
        store.load_flushed(root / "ebla", rounds)
        files = store.fragments(root / "ebla")
        counts = {}
        for name, compacts in (("rocks", True), ("rocks-raw", False)):
            peer = Rocks(root / name, compacts=compacts)
            for batches in rounds:
                for batch in batches:
                    peer.put_batch(data.pairs(batch))
                peer.flush()
            peer.settle()
            counts[name] = peer.files()
            peer.close()
        again: dict[str, list[float]] = {"Ebla": [], "rocksdict": []}
        best = interleave(
            options.repeats(4),
            {
                "Ebla": partial(ebla_scan, root / "ebla", (rows, expected), again["Ebla"]),
                "rocksdict": partial(rocks_scan, root / "rocks", rows, again["rocksdict"]),
                "rocksdict, not compacted": partial(rocks_scan, root / "rocks-raw", rows, [], compacts=False),
                "pq.read_table": partial(parquet_read, files, None),
            },
        )
    first = rate(rows, best["Ebla"])
    note = f"Ebla has {len(files)} fragments, rocksdict {counts['rocks']} files ({counts['rocks-raw']} not compacted)"
    lines = [
        Comparison("first scan", first, "rocksdict", rate(rows, best["rocksdict"]), at_least_ratio(1.5), note),
        Comparison("first scan", first, "rocksdict, not compacted", rate(rows, best["rocksdict, not compacted"])),
        Comparison("second scan", rate(rows, min(again["Ebla"])), "rocksdict", rate(rows, min(again["rocksdict"]))),
        Comparison("first scan", first, "pq.read_table, no merge", rate(rows, best["pq.read_table"])),
    ]
    return Report("scan5", f"full scan of {rows:,} rows out of {written:,} written in {ROUNDS} flushes", lines)


def overlapping_rounds(rows: int, overwritten: float = 0.25) -> list[list[Any]]:
    """Return five rounds of batches; a quarter of each round after the first repeats keys of earlier rounds."""
    rng = np.random.default_rng(5)
    per_round = rows // ROUNDS
    known = np.empty((0, data.KEY_BYTES), dtype=np.uint8)
    rounds = []
    for turn in range(ROUNDS):
        old = known[rng.choice(len(known), int(per_round * overwritten), replace=False)] if turn else known
        fresh = rng.integers(0, 256, (per_round - len(old), data.KEY_BYTES), dtype=np.uint8)
        keys = rng.permutation(np.concatenate([old, fresh]))
        known = np.concatenate([known, fresh])
        cuts = range(0, per_round, data.BATCH_ROWS)
        parts = [keys[cut : cut + data.BATCH_ROWS] for cut in cuts]
        rounds.append([data.batch(at, len(part), seed=50 + turn, keys=part) for at, part in enumerate(parts)])
    return rounds


def _outcome(rounds: list[list[Any]]) -> tuple[int, int]:
    """Return how many rows there are in the end and the sum of their ids, by plain Python: the last write wins."""
    final: dict[bytes, int] = {}
    for batches in rounds:
        table = pa.Table.from_batches(batches)
        final.update(zip(table.column("row").to_pylist(), table.column("id").to_pylist(), strict=True))
    return len(final), int(pc.sum(pa.array(final.values())).as_py())
