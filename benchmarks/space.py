"""Space: a table after compaction against the same rows written by `pq.write_table` with the same compression.

The rows are those of all workloads, a little over 100 bytes each, and rows of ten text columns. Ebla's files also have
the txn of every record, the first row of every block, and a bloom filter; and their blocks are small, for single gets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ebla
from benchmarks import data
from benchmarks.harness import Options, check, say, scratch
from benchmarks.report import Comparison, Figure, Report, at_least_ratio

COMPRESSIONS = ("lz4", "zstd", "none")
WITHIN = 1.2


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(1_000_000, 100_000)
    lines = []
    for shape, columns, table in (
        ("4 columns", data.COLUMNS, pa.Table.from_batches(data.batches(rows, batch_rows=10_000)).sort_by("row")),
        ("10 text columns", dict.fromkeys((f"f{n}" for n in range(10)), "string"), _wide(rows // 5)),
    ):
        for compression in COMPRESSIONS:
            say(f"space: {shape}, {compression}")
            with scratch(options) as root:
                own, plain = _ebla(root / "ebla", table, columns, compression), root / "plain.parquet"
                pq.write_table(table, plain, compression=compression)
                lines.append(
                    Comparison(
                        f"{shape}, {compression}, {table.num_rows:,} rows",
                        Figure(own / 2**20, "MiB"),
                        "pq.write_table",
                        Figure(plain.stat().st_size / 2**20, "MiB"),
                        at_least_ratio(1 / WITHIN),
                    )
                )
    return Report("space", "bytes on disk after compaction (ratio: the peer's by Ebla's)", lines)


def _wide(rows: int) -> Any:
    rng = np.random.default_rng(3)
    keys = np.sort(rng.integers(0, 1 << 62, rows))
    columns = {"row": pa.array([b"%016x" % int(key) for key in keys], pa.binary())}
    for n in range(10):
        columns[f"f{n}"] = data._text(rng, rows)
    return pa.table(columns)


def _ebla(path: Path, table: Any, columns: dict[str, str], compression: str) -> int:
    group = ebla.Group("default", columns=columns, compression=compression)
    with ebla.open(path, settings=ebla.Settings(history_seconds=0.0, background_compaction=False)) as database:
        made = database.create_table("t", ebla.Schema(groups=[group]))
        shuffled = table.take(np.random.default_rng(1).permutation(table.num_rows))
        for batch in shuffled.to_batches(max_chunksize=20_000):
            made.put(batch, wait="none")
        made.compact()
        check(sum(batch.num_rows for batch in made.scan(columns=[]).to_batches()), table.num_rows, "rows")
        return sum((path / file).stat().st_size for file in made.files())
