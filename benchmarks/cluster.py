"""A cluster of three masters and three tablet servers on one host, against the store in this process.

**batched put**: 2,000 rows a call, durable, from one client and from two (a process each), into tables of one replica
whose tablets are on several servers. The store in this process has its log on the same disk. **scan**: one table with
a tablet on each of two servers, and the same rows in one tablet. **idle**: processor time and memory of all six
processes over a while in which nobody asks for anything; pages that they share are counted once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa

import ebla
from benchmarks.harness import Options, check, interleave, scratch, timed
from benchmarks.report import Comparison, Figure, Report, at_least_ratio, rate, under
from benchmarks.rpc import BATCH_ROWS, SCHEMA, _rows
from ebla.local_cluster import local_cluster
from ebla.local_cluster.cluster_file import ClusterFile

MIB = 1 << 20


def run(options: Options) -> Report:
    """Measure."""
    count = options.rows_or(full=400_000, quick=100_000)
    repeats = options.repeats()
    idle_seconds = 10.0 if options.quick else 30.0
    rows = _rows(0, count)
    with scratch(options) as root:
        cluster = local_cluster.start(root / "cluster", servers=3, masters=3, port=None, zookeeper=False)
        try:
            with ebla.open(root / "own") as own, ebla.connect(cluster.address) as db:
                tables = _Tables(count)
                puts = interleave(
                    repeats,
                    {
                        "own": lambda: _put(tables.made(own), rows),
                        "one": lambda: _put(tables.made(db), rows),
                        "two": lambda: _put_by_two(cluster, tables.made(db).name, count),
                    },
                )
                scans = _scans(db, rows, repeats)
            time.sleep(5)  # what was put is flushed, and clients are forgotten
            busy_share, memory_bytes = _idle(cluster, idle_seconds)
        finally:
            local_cluster.stop(root / "cluster")
    own_rate = rate(count, puts["own"])
    return Report(
        "cluster",
        f"{count:,} rows; three masters and three tablet servers on one host",
        [
            Comparison(
                "batched put, durable", rate(count, puts["one"]), "in the process", own_rate, at_least_ratio(0.5)
            ),
            Comparison(
                "batched put, durable, two clients",
                rate(count, puts["two"]),
                "in the process",
                own_rate,
                at_least_ratio(0.7),
            ),
            Comparison(
                "scan of tablets on two servers",
                rate(count, scans["two"]),
                "a tablet on one server",
                rate(count, scans["one"]),
            ),
            Comparison("idle, of one core", Figure(100 * busy_share, "%"), goal=under(5, "%")),
            Comparison("idle, memory of all processes", Figure(memory_bytes / MIB, "MiB"), goal=under(1024, "MiB")),
        ],
    )


class _Tables:
    """New tables, cut in three where the keys of a third begin."""

    def __init__(self, count: int) -> None:
        self._splits = [count // 3, 2 * count // 3]
        self._made = 0

    def made(self, db: ebla.Database) -> ebla.Table:
        self._made += 1
        return db.create_table(f"t{self._made}", SCHEMA, splits=self._splits)


def _put(table: ebla.Table, rows: pa.Table) -> float:
    def work() -> None:
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            table.put(batch)

    return timed(work)[0]


def put_share(address: str, name: str, first: int, count: int) -> None:
    """Put a share of the rows, in a process of its own, when a line comes in; say so when it is done."""
    rows = _rows(first, count)
    with ebla.connect(address) as db:
        table = db.table(name)
        print("ready", flush=True)
        sys.stdin.readline()
        _put(table, rows)
        print("done", flush=True)


def _put_by_two(cluster: ClusterFile, name: str, count: int) -> float:
    half = count // 2
    shares = ((0, half), (half, count - half))
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from benchmarks.cluster import put_share; put_share{(cluster.address, name, *share)}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    try:
        for process in processes:
            _hear(process, "ready")

        def work() -> None:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for process in processes:
                _hear(process, "done")

        return timed(work)[0]
    finally:
        for process in processes:
            process.communicate(timeout=60)


def _hear(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    check(process.stdout.readline().strip(), word, "what a client says")


def _scans(db: ebla.Database, rows: pa.Table, repeats: int) -> dict[str, float]:
    count = rows.num_rows
    two = db.create_table("on_two", SCHEMA, splits=[count // 2])
    one = db.create_table("on_one", SCHEMA)
    servers = [*db.stats()["servers"]]
    for tablet, server in zip(two.tablets(), servers, strict=False):
        db.move_tablet("on_two", tablet["id"], server)
    for table in (one, two):
        _put(table, rows)
        table.flush()

    def scan(table: ebla.Table) -> float:
        seconds, found = timed(lambda: table.scan(ordered=False).to_arrow())
        check(found.num_rows, count, "rows of a scan")
        return seconds

    return interleave(repeats, {"two": lambda: scan(two), "one": lambda: scan(one)})


def _idle(cluster: ClusterFile, seconds: float) -> tuple[float, int]:
    """Return which share of a core all processes use, and their memory."""
    processes = [psutil.Process(one.pid) for one in cluster.processes]

    def busy() -> float:
        return sum(one.cpu_times().user + one.cpu_times().system for one in processes)

    began = busy()
    time.sleep(seconds)
    share = (busy() - began) / seconds
    return share, sum(one.memory_full_info().pss for one in processes)


if __name__ == "__main__":
    raise SystemExit(f"python -m benchmarks {Path(__file__).stem}")
