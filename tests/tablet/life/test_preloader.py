"""In-memory groups: their blocks are in the cache before anybody asks, and stay there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ebla
from ebla.settings import KIB, Settings
from ebla.storage.fragment.fragment_file import FragmentFile
from ebla.tablet.life.preloader import classify
from tests.crash.machine import bounded
from tests.support.inside import engine_of, state_of

STILL = Settings(background_compaction=False, history_seconds=0.0)
SCHEMA = ebla.Schema(
    key={"k": "int64"},
    groups=[
        ebla.Group("hot", columns={"a": "int64"}, in_memory=True, block_bytes=4 * KIB),
        ebla.Group("cold", columns={"b": "string"}, block_bytes=4 * KIB),
    ],
)
ROWS = 2_000


def filled(db: ebla.Database) -> ebla.Table:
    table = db.create_table("t", SCHEMA)
    table.put([{"k": k, "a": k, "b": f"b{k}" * 5} for k in range(ROWS)])
    table.flush()
    return table


def classes(db: ebla.Database) -> dict[str, dict[str, Any]]:
    engine_of(db).preloader.round()
    found: dict[str, dict[str, Any]] = db.stats()["block_cache"]["classes"]
    return found


def test_the_blocks_of_an_in_memory_group_are_loaded_after_a_flush_and_a_compaction(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        table = filled(db)
        first = classes(db)
        assert first["1"]["files"] == 1
        assert first["1"]["entries"] >= 4
        assert first["4"]["entries"] == 0
        table.put([{"k": k, "a": -k} for k in range(0, ROWS, 2)])
        table.compact()
        after = classes(db)
        assert after["1"]["files"] == 1
        assert after["1"]["entries"] >= 4
        before = after["1"]["misses"]
        assert table.get(4, columns=["a"]) == {"k": 4, "a": -4}
        assert classes(db)["1"]["misses"] == before


def test_they_are_loaded_when_the_store_is_opened_by_itself(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        filled(db)
    for read_only in (False, True):
        with ebla.open(tmp_path, settings=STILL, read_only=read_only) as db:
            while not db.stats()["block_cache"]["preloaded"]["blocks"]:
                engine_of(db).preloader._worker.wake()
            assert db.stats()["block_cache"]["preloaded"]["failure"] is None


def test_scans_of_an_in_memory_group_read_no_file(tmp_path: Path, monkeypatch: Any) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        table = filled(db)
        classes(db)
        monkeypatch.setattr(FragmentFile, "read_blocks", lambda *_: 1 / 0)
        assert table.scan(columns=["a"]).to_arrow()["a"].to_pylist() == list(range(ROWS))


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False, block_cache_bytes=24 * KIB)) as db:
        table = filled(db)
        found = classes(db)
        assert 0 < found["1"]["bytes"] <= 24 * KIB
        assert db.stats()["block_cache"]["preloaded"]["is_full"]
        assert table.scan(columns=["a"]).to_arrow()["a"].to_pylist() == list(range(ROWS))


def test_a_damaged_file_is_left_out_and_the_others_are_loaded(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        filled(db)
        db.create_table("other", SCHEMA).put({"k": 1, "a": 1})
        db.table("other").flush()
        (ref,) = state_of(db.table("t")).view.metadata.tablets[0].groups[0].fragments
    (tmp_path / ref.file).write_bytes(b"not a fragment")
    with ebla.open(tmp_path, settings=STILL) as db:
        engine_of(db).preloader.round()
        preloaded = db.stats()["block_cache"]["preloaded"]
        assert ref.file in preloaded["failure"]
        assert preloaded["blocks"] >= 1
        assert db.table("other").get(1) == {"k": 1, "a": 1, "b": None}


def test_a_file_of_a_clone_is_classified_by_all_who_name_it(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        table = filled(db)
        clone = db.clone_table("t", "clone")
        both = [state_of(t).view.metadata for t in (table, clone)]
        assert classify(both) == classify(both[:1])
        assert list(classify(both).values()) == [1]
        assert classify([]) == {}


def test_files_whose_columns_got_wider_types_are_in_memory_like_others(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        table = db.create_table(
            "t", ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("hot", columns={"a": "int32"}, in_memory=True)])
        )
        table.put([{"k": k, "a": k} for k in range(ROWS)])
        db.alter_table("t", change_types={"a": "int64"})
        loaded = classes(db)
        assert loaded["1"]["entries"] >= 1
        assert loaded["4"]["entries"] == 0
        assert table.get(4) == {"k": 4, "a": 4}
        assert classes(db)["4"]["entries"] == 0


def test_a_group_that_is_altered_to_be_in_memory_is_loaded_by_itself(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"a": "int64"}))
        table.put([{"k": k, "a": k} for k in range(ROWS)])
        table.flush()
        db.alter_table("t", change_groups={table.schema.groups[0].name: {"in_memory": True}})

        def wait() -> None:
            while not db.stats()["block_cache"]["preloaded"]["blocks"]:
                engine_of(db).preloader._worker.wake()

        bounded(wait)


def test_a_table_that_is_taken_offline_is_not_in_memory_and_comes_back_into_it(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        filled(db)
        before = classes(db)["1"]["entries"]
        db.unload_table("t")
        assert classes(db)["1"] == classes(db)["1"] | {"files": 0, "entries": 0}
        db.load_table("t")
        assert classes(db)["1"]["entries"] == before
        db.unload_table("t")
        db.load_table("t")
        assert classes(db)["1"]["entries"] == before, "it came back before anybody looked"
        db.unload_table("t")
    with ebla.open(tmp_path, settings=STILL) as db:
        assert classes(db)["1"]["files"] == 0


def test_a_clone_that_is_taken_offline_leaves_its_origin_in_memory(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=STILL) as db:
        filled(db)
        before = classes(db)["1"]["entries"]
        db.clone_table("t", "clone")
        db.unload_table("clone")
        assert classes(db)["1"]["entries"] == before
