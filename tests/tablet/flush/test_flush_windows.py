"""A flush that goes a window at a time writes what one go would, and takes little more memory than it flushes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import ebla
from ebla.storage.merge.memory import combine
from ebla.storage.record.records import Block
from ebla.tablet.flush import flush_windows
from ebla.tablet.flush.flush_windows import FlushWindows
from tests.support.inside import state_of
from tests.support.records import Cell, ColumnsRun, cell_runs, cells_batch, columns_runs

MIB = 1 << 20


def windows_of(blocks: Sequence[Block], *, is_cells: bool) -> list[pa.RecordBatch]:
    with patch.multiple(flush_windows, WINDOW_BYTES=64, BLOCK_BYTES=0):
        return [window.records for window in FlushWindows(blocks, is_cells=is_cells)]


def check(blocks: Sequence[Block], *, is_cells: bool) -> None:
    windows = windows_of(blocks, is_cells=is_cells)
    whole = combine(blocks, is_cells=is_cells).records
    assert len(windows) > 1 or sum(block.bytes for block in blocks) <= 64 or len(set(whole["_row"].to_pylist())) < 4
    # All have the columns of the whole, in its order.
    assert pa.Table.from_batches(windows).to_pylist() == whole.to_pylist()
    rows = [set(window["_row"].to_pylist()) for window in windows]
    assert sum(map(len, rows)) == len(set().union(*rows)), "no row is in two windows"


@given(columns_runs())
@settings(deadline=None)
def test_windows_of_columns_are_what_is_combined_in_one_go(runs: list[ColumnsRun]) -> None:
    check([Block(run.batch(), txn=run.txn) for run in runs], is_cells=False)


@given(cell_runs())
@settings(deadline=None)
def test_windows_of_cells_are_what_is_combined_in_one_go(runs: list[list[Cell]]) -> None:
    check([Block(cells_batch(run)) for run in runs], is_cells=True)


SCHEMA = ebla.Schema(
    key={"k": "int64", "s": "string"},
    groups=[
        ebla.Group("c", columns={"a": "int64", "b": "string"}, max_versions=1),
        ebla.Group("e", families=["f"], max_versions=2),
    ],
)


@pytest.mark.parametrize("has_erasures", [False, True])
def test_a_flush_in_windows_leaves_every_answer_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_erasures: bool
) -> None:
    monkeypatch.setattr(flush_windows, "WINDOW_BYTES", 2_000)
    monkeypatch.setattr(flush_windows, "BLOCK_BYTES", 0)
    with ebla.open(tmp_path, settings=ebla.Settings(background_compaction=False)) as db:
        table = db.create_table("t", SCHEMA)
        txns = [table.put([{"k": k, "s": "x", "a": k, "b": f"b{k}", "f:q": b"1"} for k in range(200)])]
        for n in range(1, 4):
            txns.append(table.put([{"k": k, "s": "x", "a": -n} for k in range(0, 200, n + 2)]))
            txns.append(table.put({"k": 100, "s": "x", "b": f"again {n}", "f:r": b"%d" % n}))
            if has_erasures:
                txns.append(table.erase((n * 40, "x")))
                txns.append(table.erase_range((n * 50, "a"), (n * 50 + 3, "a")))
        table.put([{"k": k, "s": "y", "b": "new"} for k in range(150, 170)])

        def answers() -> list[Any]:
            now = [list(table.scan()), list(table.scan(versions=3)), table.get((100, "x"))]
            return now + [list(table.scan(as_of=txn)) for txn in txns]

        before = answers()
        windows = [
            len(FlushWindows(m.blocks, is_cells=g == 2))
            for own in state_of(table).view.memory.values()
            for g, m in own.items()
        ]
        assert min(windows) > 3
        table.flush()
        assert not state_of(table).memory_bytes
        assert answers() == before
        assert [tablet["fragments"] for tablet in table.tablets()] == [2]  # one for each group
        table.compact()
        assert answers()[:3] == before[:3]


def test_blocks_of_many_tablets_do_not_make_windows_longer_and_those_on_each_other_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flush_windows, "WINDOW_BYTES", 2_000)
    monkeypatch.setattr(flush_windows, "BLOCK_BYTES", 1_000)

    def block(first: int) -> Block:
        rows = pa.array([b"%06d" % n for n in range(first, first + 40)], pa.binary())
        return Block(pa.record_batch({"_row": rows, "2": [first] * 40}), txn=first + 1)

    side_by_side = FlushWindows([block(n * 40) for n in range(20)], is_cells=False)
    on_each_other = FlushWindows([block(n) for n in range(20)], is_cells=False)
    assert len(side_by_side) > 5 * len(on_each_other)
    for windows in (side_by_side, on_each_other):
        assert sum(window.records.num_rows for window in windows) == 800


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """What takes memory from here on is counted anew."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


def test_a_flush_takes_less_memory_than_it_flushes(tmp_path: Path, pool: pa.MemoryPool) -> None:
    rows, dice = 5_000, np.random.default_rng(1)
    with ebla.open(tmp_path, settings=ebla.Settings(background_compaction=False)) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"v": "binary", "w": "binary"}))
        for begin in range(0, 40 * MIB, rows * 2_048):
            keys = pa.array(dice.permutation(rows) * 100 + begin % 97)
            values = pa.array([dice.bytes(1_024) for _ in range(64)] * (rows // 64 + 1))[:rows]
            table.put(pa.table({"k": keys, "v": values, "w": values}))
        flushed = state_of(table).memory_bytes
        assert flushed >= 40 * MIB
        before, peak = pool.bytes_allocated(), pool.max_memory()
        table.flush()
        assert pool.max_memory() <= max(peak, before + flushed)
