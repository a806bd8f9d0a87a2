"""Recovery: opening after a kill, and opening after a clean close.

**After a kill.** A child process writes durable batches of 1,000 rows (and, for the line "single puts", single rows
from 16 threads), with flush limits so high that everything stays in the log, and kills itself with SIGKILL after its
last acknowledgement. The parent takes a copy of the files for every round and times from `ebla.open` to the answer of
a first `get`, so that a recovery put off to the first read would count too. The rate is bytes of log, trailing zeros of
reserved space left out, over that time. rocksdict does the same: its own log, killed the same way, opening and one
get. The number of rows is checked afterwards.

**After a clean close.** Stores of growing size, default settings, flushed and closed, so that no remainder of the log,
which has nothing to do with the size, is replayed. Timed is `ebla.open` until it returns, best of a few; the largest
store is compared with the smallest, and a ratio near 1 is independence of the size. The goal allows a factor of 1.5 for
the noise of a measure of milliseconds. The lines "and a first get" go on to the answer of one get: that opens the
footers of all fragments the key may be in, so it grows with their number: no part of the goal, but of the truth.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import data, store
from benchmarks.harness import Options, check, deal, in_threads, interleave, say, scratch, timed
from benchmarks.peers import Rocks
from benchmarks.report import Comparison, Figure, Report, at_least, at_least_ratio, milliseconds, rate

KEPT_IN_LOG = 4 << 30


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(full=1_000_000, quick=200_000)
    sizes = [100_000, 1_000_000] if options.quick else [100_000, 1_000_000, 10_000_000]
    with scratch(options) as root:
        lines = [*_after_kill(root, rows, options), *_after_close(root, sizes, options)]
    return Report("replay", f"{rows:,} rows in the log at a kill; stores of up to {sizes[-1]:,} rows closed", lines)


# --- after a kill --------------------------------------------------------------------------------


def _after_kill(root: Path, rows: int, options: Options) -> list[Comparison]:
    singles = 4_000 if options.quick else 20_000
    for name, child, count in (
        ("ebla", _ebla_child, rows),
        ("rocks", _rocks_child, rows),
        ("singles", _ebla_singles_child, singles),
    ):
        say(f"replay: writing {name}, to be killed")
        process = multiprocessing.get_context("spawn").Process(target=child, args=(root / name, count))
        process.start()
        process.join()
        check(process.exitcode, -signal.SIGKILL, f"exit of the child that wrote {name}")
    bytes_ebla = store.log_bytes(root / "ebla")
    bytes_singles = store.log_bytes(root / "singles")
    bytes_rocks = sum(len(file.read_bytes().rstrip(b"\0")) for file in (root / "rocks").glob("*.log"))
    best = interleave(
        options.repeats(),
        {
            "Ebla": partial(_ebla_recovery, root / "ebla", rows),
            "rocksdict": partial(_rocks_recovery, root / "rocks", rows),
            "single puts": partial(_ebla_recovery, root / "singles", singles),
        },
    )
    return [
        Comparison(
            "after a kill, log",
            Figure(bytes_ebla / 1e6 / best["Ebla"], "MB/s"),
            "rocksdict",
            Figure(bytes_rocks / 1e6 / best["rocksdict"], "MB/s"),
            at_least(200, "MB/s"),
            f"{bytes_ebla / 1e6:.0f} MB of log in {best['Ebla']:.2f} s, "
            f"rocksdict {bytes_rocks / 1e6:.0f} MB in {best['rocksdict']:.2f} s",
        ),
        Comparison("after a kill, rows", rate(rows, best["Ebla"]), "rocksdict", rate(rows, best["rocksdict"])),
        Comparison(
            "after a kill, rows of single puts",
            rate(singles, best["single puts"]),
            note=f"{bytes_singles / 1e6:.1f} MB of log in {best['single puts']:.2f} s",
        ),
    ]


def _ebla_child(path: Path, rows: int) -> None:
    _, table = store.create(path, store.NO_FLUSH)
    for batch in data.stream(rows):
        table.put(batch)
    os.kill(os.getpid(), signal.SIGKILL)


def _ebla_singles_child(path: Path, rows: int) -> None:
    _, table = store.create(path, store.NO_FLUSH)

    def put_each(share: Any) -> None:
        for row in share:
            table.put(row)

    in_threads(put_each, deal(data.dicts(data.batch(0, rows)), 16))
    os.kill(os.getpid(), signal.SIGKILL)


def _rocks_child(path: Path, rows: int) -> None:
    peer = Rocks(path, write_buffer_bytes=KEPT_IN_LOG)
    for batch in data.stream(rows):
        peer.put_batch(data.pairs(batch))
    os.kill(os.getpid(), signal.SIGKILL)


def _ebla_recovery(killed: Path, rows: int) -> float:
    return _recovery(killed, partial(_open_and_get, key=_first_key(rows)), partial(_count_ebla, rows=rows))


def _rocks_recovery(killed: Path, rows: int) -> float:
    def open_and_get(path: Path) -> Any:
        peer = Rocks(path, write_buffer_bytes=KEPT_IN_LOG)
        check(peer.get(_first_key(rows)) is None, False, "the first row after recovery is missing in rocksdict")
        return peer

    def count(peer: Any) -> None:
        check(len(peer.scan()), rows, "rows of rocksdict after recovery")
        peer.close()

    return _recovery(killed, open_and_get, count)


def _recovery(killed: Path, open_and_get: Callable[[Path], Any], finish: Callable[[Any], None]) -> float:
    """Time opening a fresh copy of what the kill left, so that every round meets the same files."""
    copy = killed.with_name(killed.name + "-copy")
    shutil.copytree(killed, copy)
    seconds, opened = timed(lambda: open_and_get(copy))
    finish(opened)
    shutil.rmtree(copy)
    return seconds


def _open_and_get(path: Path, key: bytes) -> Any:
    database, table = store.reopen(path, store.NO_FLUSH)
    check(table.get(key) is None, False, "the first row after reopening is missing")
    return database, table


def _count_ebla(opened: Any, rows: int) -> None:
    database, table = opened
    found = sum(batch.num_rows for batch in table.scan(columns=["id"]).to_batches())
    check(found, rows, "rows of Ebla after recovery")
    database.close()


def _first_key(rows: int) -> bytes:
    first = data.batch(0, rows if rows < data.BATCH_ROWS else data.BATCH_ROWS)
    return bytes(first.column("row")[0].as_py())


# --- after a clean close -------------------------------------------------------------------------


def _after_close(root: Path, sizes: list[int], options: Options) -> list[Comparison]:
    contenders: dict[str, Callable[[], float]] = {}
    with_get: dict[int, list[float]] = {rows: [] for rows in sizes}
    for rows in sizes:
        say(f"replay: a store of {rows:,} rows, to be closed")
        path = root / f"closed-{rows}"
        database, table = store.create(path)
        for batch in data.stream(rows):
            table.put(batch, wait="none")
        table.flush()
        database.close()
        contenders[f"{rows:,} rows"] = partial(_reopening, path, with_get[rows])
    best = interleave(options.repeats(5), contenders)
    smallest = sizes[0]
    lines = [Comparison(f"open after a close, {smallest:,} rows", milliseconds(best[f"{smallest:,} rows"]))]
    for rows in sizes[1:]:
        goal = at_least_ratio(1 / 1.5) if rows == sizes[-1] else None
        fragments = len(store.fragments(root / f"closed-{rows}"))
        peer = f"Ebla, {smallest:,} rows"
        lines += [
            Comparison(
                f"open after a close, {rows:,} rows",
                milliseconds(best[f"{rows:,} rows"]),
                peer,
                milliseconds(best[f"{smallest:,} rows"]),
                goal,
                f"{fragments} fragments",
            ),
            Comparison(
                f"and a first get, {rows:,} rows",
                milliseconds(min(with_get[rows])),
                peer,
                milliseconds(min(with_get[smallest])),
            ),
        ]
    return lines


def _reopening(path: Path, with_get: list[float]) -> float:
    key = _first_key(data.BATCH_ROWS)
    seconds, (database, table) = timed(lambda: store.reopen(path))
    more, row = timed(lambda: table.get(key))
    check(row is None, False, "the first row after reopening is missing")
    database.close()
    with_get.append(seconds + more)
    return seconds
