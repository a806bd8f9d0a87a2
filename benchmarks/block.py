"""A table to choose the block size by: full scans like large blocks, cold gets like small ones.

For every size, the same rows are flushed to one fragment of a table whose group has that `block_bytes`, and then:

    scan        `table.scan().to_arrow()` by a store opened anew, as in `scan`; beside it `pq.read_table` of its file
    cold get    mean of 50 gets over the whole key range by a store opened anew, as in `get`
    cached get  mean of gets of different keys whose blocks are cached, as in `get`

Sizes take turns, the best of a few rounds counts. There is no peer and no goal: the default should be the smallest
block that still scans within 1.5x of `pq.read_table` and whose cold get stays under 2 ms.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import data, store
from benchmarks.get import WARM_STEP
from benchmarks.harness import Options, interleave, say, scratch, timed
from benchmarks.report import Comparison, Report, microseconds, milliseconds, rate
from benchmarks.scan import ebla_scan, parquet_read, row_groups

SIZES_KIB = (64, 128, 256, 512, 1024, 2048)
SIZES_KIB_QUICK = (128, 512, 2048)
COLD_GETS = 50


def run(options: Options) -> Report:
    """Measure."""
    rows = options.rows_or(full=1_000_000, quick=200_000)
    sizes = SIZES_KIB_QUICK if options.quick else SIZES_KIB
    say("block: preparing rows")
    batches = data.batches(rows)
    keys = sorted(data.keys_of(batches))
    expected = (rows, sum(sum(batch.column("id").to_pylist()) for batch in batches))
    lines = []
    with scratch(options) as root:
        for size in sizes:
            say(f"block: loading with {size} KiB")
            store.load_flushed(root / str(size), [batches], size << 10)
        repeats = options.repeats()
        files = {size: store.fragments(root / str(size)) for size in sizes}
        scans = interleave(repeats, {f"{s} KiB": partial(ebla_scan, root / str(s), expected, []) for s in sizes})
        reads = interleave(repeats, {f"{s} KiB": partial(parquet_read, files[s], expected) for s in sizes})
        colds = interleave(repeats, {f"{s} KiB": partial(_cold, root / str(s), keys) for s in sizes})
        warms = interleave(repeats, {f"{s} KiB": partial(_cached, root / str(s), keys) for s in sizes})
        for size in sizes:
            name = f"{size} KiB"
            blocks = sum(map(row_groups, files[size]))
            megabytes = sum(Path(file).stat().st_size for file in files[size]) / 1e6
            lines += [
                Comparison(
                    f"{name}, scan",
                    rate(rows, scans[name]),
                    "pq.read_table",
                    rate(rows, reads[name]),
                    note=f"{blocks} blocks of about {rows // max(blocks, 1):,} rows, {megabytes:.0f} MB",
                ),
                Comparison(f"{name}, cold get", milliseconds(colds[name], COLD_GETS)),
                Comparison(f"{name}, cached get", microseconds(warms[name], len(_asked(keys)))),
            ]
    return Report("block", f"{rows:,} rows, one fragment, by block size", lines)


def _cold(path: Path, keys: list[bytes]) -> float:
    database, table = store.reopen(path)
    asked = keys[:: len(keys) // COLD_GETS][:COLD_GETS]
    seconds, _ = timed(lambda: [table.get(key) for key in asked])
    database.close()
    return seconds


def _asked(keys: list[bytes]) -> list[bytes]:
    return data.distinct(keys, min(3_000, len(keys) // 2))


def _cached(path: Path, keys: list[bytes]) -> float:
    database, table = store.reopen(path)
    for key in keys[::WARM_STEP]:
        table.get(key)
    asked = _asked(keys)
    seconds, _ = timed(lambda: [table.get(key) for key in asked])
    database.close()
    return seconds
