"""File descriptors: a store that was closed has none open, and to have none left is no damage."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import ebla
import ebla.client.embedded.verifying  # not while no file can be opened
from ebla.settings import Settings
from tests.support.inside import state_of

ROWS = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"n": "int64"}, block_bytes=4096)])
QUIET = Settings(background_compaction=False, scan_batch_rows=10)
PAIRS = [{"k": key, "n": key} for key in range(50)]


def open_files(root: Path) -> list[str]:
    """Return what this process has open below a directory."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(str(root))]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Let Python clear away nothing but what nobody refers to any more."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open no file within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def filled(root: Path) -> None:
    """Make a store with two tables of several fragments, and rows in the log."""
    with ebla.open(root, settings=QUIET) as db:
        for name in ("t", "u"):
            table = db.create_table(name, ROWS, splits=[25])
            for number in range(3):
                table.put([{**pair, "n": number} for pair in PAIRS])
                table.flush()
            table.put(PAIRS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    filled(root)
    return root


# --- closing ---


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_closed_store_has_no_file_open_though_its_scans_are_held(root: Path, read_only: bool) -> None:
    with uncollected():
        db = ebla.open(root, read_only=read_only, settings=QUIET)
        table = db.table("t")
        rows, batches = iter(table.scan()), table.scan(reverse=True).to_batches()
        assert (next(rows)["k"], next(batches).num_rows) == (0, 10)
        assert table.get(7) is not None
        assert any(path.endswith(".parquet") for path in open_files(root))
        db.close()
        assert open_files(root) == []
        with pytest.raises(ebla.Closed):
            list(batches)
        with pytest.raises(ebla.Closed):
            table.get(8)
        assert open_files(root) == []


def test_files_that_were_let_go_of_and_are_still_read_are_closed_too(root: Path) -> None:
    with uncollected():
        db = ebla.open(root, settings=Settings(background_compaction=False, open_files_max=1))
        state = state_of(db.table("t"))
        group = state.view.schema.groups[0].id
        references = [ref for tablet in state.view.metadata.tablets for ref in tablet.group(group).fragments]
        held = [state.reader.fragment(ref) for ref in references]
        assert len([path for path in open_files(root) if path.endswith(".parquet")]) == len(held) > 1
        db.close()
        assert open_files(root) == []
        with pytest.raises(ebla.Closed):
            held[0].read_blocks(0, 1, ["_row"])


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
@pytest.mark.parametrize("damage", ["log", "fragment"])
def test_what_could_not_be_opened_leaves_no_file_open(root: Path, read_only: bool, damage: str) -> None:
    with uncollected():
        if damage == "log":
            (segment, *_) = sorted((root / "log").rglob("*.log"))
            content = bytearray(segment.read_bytes())
            content[40] ^= 0xFF
            segment.write_bytes(content)
            with pytest.raises(ebla.EblaError) as kept:
                ebla.open(root, read_only=read_only, settings=QUIET)
        else:
            for file in (root / "fragments").rglob("*.parquet"):
                file.write_bytes(file.read_bytes()[:-1] + b"x")
            db = ebla.open(root, read_only=read_only, settings=QUIET)
            with pytest.raises(ebla.Corruption) as kept:
                list(db.table("t").scan())
            assert not any(path.endswith(".parquet") for path in open_files(root))
            db.close()
        assert open_files(root) == [], kept  # the error holds on to all that led to it


# --- no descriptor is left ---


def test_reads_say_that_no_file_can_be_opened_and_go_on_when_one_can(root: Path) -> None:
    for read_only in (False, True):
        with ebla.open(root, read_only=read_only, settings=QUIET) as db:
            table = db.table("t")
            scan, get, get_many = table.scan(), table.get, table.get_many
            with no_descriptor_left():
                for read in (scan.to_arrow, partial(get, 3), partial(get_many, [1, 2])):
                    with pytest.raises(ebla.TooManyFiles, match=r"ulimit -n.*open_files_max"):
                        read()
            assert [row["n"] for row in table.scan()] == list(range(50))
            assert db.stats()["damaged"] == {}
            assert not state_of(table).damage


def test_flushes_and_changes_say_so_and_can_be_repeated(root: Path) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = db.table("t")
        table.put({"k": 1, "n": -1})
        works: list[Callable[[], object]] = [
            table.flush,
            table.compact,
            lambda: db.create_table("v", ROWS),
            lambda: db.alter_table("u", add_columns={"m": "int64"}),
        ]
        for work in works:
            with no_descriptor_left(), pytest.raises(ebla.TooManyFiles, match="ulimit -n"):
                work()
        for work in works:
            work()
        assert db.tables() == ["t", "u", "v"]
        assert table.get(1) == {"k": 1, "n": -1}
    assert ebla.verify(root).is_clean


def test_a_store_cannot_be_opened_then_and_can_later(root: Path) -> None:
    for read_only in (False, True):
        with no_descriptor_left(), pytest.raises(ebla.TooManyFiles, match="ulimit -n"):
            ebla.open(root, read_only=read_only)
        assert open_files(root) == []
    with no_descriptor_left(), pytest.raises(ebla.TooManyFiles, match="ulimit -n"):
        ebla.open(root.with_name("another"))
    with no_descriptor_left(), pytest.raises(ebla.TooManyFiles, match="ulimit -n"):
        ebla.verify(root)
    assert ebla.verify(root).is_clean
    with ebla.open(root) as db:
        assert db.stats()["damaged"] == {}
        assert db.table("t").scan().count() == 50


@pytest.mark.parametrize("left", range(8))
def test_a_store_that_runs_out_while_it_is_opened_has_no_damaged_table(root: Path, left: int) -> None:
    with contextlib.ExitStack() as later:
        kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(left)]
        later.enter_context(no_descriptor_left())
        for descriptor in kept:
            os.close(descriptor)
        try:
            db = ebla.open(root, settings=QUIET)
        except ebla.TooManyFiles:
            is_open = False
        else:
            is_open = True
            later.callback(db.close)
            assert db.stats()["damaged"] == {}
            assert db.tables() == ["t", "u"]
    assert is_open or open_files(root) == []
    with ebla.open(root) as again:
        assert again.stats()["damaged"] == {}
        assert again.table("u").scan().count() == 50


def test_the_log_says_so_and_goes_on_when_the_store_is_reopened(root: Path) -> None:
    with ebla.open(root, settings=QUIET) as db:
        with no_descriptor_left(), pytest.raises(ebla.LogFailed, match=r"ulimit -n.*reopening"):
            db.table("t").put({"k": 99, "n": 99})
        assert db.table("t").scan().count() == 50
    with ebla.open(root) as db:
        db.table("t").put({"k": 99, "n": 99})
        assert db.table("t").scan().count() == 51
