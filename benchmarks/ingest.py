"""Durable ingest: batches of 1,000 shuffled rows into an empty store, from one writer and from four threads.

Timed, on every side: from the first batch handed over to the last one acknowledged as durable. Background work
(flushes, compactions) that happens to run in that time counts, what is left of it afterwards does not; the lines
"with a flush at the end" include it, up to the end of the store's own flush. Opening, creating the table and closing
are outside.

    Ebla       `table.put(record_batch)`, the default wait: durable
    rocksdict  a WriteBatch filled from a list of pairs of bytes (filling it is part of the call), written with sync
    lmdb, sqlite, duckdb   one synced transaction a batch; one round only, they are slow at this

From four threads each writer has a quarter of the batches; all start at once, and the last one to finish stops the
clock. lmdb, sqlite and duckdb have one writer at a time by design and are measured with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import data, store
from benchmarks.harness import Options, check, deal, in_threads, interleave, say, scratch, timed
from benchmarks.peers import Duck, Lmdb, Rocks, Sqlite
from benchmarks.report import Comparison, Report, at_least_ratio, rate

GOALS = {1: at_least_ratio(2), 4: at_least_ratio(3)}


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(full=1_000_000, quick=150_000)
    say("ingest: preparing rows")
    batches = data.batches(rows)
    pairs = [data.pairs(batch) for batch in batches]
    fresh = count()
    with scratch(options) as root:

        def place() -> Path:
            return root / str(next(fresh))

        lines = []
        for writers, goal in GOALS.items():
            say(f"ingest: {writers} writers")
            flushed: dict[str, list[float]] = {"Ebla": [], "rocksdict": []}
            best = interleave(
                options.repeats(),
                {
                    "Ebla": partial(_ebla, place, batches, rows, writers, flushed["Ebla"]),
                    "rocksdict": partial(_rocks, place, pairs, rows, writers, flushed["rocksdict"]),
                },
            )
            name = "one writer" if writers == 1 else "four writers"
            lines.append(Comparison(name, rate(rows, best["Ebla"]), "rocksdict", rate(rows, best["rocksdict"]), goal))
            lines.append(
                Comparison(
                    f"{name}, with a flush at the end",
                    rate(rows, min(flushed["Ebla"])),
                    "rocksdict",
                    rate(rows, min(flushed["rocksdict"])),
                )
            )
        one_writer = lines[0].ebla
        tuples = [data.tuples(batch) for batch in batches]
        for name, peer, form in (("lmdb", Lmdb, pairs), ("sqlite", Sqlite, tuples), ("duckdb", Duck, batches)):
            seconds = interleave(1, {name: partial(_one_writer, place, peer, form)})[name]
            lines.append(Comparison("one writer", one_writer, name, rate(rows, seconds)))
    return Report("ingest", f"{rows:,} rows in durable batches of {data.BATCH_ROWS:,}", lines)


def _ebla(place: Callable[[], Path], batches: Sequence[Any], rows: int, writers: int, flushed: list[float]) -> float:
    database, table = store.create(place())

    def write(share: Sequence[Any]) -> None:
        for batch in share:
            table.put(batch)

    if writers == 1:
        seconds, _ = timed(lambda: write(batches))
    else:
        seconds = in_threads(write, deal(batches, writers))
    flush_seconds, _ = timed(table.flush)
    flushed.append(seconds + flush_seconds)
    found = sum(batch.num_rows for batch in table.scan(columns=["id"]).to_batches())
    check(found, rows, "rows in Ebla after the ingest")
    database.close()
    return seconds


def _rocks(place: Callable[[], Path], pairs: Sequence[Any], rows: int, writers: int, flushed: list[float]) -> float:
    peer = Rocks(place())

    def write(share: Sequence[Any]) -> None:
        for batch in share:
            peer.put_batch(batch)

    if writers == 1:
        seconds, _ = timed(lambda: write(pairs))
    else:
        seconds = in_threads(write, deal(pairs, writers))
    flush_seconds, _ = timed(peer.flush)
    flushed.append(seconds + flush_seconds)
    check(len(peer.scan()), rows, "rows in rocksdict after the ingest")
    peer.close()
    return seconds


def _one_writer(place: Callable[[], Path], kind: Any, form: Sequence[Any]) -> float:
    peer = kind(place())

    def write() -> None:
        for batch in form:
            peer.put_batch(batch)

    seconds, _ = timed(write)
    peer.close()
    return seconds
