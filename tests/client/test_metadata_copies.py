"""METADATA of a store in three directories: any one may be lost or damaged, and with two lost nothing is changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ebla
from ebla.client.embedded.coordination_place import connect_at
from ebla.clock import SystemClock
from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.values.table_config import TableConfig, config_path, encode_config
from ebla.metadata.values.transaction_file import SnapshotRecord, encode
from ebla.storage.files.local_files import LocalFiles
from tests.support.inside import state_of

SCHEMA = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})
CALM = ebla.Settings(background_compaction=False, metadata_snapshot_every=4)


class Scene:
    """A store and its further directories of METADATA."""

    def __init__(self, path: Path) -> None:
        self.root = path / "store"
        self.further = [path / "disk-2", path / "disk-3"]
        with self.open(metadata=self.further) as db:
            table = db.create_table("t", SCHEMA, splits=["m"])
            self.table_id = state_of(table).id
            table.put([{"k": "a", "n": 1}, {"k": "z", "n": 2}])
            table.flush()

    def open(self, **options: Any) -> ebla.Database:
        return ebla.open(self.root, settings=CALM, **options)

    @property
    def directories(self) -> list[Path]:
        return [self.root, *self.further]

    def config(self) -> TableConfig:
        with connect_at(self.root, SystemClock(), read_only=True) as coordination:
            directory = TableDirectory(coordination, SystemClock())
            return directory.read(directory.find("t"))[0]

    def files(self, directory: Path) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in sorted((directory / "metadata").rglob("*.meta"))}

    def check_alike(self) -> None:
        """Every directory alone has what is current; what is in two of them is the same in both."""
        found: dict[str, bytes] = {}
        for directory in self.directories:
            for name, content in self.files(directory).items():
                assert found.setdefault(name, content) == content
            store = MetadataStore(LocalFiles(directory))
            assert store.load(self.table_id, self.config().metadata_txnid).txnid == self.config().metadata_txnid


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def rows(db: ebla.Database) -> dict[str, int]:
    return {row["k"]: row["n"] for row in db.table("t").scan()}


def write(db: ebla.Database, key: str, n: int) -> None:
    """Change METADATA: a flush."""
    db.table("t").put({"k": key, "n": n})
    db.table("t").flush()


def test_every_change_is_in_all_directories_and_the_same_everywhere(scene: Scene) -> None:
    scene.check_alike()
    assert len(scene.config().metadata_servers) == 3
    with scene.open() as db:  # they are remembered
        for n in range(10):
            write(db, f"k{n}", n)
        db.table("t").split("f")
        db.alter_table("t", add_columns={"s": "string"})
    scene.check_alike()
    assert ebla.verify(scene.root).is_clean
    with scene.open(read_only=True) as db:
        assert len(rows(db)) == 12


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_with_one_directory_lost_it_goes_on_and_the_lost_one_is_filled_again(scene: Scene, lost: int) -> None:
    directory = scene.directories[lost]
    shutil.rmtree(directory / "metadata" if lost == 0 else directory)
    with scene.open(read_only=True) as db:
        assert rows(db) == {"a": 1, "z": 2}
    with scene.open() as db:
        assert rows(db) == {"a": 1, "z": 2}
        write(db, "b", 3)
        db.create_table("more", SCHEMA).put({"k": "x", "n": 1})
    if lost:
        assert not directory.exists(), "an unmounted disk is not mistaken for an empty one"
        findings = [finding for finding in ebla.verify(scene.root).findings if finding.kind == "copy"]
        assert len(findings) == 2
        assert all("is not there" in finding.text for finding in findings)
    with scene.open(metadata=scene.further) as db:
        assert rows(db) == {"a": 1, "b": 3, "z": 2}
        write(db, "c", 4)
    scene.check_alike()
    assert ebla.verify(scene.root).is_clean


def test_with_two_directories_lost_it_is_read_and_every_change_is_refused(scene: Scene) -> None:
    before = scene.config()
    for directory in scene.further:
        directory.rename(directory.with_suffix(".away"))
    with scene.open() as db:
        assert rows(db) == {"a": 1, "z": 2}
        with pytest.raises(ebla.EblaError, match="majority"):
            db.create_table("more", SCHEMA)
        with pytest.raises(ebla.EblaError, match="majority"):
            db.table("t").split("c")
        assert db.tables() == ["t"]
    assert scene.config() == before
    assert list(scene.files(scene.root)) == list(scene.files(scene.further[0].with_suffix(".away")))
    for directory in scene.further:
        directory.with_suffix(".away").rename(directory)
    with scene.open() as db:
        write(db, "b", 3)
        assert rows(db) == {"a": 1, "b": 3, "z": 2}
    scene.check_alike()


def test_a_directory_that_was_away_is_never_taken_for_what_is_current(scene: Scene) -> None:
    stale = scene.further[1]
    shutil.copytree(stale, stale.with_suffix(".old"))
    with scene.open() as db:
        for n in range(9):
            write(db, "a", n)
    shutil.rmtree(stale)
    stale.with_suffix(".old").rename(stale)  # a disk that comes back as it was long ago
    shutil.rmtree(scene.root / "metadata")
    shutil.rmtree(scene.further[0])
    for read_only in (True, False):
        with scene.open(read_only=read_only) as db, pytest.raises(ebla.TableDamaged, match=r"\.meta is missing"):
            db.table("t")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_damage_at_every_byte_is_found_and_fetched_again_from_another_directory(scene: Scene, place: int) -> None:
    name = f"{scene.config().metadata_txnid}.meta"
    (file,) = (scene.directories[place] / "metadata").rglob(name)
    whole = file.read_bytes()
    for position in range(7 * place, len(whole), 48):  # every single one is tried in tests of the servers themselves
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(bytes(damaged))
        if position < 50:  # reading changes nothing, and is not misled
            with scene.open(read_only=True) as db:
                assert rows(db) == {"a": 1, "z": 2}
            assert file.read_bytes() == bytes(damaged)
            assert [finding.kind for finding in ebla.verify(scene.root).findings] == ["copy"]
        scene.open().close()
        assert file.read_bytes() == whole
        assert file.with_suffix(".meta.damaged").read_bytes() == bytes(damaged), "it is kept beside"
    scene.check_alike()


def test_repair_fetches_what_a_directory_lacks(scene: Scene) -> None:
    name = f"{scene.config().metadata_txnid}.meta"
    (file,) = (scene.further[0] / "metadata").rglob(name)
    file.unlink()
    (finding,) = ebla.verify(scene.root).findings
    assert (finding.kind, finding.table, finding.repair) == ("copy", "t", "fetch it from another directory")
    assert ebla.repair(scene.root, dry_run=False).repaired
    assert ebla.verify(scene.root).is_clean
    scene.check_alike()


def test_a_directory_that_cannot_be_written_is_left_behind_and_catches_up(scene: Scene) -> None:
    files = scene.further[0] / "metadata"
    table = next(files.iterdir())
    with scene.open() as db:
        away = table.rename(files / "away")
        table.write_text("a file where the directory of the table should be")
        for n in range(6):
            write(db, "b", n)
        assert rows(db)["b"] == 5
        table.unlink()
        away.rename(table)
        write(db, "c", 1)
    scene.open().close()
    scene.check_alike()


def test_a_store_in_one_directory_gets_further_ones_when_they_are_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with ebla.open(root, settings=CALM) as db:
        db.create_table("t", SCHEMA).put({"k": "a", "n": 1})
    further = [tmp_path / "disk-2", tmp_path / "disk-3"]
    with ebla.open(root, settings=CALM, metadata=further) as db:
        write(db, "b", 2)
    shutil.rmtree(root / "metadata")
    with ebla.open(root, settings=CALM) as db:
        assert rows(db) == {"a": 1, "b": 2}
        write(db, "c", 3)
    assert ebla.verify(root).is_clean


def test_what_cannot_be_is_refused(scene: Scene, tmp_path: Path) -> None:
    for wrong, word in [
        ("disk", "list of directories"),
        ([scene.further[0]], "as many"),
        ([], "as many"),
        ([scene.further[0], scene.further[0]], "once"),
        ([scene.further[1], scene.further[0]], "another"),
        ([7, 8], "Path"),
    ]:
        with pytest.raises(ebla.RequestError, match=word):
            scene.open(metadata=wrong)
    other = tmp_path / "other"
    with pytest.raises(ebla.RequestError, match="another store"):
        ebla.open(other, metadata=scene.further)
    with pytest.raises(ebla.StoreError, match="cannot be written"):
        scene.open(metadata=[*scene.further, os.devnull + "/x"])
    with scene.open() as db:
        assert rows(db) == {"a": 1, "z": 2}


def test_metadata_of_a_dropped_table_goes_everywhere(scene: Scene) -> None:
    (first, *_) = (scene.root / "metadata").rglob("*.meta")
    first.with_suffix(".meta.damaged").write_bytes(b"of long ago")
    with ebla.open(scene.root, settings=ebla.Settings(garbage_age_seconds=0)) as db:
        db.drop_table("t")
        for _ in range(2):
            db.gc(dry_run=False)
    assert [scene.files(directory) for directory in scene.directories] == [{}, {}, {}]


def test_an_open_store_of_several_directories_is_repaired(scene: Scene) -> None:
    with scene.open() as db:
        db.repair(dry_run=False)
        state = state_of(db.table("t"))
        before = state.view.metadata
        group = before.tablets[0].groups[0]
        wrong = msgspec.structs.replace(group.fragments[0], rows=99)
        groups = (msgspec.structs.replace(group, fragments=(wrong,)),)
        tablets = (msgspec.structs.replace(before.tablets[0], groups=groups), *before.tablets[1:])
        broken = msgspec.structs.replace(before, tablets=tablets, txnid="broken", sequence=before.sequence + 1)
        for directory in scene.directories:
            content = encode(SnapshotRecord(before.txnid, broken.checksum, broken))
            MetadataStore(LocalFiles(directory)).write(scene.table_id, "broken", content)
        with connect_at(scene.root, SystemClock()) as coordination:
            config, version = TableDirectory(coordination, SystemClock()).read(scene.table_id)
            changed = encode_config(msgspec.structs.replace(config, metadata_txnid="broken"))
            coordination.compare_and_set(config_path(scene.table_id), changed, version)
        assert db.repair(dry_run=False).repaired
        write(db, "b", 3)
        assert rows(db) == {"a": 1, "b": 3, "z": 2}
        assert db.verify().is_clean
    scene.check_alike()
