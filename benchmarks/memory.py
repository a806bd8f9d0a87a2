"""Resident memory of a process that ingests 20M rows with default settings, then scans and reads them.

A child process makes the rows one batch at a time and puts them durably; its peak of resident memory after the ingest
is what the goal is about. It then scans everything by batches, keeping none, and gets random keys, so that block cache,
row cache, footers and bloom filters fill up; the peak is read again after each step, and can only grow. It is the peak
of the whole process: interpreter, libraries and the making of rows included (a note says how much that is).

The peak is VmHWM, which begins anew with the program; ru_maxrss, where there is nothing else, would carry over what the
parent had resident when it started the child.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data, store
from benchmarks.harness import Options, check, say, scratch
from benchmarks.report import Comparison, Figure, Report, microseconds, rate, under

GETS = 5_000


def run(options: Options) -> Report:
    """Measure."""
    rows = options.rows or (2_000_000 if options.quick else 20_000_000)
    say(f"memory: a child process ingests {rows:,} rows")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with scratch(options) as root:
        process = context.Process(target=_child, args=(root / "ebla", rows, sender))
        process.start()
        sender.close()
        found: dict[str, float] = {}
        try:
            while True:
                name, value = receiver.recv()
                found[name] = value
                say(f"  {name}: {value:,.3f}")
        except EOFError:
            process.join()
        check(process.exitcode, 0, "exit of the ingesting child")
        fragments = len(store.fragments(root / "ebla"))
    note = f"{fragments} fragments; {found['before']:.0f} MiB before the store was opened"
    lines = [
        Comparison("peak, ingest", Figure(found["ingest peak"], "MiB"), goal=under(1024, "MiB"), note=note),
        Comparison("peak, after a streamed scan", Figure(found["scan peak"], "MiB"), goal=under(1024, "MiB")),
        Comparison("peak, after random gets", Figure(found["gets peak"], "MiB"), goal=under(1024, "MiB")),
        Comparison("ingest, rows made on the way", rate(rows, found["ingest seconds"])),
        Comparison("streamed scan", rate(rows, found["scan seconds"])),
        Comparison("random get", microseconds(found["gets seconds"], GETS)),
    ]
    return Report("memory", f"{rows:,} rows, {rows * data.ROW_BYTES / 1e9:.1f} GB, default settings", lines)


def _child(path: Path, rows: int, sender: Any) -> None:
    sender.send(("before", peak_mib()))
    database, table = store.create(path)

    begin = time.perf_counter()
    for batch in data.stream(rows):
        table.put(batch)
    sender.send(("ingest seconds", time.perf_counter() - begin))
    sender.send(("ingest peak", peak_mib()))

    begin = time.perf_counter()
    found = sum(batch.num_rows for batch in table.scan().to_batches())
    sender.send(("scan seconds", time.perf_counter() - begin))
    sender.send(("scan peak", peak_mib()))
    check(found, rows, "rows in a streamed scan")

    rng = np.random.default_rng(3)
    numbers = rng.integers(0, rows // data.BATCH_ROWS, GETS)
    keys = [data.batch(int(number)).column("row")[0].as_py() for number in numbers]
    begin = time.perf_counter()
    missing = sum(table.get(key) is None for key in keys)
    sender.send(("gets seconds", time.perf_counter() - begin))
    sender.send(("gets peak", peak_mib()))
    check(missing, 0, "rows missing after the ingest")
    database.close()
    sender.close()


def peak_mib() -> float:
    """Return the largest resident memory that this process has had."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        units = 1 << 20 if sys.platform == "darwin" else 1 << 10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units
