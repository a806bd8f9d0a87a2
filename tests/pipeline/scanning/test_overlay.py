"""Few rows that have to be merged are merged once, as the scan is planned, and no task runs Python for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import ebla
from ebla.pipeline.scanning import overlay as overlays
from ebla.pipeline.scanning.plan import Limits
from ebla.pipeline.scanning.scan import scan
from ebla.pipeline.scanning.sections import SectionPlan, plan_scan
from ebla.settings import Settings
from ebla.storage.cache.block_cache import BlockCache
from tests.pipeline.scanning.scan_world import MERGE

ROWS = 100_000
SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"n": "int64", "text": "string"})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as database:
        table = database.create_table("t", SCHEMA)
        numbers = pa.array(range(ROWS))
        table.put(pa.table({"k": numbers, "n": numbers, "text": pa.array([f"text {k}" for k in range(ROWS)])}))
        table.flush()
        yield database


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for every overlay that is merged; none is remembered from before."""
    made: list[int] = []
    merged = overlays._merged

    def counted(*given: Any) -> Iterator[pa.Table]:
        made.append(1)
        return merged(*given)

    monkeypatch.setattr(overlays, "_merged", counted)
    monkeypatch.setattr(overlays, "_overlays", BlockCache(1 << 20))
    return made


def correct(db: ebla.Database, step: int = 1_000) -> None:
    db.table("t").put([{"k": k, "n": -k} for k in range(0, ROWS, step)])
    db.table("t").erase_many(list(range(5, ROWS, step)))
    db.table("t").flush()


def planned(db: ebla.Database, **options: Any) -> SectionPlan:
    return plan_scan(db, "t", merge_few=True, **options)


def test_corrections_here_and_there_stay_in_catalyst(db: ebla.Database, spark: SparkSession) -> None:
    correct(db)
    frame = scan(db, "t", spark=spark)
    narrow = frame.where("n < 0 and k > 50000").select("n")
    plan = narrow._jdf.queryExecution().executedPlan().toString()
    assert MERGE not in plan
    assert "ReadSchema: struct<k:bigint,n:bigint,_tmp_metadata_row_index:bigint>" in plan, (
        "columns are pruned, the overlaid ones as well"
    )
    assert "LessThan(n,0)" in plan.split("PushedFilters")[1], "and filters are pushed"
    assert sorted(row.n for row in narrow.collect()) == [-k for k in reversed(range(51_000, ROWS, 1_000))]
    assert frame.count() == ROWS - ROWS // 1_000
    assert {row.text for row in frame.where("k = 3000").collect()} == {"text 3000"}, "what was not put again is there"
    assert frame.where("k = 3005").count() == 0


def test_what_is_in_memory_only_is_part_of_the_overlay(db: ebla.Database, spark: SparkSession) -> None:
    db.table("t").put([{"k": 7, "n": 70}, {"k": ROWS + 1, "n": 1}])
    frame = scan(db, "t", spark=spark)
    assert MERGE not in frame._jdf.queryExecution().executedPlan().toString()
    assert sorted(tuple(row) for row in frame.where(f"k = 7 or k > {ROWS}").collect()) == [
        (7, 70, "text 7"),
        (ROWS + 1, 1, None),
    ]


def test_an_overlay_is_merged_once_as_long_as_nothing_is_written(db: ebla.Database, merges: list[int]) -> None:
    correct(db)
    first = planned(db).overlay
    assert first is not None
    assert len(first) == ROWS // 1_000
    assert planned(db).overlay is first
    db.create_table("other", SCHEMA).put({"k": 1, "n": 1})
    assert planned(db).overlay is first, "at a later txn, of the same files"
    assert len(merges) == 1
    db.table("t").put({"k": 9, "n": 90})
    second = planned(db).overlay
    assert second is not None
    assert len(second) == len(first) + 1
    assert planned(db, columns=["n"]).overlay.column_names == ["k", "n"]  # type: ignore[union-attr]
    assert len(merges) == 3


def test_an_overlay_of_the_past_is_not_that_of_the_present(db: ebla.Database, merges: list[int]) -> None:
    before = db.table("t").put([{"k": k, "n": 0} for k in range(10)])
    db.table("t").put([{"k": k, "n": 1} for k in range(10)])
    db.table("t").flush()
    for as_of, n in ((before, 0), (None, 1)):
        found = planned(db, as_of=as_of).overlay
        assert found is not None
        assert {*found.column("n").to_pylist()[:10]} == {n}
    assert len(merges) == 2


def test_much_that_has_to_be_merged_is_left_to_tasks(db: ebla.Database, merges: list[int]) -> None:
    correct(db)
    for limits in (Limits(overlay_rows_max=10), Limits(overlay_read_bytes_max=1)):
        assert planned(db, limits=limits).sections
    assert not planned(db).sections
    assert planned(db, where="n > 5").sections, "the engine filters"
    assert len(merges) == 1


def test_rows_that_come_to_many_bytes_are_left_to_tasks(
    db: ebla.Database, merges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    correct(db)
    monkeypatch.setattr(overlays, "OVERLAY_BYTES_MAX", 100)
    assert planned(db).sections
