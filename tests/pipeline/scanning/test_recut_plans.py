"""Plans of scans that outlive the tablets they were made for: every row of the snapshot, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import ebla
from ebla.pipeline.scanning.sections import plan_scan, read_section
from ebla.settings import Settings
from tests.support.inside import engine_of, state_of

SCHEMA = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})
BY_HAND = Settings(background_compaction=False)


def keys(count: int) -> list[str]:
    return [f"{n:05}" for n in range(count)]


def filled(db: ebla.Database, count: int = 2_000) -> ebla.Table:
    table = db.create_table("t", SCHEMA, splits=["00700"])
    table.put([{"k": key, "n": n} for n, key in enumerate(keys(count))])
    table.flush()
    table.put([{"k": key, "n": -n} for n, key in enumerate(keys(count)) if n % 3 == 0])
    return table


def compact_one(db: ebla.Database, table: ebla.Table, number: int) -> None:
    """Merge the fragments of one tablet only."""
    tablet = state_of(table).view.metadata.tablets[number]
    assert engine_of(db).compactor.compact_tablet(state_of(table), tablet.id) == len(table.schema.groups)


CHANGES: dict[str, Callable[[ebla.Table], object]] = {
    "split": lambda table: table.split("01000"),
    "join": lambda table: table.join("00000", "00800"),
    "split, compact and join": lambda table: (table.split("00300"), table.compact(), table.join("00000", "00400")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_sections_that_were_planned_before_tablets_changed_are_read_after_it(tmp_path: Path, change: str) -> None:
    with ebla.open(tmp_path / "store", settings=BY_HAND) as db:
        table = filled(db)
        expected = table.scan().to_arrow().to_pylist()
        with db.snapshot():
            plan = plan_scan(db, "t", cores=4, native=False)
            CHANGES[change](table)
            table.erase_range("00100", "00200")
            found = [pa.Table.from_batches(read_section(plan.target, section)) for section in plan.plan.dirty]
            rows = sorted((row for part in found for row in part.to_pylist()), key=lambda row: row["k"])
    assert rows == expected


def test_a_plan_of_clipped_files_reads_no_row_that_is_clipped_off(tmp_path: Path) -> None:
    settings = Settings(background_compaction=False, history_seconds=0.0)
    with ebla.open(tmp_path / "store", settings=settings) as db:
        table = db.create_table("t", SCHEMA)
        table.put([{"k": key, "n": n} for n, key in enumerate(keys(900))])
        table.split("00300")
        table.split("00600")
        table.erase_range("00300", "00600")
        table.flush()
        compact_one(db, table, 1)
        table.join("00000", "00400")
        table.join("00000", "00800")
        assert any(ref.clip for state in state_of(table).view.metadata.tablets[0].groups for ref in state.fragments)
        expected = [n for n in range(900) if not 300 <= n < 600]
        assert [row["n"] for row in table.scan()] == expected
        plan = plan_scan(db, "t", cores=2, native=True)
        for read in plan.plan.clean:
            assert read.ranges, "a file is not read whole of which a part does not count"
        plan = plan_scan(db, "t", cores=2, native=False)
        found = [pa.Table.from_batches(read_section(plan.target, section)) for section in plan.plan.dirty]
        assert sorted(n for part in found for n in part.column("n").to_pylist()) == expected
