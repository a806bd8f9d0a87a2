"""`python -m benchmarks`: run workloads, print their tables, keep them in RESULTS.md.

Every workload runs in a process of its own, so that none inherits the memory, threads or caches of another, and one
that fails does not take the rest with it. With `--write` the sections of the workloads that ran are replaced in
RESULTS.md and the others stay as they are; each section carries its own date.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import multiprocessing
import re
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console

from benchmarks.harness import Options, say
from benchmarks.machine import describe, is_memory_backed
from benchmarks.report import Report, markdown, rich_table
from benchmarks.workload import run_workload

WORKLOADS = (
    *("ingest", "single", "scan", "scan5", "get", "lookups", "cells", "replay", "memory", "block"),
    *("ycsb", "steady", "compaction", "space", "instant", "catalog", "metadata"),
    *("rpc", "cluster", "replication", "failover"),
    *("firstload", "spark", "sparkreplay", "changes", "pipeline", "tpch", "merge"),
)
PEERS = ("rocksdict", "lmdb", "duckdb", "deltalake")
RESULTS = Path(__file__).with_name("RESULTS.md")
INTRODUCTION = """# Results of `python -m benchmarks`

Ebla and its peers in the same run, on the same data, machine and file system. A ratio says how many times as fast as
the peer Ebla is. The files in this directory say what exactly is timed on either side.
"""


def main() -> int:
    """Run what the command line asks for; return 1 if a workload failed (falling short of a goal is no failure)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speeds of Ebla against its peers.")
    parser.add_argument("workload", nargs="*", help=f"any of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--rows", type=int, help="rows to measure with (default: each workload's own)")
    parser.add_argument("--scale", type=float, help="scale factor of tpch (default: 0.2; with --quick 0.02)")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds: minutes become seconds")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/RESULTS.md")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where to put the stores")
    given = parser.parse_args()
    unknown = sorted(set(given.workload) - set(WORKLOADS))
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}: choose from {', '.join(WORKLOADS)}")
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    if missing:
        say(f"{', '.join(missing)} not installed: run `make bench`, or pip install --editable '.[bench]'")
        return 2
    if given.scale is not None and given.scale <= 0:
        parser.error("--scale is a factor above 0")
    options = Options(given.directory, given.rows, given.quick, given.scale)
    if is_memory_backed(options.directory):
        say(f"{options.directory} lives in memory, where a sync costs nothing: choose a disk with --directory")
        return 2

    machine = describe(options.directory)
    reports: list[Report] = []
    failed = False
    # The table must be readable in a log file too, where the width of the terminal is not known.
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print("\n".join(machine), highlight=False)
    for name in given.workload or WORKLOADS:
        report = _in_own_process(name, options)
        if report is None:
            failed = True
            continue
        reports.append(report)
        console.print(rich_table(report))
    if given.write and reports:
        write(reports, machine, datetime.date.today().isoformat())
    return 1 if failed else 0


def _in_own_process(name: str, options: Options) -> Report | None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        try:
            return pool.submit(run_workload, name, options).result()
        except Exception:  # a workload that fails must not take the others with it
            say(f"{name} failed:\n{traceback.format_exc()}")
            return None


def write(reports: list[Report], machine: list[str], date: str) -> None:
    """Replace the sections of `reports` in RESULTS.md, in the order of the workloads."""
    old = RESULTS.read_text() if RESULTS.exists() else ""
    sections = {match[1]: match[0].rstrip() for match in re.finditer(r"^## (\w+)\n.*?(?=^## |\Z)", old, re.M | re.S)}
    for report in reports:
        sections[report.workload] = markdown(report, date, machine[0]).rstrip()
    facts = "\n".join(f"- {fact}" for fact in machine)
    ordered = [sections[name] for name in WORKLOADS if name in sections]
    RESULTS.write_text("\n\n".join([f"{INTRODUCTION}\n{facts}", *ordered]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
