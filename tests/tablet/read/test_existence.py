"""Which rows exist is told as a scan tells it, whatever was put, erased, flushed, split and compacted."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import ebla
from ebla.direct.views import which_exist
from tests.support.inside import engine_of, state_of

SCHEMA = ebla.Schema(
    key={"k": "int64"},
    groups=[
        ebla.Group("a", columns={"x": "int64"}),
        ebla.Group("b", columns={"y": "string"}),
        ebla.Group("c", families=["f"]),
    ],
)
KEYS = 400


def existing(table: ebla.Table, as_of: int | None = None) -> list[int]:
    state, store = state_of(table), engine_of(table)
    rows = state.codec.encode_arrays([pa.array(range(KEYS), pa.int64())])
    found = which_exist(state.view, state.reader, rows, as_of or store.sequencer.committed)
    return [int(key) for key in np.flatnonzero(found)]


def scanned(table: ebla.Table, as_of: int | None = None) -> list[int]:
    return [row["k"] for row in table.scan(columns=[], as_of=as_of)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("erases", [False, True])
def test_rows_exist_that_a_scan_shows(tmp_path: Path, seed: int, erases: bool) -> None:
    dice = random.Random(seed)
    with ebla.open(tmp_path / "store") as db:
        table = db.create_table("t", SCHEMA, splits=[(100,), (250,)])
        moments: list[tuple[int, list[int]]] = []
        for _ in range(12):
            keys = dice.sample(range(KEYS), 30)
            match dice.choice(["x", "y", "f", "flush", "compact", "erase", "range"]):
                case "x":
                    table.put([{"k": key, "x": 1} for key in keys])
                case "y":
                    table.put([{"k": key, "y": None} for key in keys])
                case "f":
                    table.put([{"k": key, "f:q": b"1"} for key in keys])
                case "flush":
                    table.flush()
                case "compact":
                    table.compact()
                case "erase" if erases:
                    table.erase_many(keys)
                case "range" if erases:
                    table.erase_range(min(keys), min(keys) + 60)
            assert existing(table) == scanned(table)
            moments.append((engine_of(table).sequencer.committed, scanned(table)))
        for txn, then in moments[1:]:
            assert existing(table, txn) == then == scanned(table, txn)


def test_only_blocks_that_may_have_the_rows_are_read(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "store") as db:
        schema = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"x": "int64"}, block_bytes=4096)])
        table = db.create_table("t", schema)
        table.put(pa.table({"k": range(20_000), "x": range(20_000)}))
        table.flush()
        state = state_of(table)
        (ref,) = state.view.metadata.tablets[0].groups[0].fragments
        fragment = state.reader.fragment(ref)
        assert len(fragment.block_rows) > 10
        read: list[tuple[int, int]] = []
        original = fragment.read_blocks

        def watched(begin: int, end: int, names: list[str]) -> pa.Table:
            read.append((begin, end))
            return original(begin, end, names)

        fragment.read_blocks = watched
        rows = state.codec.encode_arrays([pa.array([5, 10_000, 19_999], pa.int64())])
        assert which_exist(state.view, state.reader, rows, engine_of(table).sequencer.committed).all()
        assert sum(end - begin for begin, end in read) == 3
