"""Salvage: a damaged file is given up, what can be read of it stays, and what is lost is told exactly."""

from __future__ import annotations

import errno
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ebla
import ebla.pipeline
from ebla.client.embedded import salvaging
from ebla.errors import Unavailable
from ebla.metadata.server.transaction import MetadataServer
from ebla.storage.files.local_files import LocalFiles
from tests.support.inside import state_of

SCHEMA = ebla.Schema(
    key={"n": "int64"},
    groups=[
        ebla.Group("main", columns={"v": "string", "w": "int32", "at": "timestamp[s]"}, block_bytes=2_048),
        ebla.Group("cells", families=["c"], max_versions=3, block_bytes=2_048),
    ],
)
QUIET = ebla.Settings(background_compaction=False)
ROWS = 300


def row(n: int, version: str = "old") -> dict[str, Any]:
    return {"n": n, "v": f"{version} {n} " + "x" * 40, "w": n, "c:q": f"{version}{n}".encode() * 10}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with a table of rows in one file for each group, in several blocks."""
    root = tmp_path / "store"
    with ebla.open(root, settings=QUIET) as db:
        table = db.create_table("t", SCHEMA)
        table.put([row(n) for n in range(ROWS)])
        table.flush()
    return root


def file_of(root: Path, group: str = "main", table: str = "t", at: int = 0) -> str:
    with ebla.open(root, read_only=True) as db:
        state = state_of(db.table(table))
        number = next(one.id for one in state.view.schema.groups if one.name == group)
        return state.view.metadata.tablets[0].group(number).fragments[at].file


def rows_of(root: Path, table: str = "t") -> dict[int, dict[str, Any]]:
    with ebla.open(root, read_only=True) as db:
        return {one["n"]: dict(one) for one in db.table(table).scan()}


def is_clean(root: Path) -> bool:
    return ebla.verify(root).is_clean and not ebla.pipeline.verify(root, spark=False).findings


def damage_block(root: Path, file: str, number: int, column: str = "v") -> None:
    """Flip a bit in a page of a block."""
    metadata = pq.read_metadata(root / file)
    group = metadata.row_group(number)
    chunk = next(c for c in map(group.column, range(metadata.num_columns)) if c.path_in_schema == column)
    flip(root / file, chunk.data_page_offset + chunk.total_compressed_size - 3)


def flip(path: Path, at: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(bytes(content))


def test_what_can_be_read_of_a_damaged_file_stays_and_the_rest_is_told(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(root)
    blocks = pq.read_metadata(root / file).num_row_groups
    assert blocks > 4
    damage_block(root, file, 2)
    before = {path: path.read_bytes() for path in root.rglob("*.parquet")}
    plan = ebla.salvage(root, file)
    assert (plan.is_applied, plan.new_file, plan.aside, plan.tables) == (False, None, None, ("t",))
    assert {path: path.read_bytes() for path in root.rglob("*.parquet")} == before  # a dry run
    (loss,) = plan.losses
    lost = pq.read_metadata(root / file).row_group(2).num_rows
    assert (loss.table, loss.group, loss.records, loss.older_files) == ("t", "main", lost, 0)
    assert loss.last - loss.first == lost  # up to the first key of the block behind it
    assert (plan.records, plan.records_kept) == (ROWS, ROWS - lost)

    with caplog.at_level(logging.WARNING, "ebla.client.embedded.salvaging"):
        done = ebla.salvage(root, file, accept_loss=True)
    assert done.is_applied
    assert done.losses == plan.losses
    assert [f"keys from {loss.first} to {loss.last}" in message for message in caplog.messages] == [True, False]
    assert f"{ROWS - lost} of {ROWS} records were kept in {done.new_file}" in caplog.messages[-1]
    assert not (root / file).exists()
    assert (root / str(done.aside)).read_bytes() == before[root / file]
    assert is_clean(root)
    found = rows_of(root)
    assert found.keys() == set(range(ROWS))  # their cells are in another group
    for n, one in found.items():
        expected = row(n)["v"] if not loss.first <= n < loss.last else None
        assert one["v"] == expected, n
    with ebla.open(root) as db:  # and life goes on
        db.table("t").put(row(loss.first, "again"))
        db.table("t").compact()
        assert db.table("t").get(loss.first)["v"].startswith("again")
        assert db.table("t").get(0)["w"] == 0
        db.gc(dry_run=False)
    assert (root / str(done.aside)).exists()
    assert is_clean(root)


@pytest.mark.parametrize("harm", ["missing", "empty", "cut in half", "without its last byte", "no Parquet"])
def test_a_file_that_cannot_be_opened_is_lost_as_a_whole(root: Path, harm: str) -> None:
    file = file_of(root)
    path = root / file
    content = path.read_bytes()
    path.unlink()
    if harm != "missing":
        harmed = {"empty": b"", "cut in half": content[: len(content) // 2], "without its last byte": content[:-1]}
        path.write_bytes(harmed.get(harm, b"x" * len(content)))
    done = ebla.salvage(root, file, accept_loss=True)
    assert (done.records_kept, done.new_file) == (0, None)
    assert (done.aside is None) == (harm == "missing")
    ((loss),) = done.losses
    assert (loss.records, loss.first, loss.last) == (ROWS, 0, ROWS - 1)
    assert is_clean(root)
    found = rows_of(root)
    assert {one["v"] for one in found.values()} == {None}
    assert found[7]["c:q"] == row(7)["c:q"]


def test_older_versions_that_become_visible_again_are_told(root: Path) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = db.table("t")
        table.put([{"n": n, "v": f"new {n}" + "y" * 40} for n in range(100, 200)])
        table.erase([150])
        table.flush()
    newer = file_of(root, at=1)
    (root / newer).unlink()
    assert ebla.salvage(root, newer).losses[0].older_files == 1
    done = ebla.salvage(root, newer, accept_loss=True)
    (loss,) = done.losses
    assert (loss.first, loss.last, loss.has_erasures) == (100, 199, True)
    assert 100 <= loss.older_records <= 200  # in whole blocks
    told = salvaging.told(loss)
    assert "older versions become visible again: about" in told
    assert "what they had erased, if older records of it are there, comes back" in told
    found = rows_of(root)
    assert found[120]["v"] == row(120)["v"]
    assert found[150]["v"] == row(150)["v"]  # erased, and there again
    assert is_clean(root)


def test_versions_that_are_history_do_not_become_visible_again(root: Path) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = db.table("t")
        before = table.scan().txn
        table.put([row(n, "new") for n in range(ROWS)])
        table.compact()
    current = file_of(root)
    (root / current).unlink()
    done = ebla.salvage(root, current, accept_loss=True)
    assert [loss.older_files for loss in done.losses] == [0]
    assert {one["v"] for one in rows_of(root).values()} == {None}
    with ebla.open(root, read_only=True) as db:
        assert [one["v"] for one in db.table("t").scan(as_of=before)] == [row(n)["v"] for n in range(ROWS)]
    assert is_clean(root)


def test_newer_versions_hide_what_is_lost_and_are_not_called_older(root: Path) -> None:
    first = file_of(root)
    with ebla.open(root, settings=QUIET) as db:
        db.table("t").put([row(n, "new") for n in range(ROWS)])
        db.table("t").flush()
    (root / first).unlink()
    assert [loss.older_files for loss in ebla.salvage(root, first, accept_loss=True).losses] == [0]
    assert rows_of(root)[5]["v"] == row(5, "new")["v"]


def test_versions_of_a_row_that_lie_in_the_block_behind_are_told(root: Path) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = db.create_table(
            "many",
            ebla.Schema(
                key={"n": "int64"},
                groups=[ebla.Group("g", columns={"v": "string"}, max_versions=None, block_bytes=1_024)],
            ),
        )
        for version in range(40):
            table.put({"n": 1, "v": f"{version}" + "z" * 60})
        table.flush()
    file = file_of(root, "g", "many")
    damage_block(root, file, 0)
    (loss,) = ebla.salvage(root, file, accept_loss=True).losses
    assert (loss.first, loss.last, loss.older_files) == (1, 1, 1)
    shown = rows_of(root, "many")[1]["v"]
    assert 0 < int(shown.rstrip("z")) < 39
    assert is_clean(root)


def test_cells_and_their_versions_are_salvaged_too(root: Path) -> None:
    with ebla.open(root, settings=QUIET) as db:
        db.table("t").put([{"n": n, "c:q": b"two" * 20, "c:r": b"three"} for n in range(50)])
        db.table("t").compact()
    file = file_of(root, "cells")
    damage_block(root, file, 1, "value")
    (loss,) = ebla.salvage(root, file, accept_loss=True).losses
    assert loss.group == "cells"
    found = rows_of(root)
    for n, one in found.items():
        expected = {"c:q": b"two" * 20, "c:r": b"three"} if n < 50 else {"c:q": row(n)["c:q"]}
        cells = {name: value for name, value in one.items() if name.startswith("c:")}
        assert cells == expected or loss.first <= n <= loss.last, n
    assert any(not one.keys() & {"c:q"} for one in found.values())
    assert is_clean(root)


def test_tablets_and_clones_that_share_a_file_all_go_on_with_what_is_kept(root: Path) -> None:
    file = file_of(root)
    with ebla.open(root, settings=QUIET) as db:
        db.table("t").split((150,))
        db.clone_table("t", "twin")
        db.alter_table("twin", rename={"v": "text"}, add_columns={"more": "string"})
        db.table("t").split((20,))
    damage_block(root, file, 0)
    plan = ebla.salvage(root, file)
    assert plan.tables == ("t", "twin")
    assert {(loss.table, loss.first) for loss in plan.losses} == {("t", 0), ("t", 20), ("twin", 0)}
    done = ebla.salvage(root, file, accept_loss=True)
    assert is_clean(root)
    last = max(loss.last for loss in done.losses)
    for table, name in (("t", "v"), ("twin", "text")):
        found = rows_of(root, table)
        assert [one[name] for one in found.values()] == [None if n < last else row(n)["v"] for n in range(ROWS)]
    with ebla.open(root, read_only=True) as db:
        assert {done.new_file} == set(db.table("t").files()) & set(db.table("twin").files()) - {file_of(root, "cells")}


def test_a_tablet_that_has_nothing_of_what_is_kept_refers_to_nothing(root: Path) -> None:
    with ebla.open(root, settings=QUIET) as db:
        db.table("t").split((1,))
    file = file_of(root)
    damage_block(root, file, 0)
    ebla.salvage(root, file, accept_loss=True)
    with ebla.open(root, read_only=True) as db:
        first = state_of(db.table("t")).view.metadata.tablets[0]
        assert [len(state.fragments) for state in first.groups] == [0, 1]
    assert is_clean(root)


def test_a_file_of_an_older_schema_keeps_what_every_group_has_of_it(root: Path) -> None:
    file = file_of(root)
    with ebla.open(root, settings=QUIET) as db:
        db.alter_table("t", groups=[ebla.Group("other", columns={})], move={"w": "other"}, rename={"v": "text"})
        db.alter_table("t", drop_columns=["at"], change_types={"w": "int64"})
    damage_block(root, file, 1)
    done = ebla.salvage(root, file, accept_loss=True)
    assert {loss.group for loss in done.losses} == {"main", "other"}
    first, last = done.losses[0].first, done.losses[0].last
    for n, one in rows_of(root).items():
        assert (one["text"], one["w"]) == ((None, None) if first <= n < last else (row(n)["v"], n))
    assert is_clean(root)
    with ebla.open(root) as db:
        db.table("t").compact()
        assert db.table("t").get(last)["w"] == last


def test_rows_that_a_job_brought_keep_their_txn(root: Path) -> None:
    from ebla.pipeline.backups.restore import restore  # a clone by files, with a txn of its own

    ebla.pipeline.backup(root, "t", root.parent / "backups", spark=False)
    restore(root.parent / "backups", str(root), "copy", of="t", spark=False)
    file = file_of(root, table="copy")
    damage_block(root, file, 3)
    done = ebla.salvage(root, file, accept_loss=True)
    assert done.tables == ("copy",)
    assert is_clean(root)
    with ebla.open(root, read_only=True) as db:
        assert db.table("copy").get(0).txn == db.table("t").get(0).txn


def test_what_is_whole_or_unknown_is_refused(root: Path) -> None:
    file = file_of(root)
    with pytest.raises(ebla.RequestError, match="is whole: nothing is lost, and nothing was changed"):
        ebla.salvage(root, file, accept_loss=True)
    with pytest.raises(ebla.RequestError, match="is whole"):
        ebla.salvage(root, root / file)  # by its full path
    for wrong in ("fragments/x/y.parquet", "../elsewhere", "LOCK"):
        with pytest.raises(ebla.RequestError, match="no table refers to"):
            ebla.salvage(root, wrong)
    for wrong in ("", 7, None):
        with pytest.raises(ebla.RequestError, match="a file is named as"):
            ebla.salvage(root, wrong)  # type: ignore[arg-type]
    with pytest.raises(ebla.StoreNotFound):
        ebla.salvage(root / "nothing", file)


def test_a_store_that_is_open_is_looked_at_and_not_changed(root: Path) -> None:
    file = file_of(root)
    (root / file).unlink()
    with ebla.open(root):
        assert ebla.salvage(root, file).losses
        with pytest.raises(ebla.StoreLocked):
            ebla.salvage(root, file, accept_loss=True)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_what_cannot_be_read_just_now_is_not_lost(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    file = file_of(root)
    damage_block(root, file, 1)
    opened = LocalFiles.open_input

    def failing(files: LocalFiles, path: str) -> Any:
        if path == file:
            raise OSError(number, "not now")
        return opened(files, path)

    monkeypatch.setattr(LocalFiles, "open_input", failing)
    with pytest.raises(ebla.EblaError, match=r"not now|open files") as refused:
        ebla.salvage(root, file, accept_loss=True)
    assert not isinstance(refused.value, ebla.Corruption)
    monkeypatch.undo()
    assert ebla.salvage(root, file).records_kept > 0


def test_metadata_that_is_kept_on_several_disks_changes_on_all_of_them(tmp_path: Path) -> None:
    root, disks = tmp_path / "store", [tmp_path / name for name in ("one", "two")]
    with ebla.open(root, metadata=disks, settings=QUIET) as db:
        db.create_table("t", SCHEMA).put([row(n) for n in range(ROWS)])
        db.table("t").flush()
    file = file_of(root)
    damage_block(root, file, 1)
    assert ebla.salvage(root, file, accept_loss=True).records_kept > 0
    assert is_clean(root)


def test_a_salvage_that_is_cut_off_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(root)
    with ebla.open(root, settings=QUIET) as db:
        db.clone_table("t", "twin")
    damage_block(root, file, 1)
    commit = MetadataServer.commit
    calls = 0

    def failing(last: int) -> Callable[..., Any]:
        def call(self: MetadataServer, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > last:
                raise Unavailable("not now")
            return commit(self, *args)

        return call

    files = set((root / "fragments").rglob("*.parquet"))
    for last in (0, 1):
        calls = 0
        monkeypatch.setattr(MetadataServer, "commit", failing(last))
        with pytest.raises(Unavailable):
            ebla.salvage(root, file, accept_loss=True)
        assert (root / file).exists()
        if not last:
            assert set((root / "fragments").rglob("*.parquet")) == files  # the copy is gone again
    monkeypatch.setattr(MetadataServer, "commit", commit)
    assert ebla.salvage(root, file, accept_loss=True).tables == ("twin",)
    assert is_clean(root)
    assert rows_of(root) == rows_of(root, "twin")


def test_whatever_bit_is_wrong_no_row_is(root: Path) -> None:
    """Wherever a file is damaged: what was not told to be lost is there, and nothing else is."""
    drawn = random.Random(11)
    expected = rows_of(root)
    file = file_of(root)
    size = (root / file).stat().st_size
    copy = root.with_name("copy")
    tail = range(size - 4_000, size)
    outcomes = set()
    for attempt in range(24):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        at = drawn.choice(tail) if attempt % 2 else drawn.randrange(4, size)
        flip(copy / file, at, 1 << drawn.randrange(8))
        try:
            done = ebla.salvage(copy, file, accept_loss=True)
        except ebla.RequestError:  # a byte that nothing reads
            assert rows_of(copy) == expected
            continue
        outcomes.add("all" if done.records_kept == ROWS else "some" if done.records_kept else "none")
        found = rows_of(copy)
        for n in range(ROWS):
            if any(loss.first <= n <= loss.last for loss in done.losses):
                assert found[n]["v"] in (None, expected[n]["v"]), (at, n)
            else:
                assert found[n] == expected[n], (at, n)
        assert not ebla.pipeline.verify(copy, spark=False).findings
    assert {"some", "none", "all"} <= outcomes
