"""What docs/guarantees.md says of a commit that spans tablets: readers and crashes see all of it or nothing."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import ebla
from ebla.settings import Settings
from ebla.tablet.write_path import WritePath
from tests.support.inside import abandon
from tests.support.logs import without_reserved

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "int64"})
CALM = Settings(background_compaction=False)
ROWS = 30


def batch(value: int) -> pa.Table:
    return pa.table({"k": range(ROWS), "v": [value] * ROWS})


def values(table: ebla.Table) -> set[int]:
    return set(table.scan().to_arrow()["v"].to_pylist())


def test_a_crash_leaves_all_of_a_put_over_several_tablets_or_nothing(tmp_path: Path) -> None:
    db = ebla.open(tmp_path / "s", settings=CALM)
    table = db.create_table("t", SCHEMA, splits=[10, 20])
    table.put(batch(1))
    (segment,) = (tmp_path / "s").glob("log/*/*.log")
    before = without_reserved(segment)
    table.put(batch(2))
    abandon(db)
    after = without_reserved(segment)
    seen = set()
    for size in (before, before + 1, (before + after) // 2, after - 1, after):
        copy = Path(shutil.copytree(tmp_path / "s", tmp_path / f"cut-{size}"))
        (cut,) = copy.glob("log/*/*.log")
        with cut.open("r+b") as file:
            file.truncate(size)
        try:
            with ebla.open(copy, settings=CALM) as again:
                rows = again.table("t").scan().to_arrow()
                assert rows.num_rows == ROWS
                (value,) = set(rows["v"].to_pylist())
                seen.add(value)
        except ebla.StoreError:
            assert size < after  # what was acknowledged is missing, and that was noticed
    assert 2 in seen


def test_a_reader_sees_all_of_a_put_over_several_tablets_or_nothing(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        table = db.create_table("t", SCHEMA, splits=[10, 20])
        table.put(batch(0))
        done = threading.Event()

        def write() -> None:
            for value in range(1, 100):
                table.put(batch(value))
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        newest = 0
        while not done.is_set():
            (value,) = values(table)
            assert value >= newest
            newest = value
        writer.join()
        assert values(table) == {99}


def test_a_batch_of_rows_in_several_tablets_is_checked_and_written_as_one(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        table = db.create_table("t", SCHEMA, splits=[10, 20])
        read = table.put(batch(0))
        table.put({"k": 25, "v": 1})
        with pytest.raises(ebla.Conflict):
            table.put([{"k": 5, "v": 2}, {"k": 25, "v": 2}], if_unchanged_since=read)
        assert (table.get(5)["v"], table.get(25)["v"]) == (0, 1)


def test_what_is_logged_survives_a_crash_before_metadata_knows_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = ebla.open(tmp_path / "s", settings=CALM)
    table = db.create_table("t", SCHEMA)
    monkeypatch.setattr(WritePath, "_take_log", lambda *arguments: None)
    table.put({"k": 1, "v": 1}, wait="logged")
    abandon(db)
    monkeypatch.undo()
    with ebla.open(tmp_path / "s", settings=CALM) as again:
        assert again.table("t").get(1) == {"k": 1, "v": 1}


def test_as_of_shows_old_rows_under_the_columns_of_today(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"v": "int64", "w": "int64"}))
        txn = table.put({"k": 1, "v": 1, "w": 1})
        db.alter_table("t", drop_columns=["w"], add_columns={"z": "int64"})
        assert table.get(1, as_of=txn) == {"k": 1, "v": 1, "z": None}
