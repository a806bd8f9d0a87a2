"""Tables that three servers keep against tables that one keeps, on one cluster of three servers and one host.

**batched put**: 2,000 rows a call, durable, one thread. **single puts**: one row a call, durable, from 16 threads.
Three logs are on one disk here, and three servers share the processors: on several hosts the ratio is better.

**a push**: by how much a single durable put from one thread takes longer with three replicas, against a bare Flight
exchange of 200 bytes between two processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

import ebla
from benchmarks.harness import Options, check, deal, in_threads, interleave, scratch, timed
from benchmarks.report import Comparison, Report, at_least_ratio, microseconds, rate, within_time
from benchmarks.rpc import BATCH_ROWS, SCHEMA, THREADS, _exchanges, _rows, _served
from benchmarks.rpc import GETS as EXCHANGES
from ebla.local_cluster import local_cluster

REPLICAS = (1, 3)


def run(options: Options) -> Report:
    """Measure."""
    count = options.rows_or(full=400_000, quick=100_000)
    singles = options.rows_or(full=8_000, quick=2_000) if options.rows is None else 2_000
    repeats = options.repeats()
    with scratch(options) as root, _served(root / "served") as (_, bare_address):
        cluster = local_cluster.start(root / "cluster", servers=3, masters=1, port=None, zookeeper=False)
        bare = flight.connect(bare_address)
        try:
            with ebla.connect(cluster.address) as db:
                tables = _Tables(db)
                batches = _rows(0, count).to_batches(max_chunksize=BATCH_ROWS)
                ingest = interleave(repeats, _each(lambda table: _ingest(table, batches), tables))
                together = interleave(repeats, _each(lambda table: _singles(table, singles, THREADS), tables))
                alone = interleave(repeats, _each(lambda table: _singles(table, singles // 4, 1), tables))
                exchange = interleave(repeats, {"bare": lambda: _exchanges(bare)})["bare"] / EXCHANGES
        finally:
            bare.close()
            local_cluster.stop(root / "cluster")
    added = max(0.0, alone["3"] - alone["1"]) / (singles // 4)
    return Report(
        "replication",
        f"{count:,} rows in batches, {singles:,} one by one; three servers and a master on one host",
        [
            Comparison(
                "batched put, durable, 3 replicas",
                rate(count, ingest["3"]),
                "1 replica",
                rate(count, ingest["1"]),
                at_least_ratio(0.35),
            ),
            Comparison(
                f"single puts, durable, {THREADS} threads, 3 replicas",
                rate(singles, together["3"], "puts/s"),
                "1 replica",
                rate(singles, together["1"], "puts/s"),
                at_least_ratio(0.4),
            ),
            Comparison(
                "what a push adds to a put",
                microseconds(added),
                "bare exchange",
                microseconds(exchange),
                within_time(1.5),
            ),
        ],
    )


class _Tables:
    """New tables, by how many replicas they have."""

    def __init__(self, db: ebla.Database) -> None:
        self._db = db
        self._made = 0

    def make(self, replicas: int) -> ebla.Table:
        self._made += 1
        return self._db.create_table(f"t{self._made}", SCHEMA, replicas=replicas)


def _each(work: Callable[[ebla.Table], float], tables: _Tables) -> dict[str, Callable[[], float]]:
    return {str(replicas): lambda replicas=replicas: work(tables.make(replicas)) for replicas in REPLICAS}  # type: ignore[misc]


def _ingest(table: ebla.Table, batches: Sequence[pa.RecordBatch]) -> float:
    table.put(batches[0])  # it is served, and its first commit is saved

    def work() -> None:
        for batch in batches:
            table.put(batch)

    return timed(work)[0]


def _singles(table: ebla.Table, count: int, threads: int) -> float:
    def put(keys: Sequence[int]) -> None:
        for key in keys:
            table.put({"k": key, "a": key, "b": 0.5, "s": "value"})

    put([0])
    seconds = in_threads(put, deal(range(count), threads))
    check(table.get(count - 1)["a"], count - 1, "a row of a put")
    return seconds


if __name__ == "__main__":
    raise SystemExit(f"python -m benchmarks {Path(__file__).stem}")
