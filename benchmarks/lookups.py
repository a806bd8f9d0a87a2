"""Making lookup files: rows of four numbers, out of one fragment, on one core.

Timed is one round of what makes them in the background, by the processor time of the whole process.
"""

from __future__ import annotations

import resource
from dataclasses import replace

import numpy as np
import pyarrow as pa

import ebla
from benchmarks.harness import Options, check, interleave, scratch
from benchmarks.report import Comparison, Report, at_least, rate
from benchmarks.store import NO_FLUSH
from ebla.client.database import service_of
from ebla.client.embedded.embedded_service import EmbeddedService

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"a": "int64", "b": "int64", "c": "float64", "d": "float64"})


def run(options: Options) -> Report:
    """Measure."""
    rows = options.rows_or(full=1_000_000, quick=200_000)
    with scratch(options) as root:
        turns = iter(range(options.repeats()))

        def made() -> float:
            dice = np.random.default_rng(1)
            keys = np.arange(rows)
            numbers = {name: dice.integers(0, 1 << 40, rows) for name in "ab"} | {
                name: dice.random(rows) for name in "cd"
            }
            with ebla.open(root / str(next(turns)), settings=replace(NO_FLUSH, lookup_bytes_max=1 << 34)) as db:
                table = db.create_table("t", SCHEMA)
                table.put(pa.table({"k": keys} | numbers), wait="none")
                table.flush()
                return _made_seconds(db)

        best = interleave(options.repeats(), {"Ebla": made})
    return Report(
        "lookups",
        f"{rows:,} rows of four numbers in one fragment",
        [Comparison("made, by processor time", rate(rows, best["Ebla"]), goal=at_least(1e6, "rows/s"))],
    )


def _made_seconds(db: ebla.Database) -> float:
    service = service_of(db)
    assert isinstance(service, EmbeddedService)
    maker = service.engine.lookup_maker
    check(maker.made_files, 0, "lookup files made before")
    maker._at_once = True
    before = resource.getrusage(resource.RUSAGE_SELF)
    maker.round()
    after = resource.getrusage(resource.RUSAGE_SELF)
    check(maker.made_files, 1, "lookup files made")
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
