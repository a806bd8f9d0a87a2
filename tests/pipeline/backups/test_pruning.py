"""Pruning of backups: what is not wanted goes, what is left can be restored, wherever a prune is cut off."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.pipeline.backups import pruning
from ebla.pipeline.backups.backup import backup
from ebla.pipeline.backups.manifest import (
    LOCK_NAME,
    MANIFEST_NAME,
    BackedUpFile,
    BackedUpTable,
    BackupManifest,
    check_chain,
    list_backups,
    remove_unfinished,
    write_manifest,
)
from ebla.pipeline.backups.pruning import prune_backups
from ebla.storage.files.local_files import LocalFiles


class Made:
    """A directory of backups that hold one file each, a day apart, the last one of today."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ids: dict[str, str] = {}

    def add(self, name: str, day: int, base: str = "", tables: str = "users", store: str = "s", needs: str = "") -> str:
        """Add a backup of `day` days ago; it has the files of the ones in `needs`, and one of its own."""
        when = datetime.now(UTC) - timedelta(days=day, minutes=-len(self.ids))
        backup_id = f"{when:%Y%m%dT%H%M%S}000-{len(self.ids):08x}"
        own = f"fragments/t/{name}.parquet"
        (self.root / backup_id / "fragments/t").mkdir(parents=True)
        (self.root / backup_id / own).write_bytes(name.encode())
        files = [BackedUpFile(own, len(name), "", backup_id)]
        files += [BackedUpFile(f"fragments/t/{o}.parquet", len(o), "", self.ids[o]) for o in needs]
        manifest = BackupManifest(
            id=backup_id,
            kind="incremental" if base else "full",
            store=store,
            txn=1_000_000 - day * 100 + len(self.ids),
            time=when.isoformat(),
            base=self.ids[base] if base else None,
            chain=[self.ids[o] for o in needs],
            tables=[BackedUpTable(table, table, 1, {}, [], [], None, None, b"") for table in tables.split("+")],
            files=files,
            made_by="test",
        )
        write_manifest(self.root / backup_id, manifest)
        self.ids[name] = backup_id
        return backup_id

    def left(self) -> str:
        """The backups that are there, by their names here; all of them can be restored."""
        found = list_backups(self.root)
        for one in found.complete:
            check_chain(self.root, one)
        return "".join(name for name, backup_id in self.ids.items() if backup_id in [one.id for one in found.complete])

    def prune(self, **more: Any) -> str:
        """Prune, and return what is left."""
        prune_backups(self.root, dry_run=False, **more)
        return self.left()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "backups")


@pytest.fixture
def chains(made: Made) -> Made:
    """Three full backups, A, C and F, with increments."""
    made.add("A", 30)
    made.add("B", 25, base="A", needs="A")
    made.add("C", 20)
    made.add("D", 15, base="C", needs="C")
    made.add("E", 10, base="D", needs="CD")
    made.add("F", 5)
    return made


@pytest.mark.parametrize(
    ("wish", "left"),
    [
        ({"keep": 1}, "F"),
        ({"keep": 2}, "CDEF"),
        ({"keep": 3}, "ABCDEF"),
        ({"keep": 9}, "ABCDEF"),
        ({"older_than": "7d"}, "F"),
        ({"older_than": "12d"}, "CDEF"),  # E needs C and D
        ({"older_than": timedelta(days=22)}, "CDEF"),
        ({"older_than": "26d"}, "ABCDEF"),  # B needs A
        ({"older_than": "1s"}, "F"),  # the newest stays
        ({"older_than": "9999999d"}, "ABCDEF"),
        ({"keep": 1, "older_than": "12d"}, "CDEF"),
        ({"keep": 2, "older_than": "1d"}, "CDEF"),
    ],
)
def test_what_is_wanted_stays_with_all_that_it_needs(chains: Made, wish: dict[str, Any], left: str) -> None:
    planned = prune_backups(chains.root, **wish)
    assert (chains.left(), planned.is_applied) == ("ABCDEF", False)
    assert chains.prune(**wish) == left
    assert {one.id for one in planned.doomed} == {i for name, i in chains.ids.items() if name not in left}
    assert planned.kept == tuple(chains.ids[name] for name in left)
    assert (planned.files, planned.bytes) == (6 - len(left), 6 - len(left))
    assert sorted(entry.name for entry in chains.root.iterdir()) == sorted(planned.kept)


def test_what_stays_only_for_others_is_told(chains: Made) -> None:
    assert prune_backups(chains.root, older_than="12d").needed == (chains.ids["C"], chains.ids["D"])


def test_a_time_may_be_given(chains: Made) -> None:
    before = datetime.now(UTC) - timedelta(days=7)
    assert chains.prune(older_than=before.replace(tzinfo=None).isoformat()) == "F"


def test_the_newest_backup_of_every_table_stays_unless_the_last_may_go(made: Made) -> None:
    made.add("A", 30, tables="users+rides")
    made.add("B", 20, tables="rides")
    made.add("C", 10, tables="users")
    made.add("D", 5, tables="users")
    assert made.prune(keep=1) == "BD"
    assert made.prune(older_than="1d") == "BD"
    assert made.prune(keep=1, even_last=True) == "D"


def test_stores_do_not_count_for_each_other(made: Made) -> None:
    made.add("A", 30, store="one")
    made.add("B", 20, store="two")
    assert made.prune(keep=1) == "AB"


def test_an_increment_that_outlived_its_full_backup_begins_a_chain(made: Made) -> None:
    made.add("A", 30)
    made.add("B", 20, base="A")
    made.add("C", 10, base="B", needs="B")
    assert made.prune(older_than="12d") == "BC"  # neither needs a file of A
    made.add("D", 5)
    assert made.prune(keep=2) == "BCD"
    assert made.prune(keep=1) == "D"


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({}, "say what stays"),
        ({"keep": 0}, "keep cannot be 0"),
        ({"keep": True}, "keep cannot be True"),
        ({"keep": "2"}, "keep cannot be '2'"),
        ({"older_than": "30 days"}, "such as 30d or 12h"),
        ({"older_than": 7}, "not older than 7"),
        ({"older_than": "0d"}, "not older than '0d'"),
    ],
)
def test_a_wish_that_says_nothing_is_refused(chains: Made, wish: dict[str, Any], told: str) -> None:
    with pytest.raises(ebla.RequestError, match=told):
        prune_backups(chains.root, dry_run=False, **wish)
    assert chains.left() == "ABCDEF"


def test_nothing_goes_while_a_manifest_cannot_be_read(chains: Made) -> None:
    file = chains.root / chains.ids["E"] / MANIFEST_NAME
    file.write_bytes(file.read_bytes().replace(b'"incremental"', b'"incRemental"'))
    with pytest.raises(ebla.Corruption, match="nobody knows which backups it needs"):
        prune_backups(chains.root, keep=1, dry_run=False)
    assert len(list_backups(chains.root).complete) == 5


def test_nothing_goes_while_a_backup_is_being_made(chains: Made) -> None:
    files = LocalFiles(chains.root / "20990101T000000000-00000000")
    with files.lock(LOCK_NAME), pytest.raises(ebla.Unavailable, match="is being made"):
        prune_backups(chains.root, keep=1, dry_run=False)
    assert chains.left() == "ABCDEF"
    # One that was killed is no reason.
    assert chains.prune(keep=1) == "F"


class Killed(BaseException):
    """The process ends here: nothing is done after it."""


def test_a_prune_that_is_cut_off_leaves_backups_that_can_be_restored(
    chains: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = last = 0

    def counted(do: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            nonlocal calls
            if calls == last:
                raise Killed
            calls += 1
            do(*args)

        return call

    monkeypatch.setattr(pruning, "_rename", counted(pruning._rename))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    shutil.copytree(chains.root, tmp_path / "copy")
    seen = set()
    for cut in range(10):
        calls, last = 0, cut
        with pytest.raises(Killed):
            prune_backups(chains.root, keep=1, dry_run=False)
        left = chains.left()
        assert left.endswith("F")
        seen.add(left)
        calls, last = 0, 1_000
        remove_unfinished(chains.root, list_backups(chains.root).unfinished)
        assert chains.prune(keep=1) == "F"
        calls = 0
        shutil.copytree(tmp_path / "copy", chains.root, dirs_exist_ok=True)
    assert {"ABCDEF", "ABCDF", "ABCF", "ABF", "AF", "F"} == seen


def test_a_backup_whose_base_is_pruned_before_it_begins_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    module = sys.modules[backup.__module__]
    captured = module.captured

    def late(*more: Any) -> Any:
        prune_backups(there, keep=1, dry_run=False)
        return captured(*more)

    with ebla.open(tmp_path / "store") as db:
        db.create_table("t", ebla.Schema(key={"n": "int64"}, columns={"v": "string"})).put({"n": 1, "v": "x"})
        first, second = (backup(db, "t", there, spark=False) for _ in range(2))
        monkeypatch.setattr(module, "captured", late)
        with pytest.raises(ebla.Unavailable, match=f"backup {first.id} was removed meanwhile"):
            backup(db, "t", there, since=first.id, spark=False)
    assert [entry.name for entry in there.iterdir()] == [second.id]
