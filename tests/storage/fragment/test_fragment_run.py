"""How large the blocks of loaded and compacted files are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ebla
from ebla.model.declaration import BLOCK_BYTES_DEFAULT
from ebla.storage.fragment.fragment_run import BLOCK_BYTES

ROWS = 60_000
COLUMNS = {"a": pa.int64(), "b": pa.int64(), "c": pa.int64()}


def _block_rows(root: Path, before: set[Path]) -> int:
    """Return how many rows the first block of the largest file has that was not there before."""
    made = max(set(root.rglob("*.parquet")) - before, key=lambda file: file.stat().st_size)
    return int(pq.read_metadata(made).row_group(0).num_rows)


def _written(root: Path, **group: object) -> tuple[int, int]:
    """Return the rows in a block of a flushed file, and of what a compaction makes of it."""
    rows = pa.table({"id": range(ROWS), **{name: range(ROWS) for name in COLUMNS}})
    schema = ebla.Schema(key={"id": "int64"}, groups=[ebla.Group("g", columns=COLUMNS, **group)])  # type: ignore[arg-type]
    with ebla.open(root) as db:
        table = db.create_table("t", schema)
        table.put(rows)
        table.flush()
        flushed = _block_rows(root, set())
        before = set(root.rglob("*.parquet"))
        table.put(rows.slice(0, 100))
        table.flush()
        table.compact()
        return flushed, _block_rows(root, before)


def test_blocks_of_compacted_files_are_larger_than_of_flushed_ones(tmp_path: Path) -> None:
    flushed, compacted = _written(tmp_path)
    assert compacted == pytest.approx(flushed * BLOCK_BYTES / BLOCK_BYTES_DEFAULT, rel=0.3)


def test_blocks_are_as_large_everywhere_as_a_group_says(tmp_path: Path) -> None:
    flushed, compacted = _written(tmp_path, block_bytes=64 << 10)
    assert compacted == pytest.approx(flushed, rel=0.3)
