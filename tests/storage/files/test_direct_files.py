"""Files written past the page cache: every byte in its place, however it comes, and whatever the disk says."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebla.storage.files import direct_files
from ebla.storage.files.direct_files import BUFFER_BYTES, DirectFiles

PAGE_BYTES = 4096
real_write = os.write
real_open = os.open


@pytest.fixture
def files(tmp_path: Path) -> DirectFiles:
    return DirectFiles(tmp_path)


def some_bytes(length: int) -> bytes:
    return random.Random(length).randbytes(length)


def write(files: DirectFiles, data: bytes, pieces: random.Random) -> None:
    with files.create("a") as file:
        begin = 0
        while begin < len(data):
            end = begin + pieces.choice([1, 100, PAGE_BYTES, 300_000, 2 * BUFFER_BYTES + 7])
            begin += file.write(data[begin:end])
            assert file.tell() == begin
        file.sync()


@pytest.mark.parametrize(
    "length",
    [0, 1, PAGE_BYTES, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES, 7 * BUFFER_BYTES + 12_345],
)
def test_every_byte_is_in_its_place(files: DirectFiles, length: int) -> None:
    data = some_bytes(length)
    write(files, data, random.Random(1))
    assert files.read("a") == data


def test_it_goes_past_the_page_cache_until_it_is_flushed(files: DirectFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    direct: list[tuple[int, bool]] = []

    def noted(descriptor: int, data: Any) -> int:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(files.root)):
            return real_write(descriptor, data)  # another thread's
        is_direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct_files._DIRECT)
        direct.append((len(data), is_direct))
        return real_write(descriptor, data)

    with files.create("a") as file:
        monkeypatch.setattr(os, "write", noted)
        file.write(some_bytes(2 * BUFFER_BYTES + 10))
        file.flush()
        assert files.size("a") == 2 * BUFFER_BYTES + 10
        file.write(b"more")
        assert files.read("a").endswith(b"more")
    if can_be_direct(files):
        assert direct == [(BUFFER_BYTES, True), (BUFFER_BYTES, True), (10, False), (4, False)]
    else:
        assert not any(is_direct for _, is_direct in direct)


def can_be_direct(files: DirectFiles) -> bool:
    try:
        os.close(os.open(files.root / "probe", os.O_WRONLY | os.O_CREAT | direct_files._DIRECT))
    except OSError:
        return False
    return True


def test_parquet_can_be_read_before_it_is_synced(files: DirectFiles) -> None:
    table = pa.table({"n": range(400_000)})
    with files.create("a") as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), compression="none", use_dictionary=False)
        file.flush()
        assert pq.read_table(files.root / "a").equals(table)


@pytest.mark.parametrize("taken", [1, 511, PAGE_BYTES, BUFFER_BYTES - 1])
def test_a_write_that_is_cut_short_is_gone_on_with(
    files: DirectFiles, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    data = some_bytes(3 * BUFFER_BYTES + 5)
    left = [taken]

    def short(descriptor: int, part: Any) -> int:
        # In the middle of a page, the kernel would refuse to go on directly.
        return real_write(descriptor, part[: left.pop()] if left else part)

    with files.create("a") as file:
        monkeypatch.setattr(os, "write", short)
        direct_files._go_ordinary_way(file._descriptor)  # type: ignore[attr-defined]
        file.write(data)
        file.sync()
    assert files.read("a") == data


def test_a_disk_that_wants_larger_pages_gets_the_ordinary_way(
    files: DirectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = some_bytes(2 * BUFFER_BYTES + 5)

    def picky(descriptor: int, part: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct_files._DIRECT:
            raise OSError(errno.EINVAL, "not so")
        return real_write(descriptor, part)

    monkeypatch.setattr(os, "write", picky)
    write(files, data, random.Random(2))
    assert files.read("a") == data


def test_a_file_system_that_knows_no_other_way_gets_the_ordinary_one(
    files: DirectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & direct_files._DIRECT:
            os.close(real_open(path, flags & ~direct_files._DIRECT, *rest, **named))  # it is made all the same
            raise OSError(errno.EINVAL, "no such way")
        return real_open(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    data = some_bytes(BUFFER_BYTES + 5)
    write(files, data, random.Random(3))
    assert files.read("a") == data


def test_a_name_is_never_written_twice(files: DirectFiles) -> None:
    write(files, b"x", random.Random(4))
    with pytest.raises(FileExistsError):
        files.create("a")
    assert files.read("a") == b"x"


@pytest.mark.parametrize("buffers", [1, 2, 5])
def test_a_full_disk_is_told_by_a_later_write_or_by_the_sync(
    files: DirectFiles, monkeypatch: pytest.MonkeyPatch, buffers: int
) -> None:
    def full(descriptor: int, part: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    with files.create("a") as file:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="full"):  # noqa: PT012 - one of the two
            for _ in range(buffers):
                file.write(bytes(BUFFER_BYTES))
            file.sync()
    assert file.closed
    files.delete("a")


def test_what_is_abandoned_is_closed_in_the_middle(files: DirectFiles) -> None:
    file = files.create("a")
    file.write(bytes(5 * BUFFER_BYTES + 5))
    file.close()
    file.close()
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    files.delete("a")
