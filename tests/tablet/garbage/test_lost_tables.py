"""A catalog that lost tables stops garbage collection; what a killed creation or a drop leaves goes in the end."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.clock import SystemClock
from ebla.coordination.service import CoordinationService, Create
from ebla.coordination.sqlite import FILE_NAME, SqliteCoordination
from ebla.errors import Corruption, EblaError, TableExists
from ebla.metadata.server.dropped import DroppedTables
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.table_config import config_path, name_path
from ebla.settings import Settings
from tests.support.inside import coordination_of, engine_of, state_of

AT_ONCE = Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
COUNTS = ebla.Schema(key={"word": "string"}, groups=[ebla.Group("g", columns={"n": "int64"}, max_versions=1)])


def filled(db: ebla.Database, name: str) -> str:
    """Make a table with a fragment; return its id."""
    table = db.create_table(name, COUNTS)
    table.put([{"word": f"w{i}", "n": i} for i in range(9)])
    table.flush()
    return state_of(table).id


def everything(root: Path) -> set[str]:
    found = {*root.glob("fragments/*/*"), *root.glob("metadata/*/*")}
    return {str(path.relative_to(root)) for path in found}


def forget(coordination: CoordinationService, *paths: str) -> None:
    for path in paths:
        node = coordination.read(path)
        assert node is not None
        coordination.delete(path, node.version)


def rounds(db: ebla.Database, count: int) -> None:
    for _ in range(count):
        db.gc(dry_run=False)


# --- a catalog that is not whole -----------------------------------------------------------------


def test_a_table_that_the_catalog_lost_without_a_drop_stops_garbage_collection(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        lost = filled(db, "lost")
        filled(db, "kept")
        db.table("kept").put({"word": "w1", "n": 7})
        db.table("kept").compact()
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        forget(coordination_of(db), config_path(lost), name_path("lost"))
        before = everything(tmp_path)
        for _ in range(3):
            with pytest.raises(Corruption, match=rf"metadata/{lost} .*that nobody dropped.*bring the coordination"):
                db.gc(dry_run=False)
        assert everything(tmp_path) == before
        (found,) = db.verify().findings
        assert (found.kind, found.table) == ("lost table", lost)
        assert "that nobody dropped" in str(db.stats()["garbage"]["failure"])
        looked = db.gc()
        assert (looked.lost_tables, looked.unknown_tables, looked.doomed) == ((lost,), (lost,), ())
        # It is moved away by somebody who does not want it.
        shutil.move(tmp_path / "metadata" / lost, tmp_path.parent / f"{tmp_path.name}-{lost}")
        rounds(db, 2)
        assert not list((tmp_path / "fragments" / lost).glob("*"))


def test_the_first_transaction_alone_stops_it_if_it_names_files_that_nobody_else_names(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        filled(db, "origin")
        clone = state_of(db.clone_table("origin", "clone")).id
        forget(coordination_of(db), config_path(clone), name_path("clone"))
        # What it names belongs to the other as well: nothing depends on it, and it stays.
        rounds(db, 3)
        assert db.gc().unknown_tables == (clone,)
        assert list((tmp_path / "metadata" / clone).glob("*.meta"))
        db.drop_table("origin")
        before = {path for path in everything(tmp_path) if path.startswith("fragments/")}
        for _ in range(3):
            with pytest.raises(Corruption, match=clone):
                db.gc(dry_run=False)
        assert before == {path for path in everything(tmp_path) if path.startswith("fragments/")}


def test_the_log_of_a_table_that_the_catalog_lost_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        lost = state_of(db.create_table("lost", COUNTS)).id
        filled(db, "other")
        db.table("lost").put({"word": "only in the log", "n": 1})
    with SqliteCoordination(tmp_path / FILE_NAME, SystemClock()) as coordination:
        values = {path: coordination.read(path).value for path in (config_path(lost), name_path("lost"))}
        forget(coordination, *values)
    for _ in range(2):
        with ebla.open(tmp_path, settings=AT_ONCE) as db:
            assert db.tables() == ["other"]
            db.table("other").put({"word": "a", "n": 1})
            db.table("other").flush()
    with SqliteCoordination(tmp_path / FILE_NAME, SystemClock()) as coordination:
        coordination.multi([Create(path, value) for path, value in values.items()])
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        assert db.table("lost").get("only in the log")["n"] == 1
    assert f"metadata/{lost} belong to tables that it does not have" in caplog.text


def test_an_empty_catalog_removes_nothing(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        ids = [filled(db, name) for name in ("a", "b")]
        for table_id, name in zip(ids, ("a", "b"), strict=True):
            forget(coordination_of(db), config_path(table_id), name_path(name))
        before = everything(tmp_path)
        with pytest.raises(Corruption):
            rounds(db, 2)
        assert everything(tmp_path) == before


def test_a_catalog_that_went_back_to_an_earlier_state_of_a_table_stops_it(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        path = config_path(filled(db, "t"))
        earlier = coordination_of(db).read(path)
        for n in range(3):
            db.table("t").put({"word": "w1", "n": n})
            db.table("t").flush()
        node = coordination_of(db).read(path)
        coordination_of(db).compare_and_set(path, earlier.value, node.version)
        before = everything(tmp_path)
        for _ in range(3):
            with pytest.raises(Corruption, match=r"transaction \d+ of table .* as the current one"):
                db.gc(dry_run=False)
        assert everything(tmp_path) == before
        coordination_of(db).compare_and_set(path, node.value, node.version + 1)
        rounds(db, 2)


# --- creations that were given up ----------------------------------------------------------------


class Killed(BaseException):
    pass


def killed_creation(db: ebla.Database, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Create a table, and die before a step of it."""

    def dies(*arguments: Any, **options: Any) -> Any:
        raise Killed

    metadata = engine_of(db).metadata
    assert isinstance(metadata, MetadataServer)
    owner, name = {
        "the catalog": (metadata.directory, "create"),
        "the transaction": (metadata._store, "save"),
        "the mark goes": (metadata._store, "announced"),
    }[before]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dies)
        with pytest.raises(Killed):
            db.create_table("half", COUNTS)


@pytest.mark.parametrize("before", ["the catalog", "the transaction"])
def test_what_a_killed_creation_leaves_goes_and_leaves_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        killed_creation(db, monkeypatch, before)
        engine_of(db).lifecycle._in_doubt.clear()  # a process that was killed has no doubts
        assert list(tmp_path.glob("metadata/*/*"))
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        assert db.gc().unknown_tables == ()
        rounds(db, 5)
        assert list(tmp_path.glob("metadata/*")) == []
        assert coordination_of(db).list("tables") == []
        db.create_table("half", COUNTS)


def test_a_creation_that_garbage_collection_gave_up_cannot_become_a_table_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        create = engine_of(db).metadata.directory.create
        # As if another process were creating: they share no lock.
        monkeypatch.setattr(engine_of(db).garbage, "_nothing_adopted", contextlib.nullcontext)

        def late(*arguments: Any) -> Any:
            rounds(db, 2)
            return create(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(engine_of(db).metadata.directory, "create", late)
            with pytest.raises(TableExists):
                db.create_table("late", COUNTS)
        assert db.tables() == []
        db.create_table("late", COUNTS).put({"word": "a", "n": 1})


def test_the_mark_of_a_creation_that_was_finished_goes_and_the_table_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        killed_creation(db, monkeypatch, "the mark goes")
    assert len(list(tmp_path.glob("metadata/*/creating"))) == 1
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        rounds(db, 3)
        assert list(tmp_path.glob("metadata/*/creating")) == []
        assert db.tables() == ["half"]
        db.table("half").put({"word": "a", "n": 1})


# --- dropped tables ------------------------------------------------------------------------------


def test_a_dropped_table_leaves_no_node_and_no_directory_but_its_id_on_record(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        filled(db, "kept")
        gone = [filled(db, name) for name in ("a", "b")]
        db.drop_table("a")
        db.drop_table("b")
        rounds(db, 6)
        assert len(coordination_of(db).list("tables")) == 1
        assert set(DroppedTables(coordination_of(db)).ids()) == set(gone)
        for kind in ("metadata", "fragments"):
            assert len(list((tmp_path / kind).iterdir())) == 1
        assert db.table("kept").scan().count() == 9
        # What comes back late is known to be gone: it goes again, and stops nothing.
        late = tmp_path / "metadata" / gone[0]
        late.mkdir()
        (late / "late.meta").write_bytes(b"written by a process that was stopped for long")
        rounds(db, 3)
        assert not late.exists()
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        assert db.tables() == ["kept"]


def test_an_id_that_is_on_record_as_dropped_makes_no_table_again(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        gone = filled(db, "a")
        initial = engine_of(db).metadata.read(gone)
        db.drop_table("a")
        rounds(db, 5)
        assert coordination_of(db).read(config_path(gone)) is None
        with pytest.raises(TableExists, match="an id is used once"):
            engine_of(db).metadata.create_table("b", gone, initial)


def test_the_record_of_dropped_tables_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.metadata.server.dropped.KEPT_MAX", 3)
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        tombstone = b'{"name":"x","state":"deleted","metadata_txnid":"","metadata_servers":[]}'
        running = b'{"name":"y","state":"running","metadata_txnid":"","metadata_servers":[]}'
        coordination_of(db).multi([Create(config_path(f"id{n}"), tombstone) for n in range(5)])
        coordination_of(db).create(config_path("there"), running)
        dropped = DroppedTables(coordination_of(db))
        assert dropped.bury(["id0", "id1"]) == 2
        assert dropped.bury(["id2", "id3", "id4", "there", "nowhere"]) == 3
        assert dropped.ids() == ["id2", "id3", "id4"]
        assert coordination_of(db).list("tables") == [config_path("there")]
        forget(coordination_of(db), config_path("there"))


# --- flipped bits, from the outside --------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    with ebla.open(root, settings=AT_ONCE) as db:
        for name in ("a", "b", "c"):
            filled(db, name)
        db.snapshot("held")
        filled(db, "dropped")
        db.drop_table("dropped")
        db.gc(dry_run=False)
    return root


def use(root: Path) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        assert db.tables() == ["a", "b", "c"]
        assert list(db.snapshots()) == ["held"]
        assert all(db.table(name).scan().count() == 9 for name in ("a", "b", "c"))
        rounds(db, 2)


def test_a_store_with_a_flipped_bit_in_its_catalog_answers_right_or_says_so_and_loses_no_file(
    tmp_path: Path, store: Path
) -> None:
    content = (store / "coordination.sqlite").read_bytes()
    kept = {str(p.relative_to(store)) for p in store.glob("fragments/*/*") if p.parent.name in _ids(store)}
    outcomes = []
    paths = [found.end() for found in re.finditer(rb"(names|tables|pins)/", content)]
    offsets = [*range(20, len(content), len(content) // 20), *paths[:: max(1, len(paths) // 20)]]
    for number, offset in enumerate(offsets):
        root = tmp_path / str(number)
        shutil.copytree(store, root)
        flipped = bytearray(content)
        flipped[offset] ^= 1 << (number % 8)
        (root / "coordination.sqlite").write_bytes(flipped)
        try:
            use(root)
            outcomes.append("right")
        except EblaError as error:
            outcomes.append(type(error).__name__)
        assert kept <= everything(root)
        shutil.rmtree(root)
    assert "right" in outcomes
    assert "Corruption" in outcomes


def _ids(root: Path) -> set[str]:
    with ebla.open(root, read_only=True) as db:
        return {state_of(db.table(name)).id for name in db.tables()}
