"""Full scan, all columns, after a single flush.

Set-up (not timed): the same rows in every store; Ebla has flushed them to one fragment, rocksdict has compacted them
to one sorted run, which is where it reads fastest. Every round opens Ebla and rocksdict anew, so that the first scan
finds empty caches (the file system's cache is warm for everybody) and really reads its files; a second scan by the
same opening follows. Opening itself is not timed, but what the first scan opens (footers, files) is.

    Ebla             `table.scan().to_arrow()`: typed columns in key order
    rocksdict, lmdb  the iterator, consumed into a list of (key, value) bytes; values stay encoded
    pq.read_table    the same Parquet fragments and the same columns, by pyarrow with its default threads: the limit
    sqlite           `SELECT ... ORDER BY row`, fetchall
    duckdb           its own table to Arrow, in table order and in key order
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import data, store
from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.peers import Duck, Lmdb, Rocks, Sqlite
from benchmarks.report import Comparison, Report, at_least_ratio, rate, within_time


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(full=1_000_000, quick=200_000)
    say("scan: preparing rows")
    batches = data.batches(rows)
    expected = _sum(pa.Table.from_batches(batches))
    with scratch(options) as root:
        say("scan: loading")
        store.load_flushed(root / "ebla", [batches])
        files = store.fragments(root / "ebla")
        peer = Rocks(root / "rocks")
        for batch in batches:
            peer.put_batch(data.pairs(batch))
        peer.compact()
        peer.close()
        again: dict[str, list[float]] = {"Ebla": [], "rocksdict": []}
        best = interleave(
            options.repeats(4),
            {
                "Ebla": partial(ebla_scan, root / "ebla", (rows, expected), again["Ebla"]),
                "rocksdict": partial(rocks_scan, root / "rocks", rows, again["rocksdict"]),
                "pq.read_table": partial(parquet_read, files, (rows, expected)),
            },
        )
        first = rate(rows, best["Ebla"])
        second = rate(rows, min(again["Ebla"]))
        shape = f"{len(files)} fragment{'s' * (len(files) != 1)}, {sum(map(row_groups, files))} blocks"
        lines = [
            Comparison("first scan", first, "rocksdict", rate(rows, best["rocksdict"]), at_least_ratio(4), shape),
            Comparison("first scan", first, "pq.read_table", rate(rows, best["pq.read_table"]), within_time(1.5)),
            Comparison("second scan", second, "rocksdict", rate(rows, min(again["rocksdict"]))),
            Comparison("second scan", second, "pq.read_table", rate(rows, best["pq.read_table"])),
        ]
        for name, seconds in _others(root, batches, rows, options).items():
            lines.append(Comparison("first scan", first, name, rate(rows, seconds)))
    return Report("scan", f"full scan of {rows:,} rows, all columns, after a single flush", lines)


def _others(root: Path, batches: list[Any], rows: int, options: Options) -> dict[str, float]:
    """Return the best seconds of the stores that have no goal."""
    say("scan: loading the other peers")
    ordered = pa.Table.from_batches(batches).sort_by("row")
    lmdb, sqlite, duck = Lmdb(root / "lmdb"), Sqlite(root / "sqlite"), Duck(root / "duck")
    for batch in ordered.to_batches(max_chunksize=50_000):
        lmdb.put_batch(data.pairs(batch))
        sqlite.put_batch(data.tuples(batch))
    duck.load(pa.Table.from_batches(batches))

    def scan(work: Callable[[], Any]) -> float:
        seconds, result = timed(work)
        check(len(result), rows, "rows scanned in a peer")
        return seconds

    best = interleave(
        min(options.repeats(), 2),
        {
            "lmdb": lambda: scan(lmdb.scan),
            "sqlite": lambda: scan(sqlite.scan),
            "duckdb": lambda: scan(lambda: duck.scan(ordered=False)),
            "duckdb, in key order": lambda: scan(lambda: duck.scan(ordered=True)),
        },
    )
    for peer in (lmdb, sqlite, duck):
        peer.close()
    return best


def ebla_scan(path: Path, expected: tuple[int, int], again: list[float]) -> float:
    """Open, scan twice, close; return the seconds of the first scan and append those of the second to `again`."""
    database, table = store.reopen(path)
    seconds, result = timed(lambda: table.scan().to_arrow())
    check((result.num_rows, _sum(result)), expected, "rows and sum of ids in a scan of Ebla")
    check(tuple(sorted(result.column_names)), tuple(sorted(data.NAMES)), "columns of a scan of Ebla")
    del result
    second, result = timed(lambda: table.scan().to_arrow())
    del result
    database.close()
    again.append(second)
    return seconds


def rocks_scan(path: Path, rows: int, again: list[float], **opening: Any) -> float:
    """The same on rocksdict."""
    peer = Rocks(path, **opening)
    seconds, result = timed(peer.scan)
    check(len(result), rows, "rows in a scan of rocksdict")
    del result
    second, result = timed(peer.scan)
    del result
    peer.close()
    again.append(second)
    return seconds


def parquet_read(files: list[str], expected: tuple[int, int] | None) -> float:
    """Read the key and value columns of the files with pyarrow alone; return the seconds."""
    seconds, result = timed(lambda: pq.read_table(files, columns=list(data.NAMES)))
    if expected is not None:
        check((result.num_rows, _sum(result)), expected, "rows and sum of ids in the Parquet fragments")
    return seconds


def row_groups(file: str) -> int:
    """Return how many blocks a fragment has."""
    return int(pq.read_metadata(file).num_row_groups)


def _sum(table: Any) -> int:
    return int(pc.sum(table.column("id")).as_py())
