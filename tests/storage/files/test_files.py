"""One contract, kept by the real files and by their simulated twin; and what only the real ones can show."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebla.errors import StoreLocked, Unavailable
from ebla.storage.files import files as files_module
from ebla.storage.files import late_close
from ebla.storage.files.direct_files import DirectFiles
from ebla.storage.files.files import Files, LocalFiles, check_path, parent_of
from tests.support.simulated_files import SimulatedFiles


@pytest.fixture(params=["local", "direct", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "direct":
        return DirectFiles(tmp_path / "root")
    return LocalFiles(tmp_path / "root") if request.param == "local" else SimulatedFiles()


def open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def inode_of(descriptor: int) -> int | None:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None  # that of the listing itself


def write(files: Files, path: str, data: bytes) -> None:
    with files.create(path) as file:
        file.write(data)
        file.sync()


class TestContract:
    def test_what_was_written_is_read(self, files: Files) -> None:
        with files.create("a") as file:
            assert file.tell() == 0
            assert file.write(b"one") == 3
            assert file.write(memoryview(b"two")) == 3
            assert file.write(pa.py_buffer(b"three")) == 5
            assert file.write(bytearray(b"")) == 0
            assert file.tell() == 11
            file.sync()
        assert file.closed
        assert files.read("a") == b"onetwothree"
        assert files.size("a") == 11

    def test_parts_are_written_one_after_the_other(self, files: Files) -> None:
        with files.create("a") as file:
            assert file.write_parts([b"one", pa.py_buffer(b"two"), b"", memoryview(b"three")]) == 11
            assert file.write_parts([]) == 0
            assert file.tell() == 11
            file.flush()
        assert files.read("a") == b"onetwothree"

    def test_more_parts_than_the_kernel_takes_at_once(self, files: Files) -> None:
        parts = [bytes([number % 251]) * (number % 7) for number in range(5000)]
        with files.create("a") as file:
            assert file.write_parts(parts) == sum(map(len, parts))
            file.flush()
        assert files.read("a") == b"".join(parts)

    def test_create_is_exclusive(self, files: Files) -> None:
        write(files, "a", b"first")
        with pytest.raises(FileExistsError):
            files.create("a")
        assert files.read("a") == b"first"

    def test_create_makes_missing_parents(self, files: Files) -> None:
        write(files, "x/y/z", b"deep")
        assert files.read("x/y/z") == b"deep"
        assert files.list_directories("") == ["x"]
        assert files.list_directories("x") == ["x/y"]
        assert files.list_directories("nowhere") == []

    def test_a_closed_file_takes_nothing(self, files: Files) -> None:
        file = files.create("a")
        file.close()
        file.close()
        with pytest.raises(ValueError, match="closed"):
            file.write(b"late")
        with pytest.raises(ValueError, match="closed"):
            file.write_parts([b"late"])
        with pytest.raises(ValueError, match="closed"):
            file.sync()

    @pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../b", "a//b", "a/", "./a", ".", "..", "a\0b"])
    def test_no_path_leaves_the_root(self, files: Files, path: str) -> None:
        for operation in (files.create, files.read, files.open_input, files.delete, files.exists, files.size):
            with pytest.raises(ValueError, match="plain path"):
                operation(path)
        for operation in (files.list, files.list_directories, files.make_directory, files.sync_directory, files.lock):
            with pytest.raises(ValueError, match="plain path"):
                operation(path)
        with pytest.raises(ValueError, match="plain path"):
            files.truncate(path, 0)
        write(files, "a", b"")
        with pytest.raises(ValueError, match="plain path"):
            files.replace("a", path)
        with pytest.raises(ValueError, match="plain path"):
            files.replace(path, "a")

    def test_a_missing_file_is_said_to_be_missing(self, files: Files) -> None:
        files.make_directory("")
        for operation in (files.read, files.open_input, files.delete, files.size):
            with pytest.raises(FileNotFoundError):
                operation("nothing")
        with pytest.raises(FileNotFoundError):
            files.truncate("nothing", 0)
        with pytest.raises(FileNotFoundError):
            files.replace("nothing", "else")
        with pytest.raises(FileNotFoundError):
            files.sync_directory("nothing")
        assert not files.exists("nothing")
        assert files.list("nothing") == []

    def test_truncate_cuts_and_does_not_extend(self, files: Files) -> None:
        write(files, "a", b"0123456789")
        files.truncate("a", 4)
        assert files.read("a") == b"0123"
        files.truncate("a", 4)
        with pytest.raises(ValueError, match="cannot cut"):
            files.truncate("a", 5)
        with pytest.raises(ValueError, match="cannot cut"):
            files.truncate("a", -1)
        files.truncate("a", 0)
        assert files.read("a") == b""

    def test_delete_frees_the_name(self, files: Files) -> None:
        write(files, "d/a", b"1")
        files.delete("d/a")
        files.sync_directory("d")
        assert not files.exists("d/a")
        write(files, "d/a", b"2")
        assert files.read("d/a") == b"2"

    def test_replace_takes_the_place_of_the_target(self, files: Files) -> None:
        write(files, "d/new", b"new")
        write(files, "d/old", b"old")
        files.replace("d/new", "d/old")
        files.sync_directory("d")
        assert files.read("d/old") == b"new"
        assert [info.path for info in files.list("d")] == ["d/old"]
        files.replace("d/old", "d/old")
        assert files.read("d/old") == b"new"

    def test_an_open_input_outlives_its_name(self, files: Files) -> None:
        write(files, "a", b"0123456789")
        with files.open_input("a") as source:
            files.delete("a")
            source.seek(3)
            assert source.read(4) == b"3456"
            assert source.size() == 10

    def test_list_shows_files_sorted_and_not_those_below(self, files: Files) -> None:
        for path in ("d/b", "d/a", "d/sub/c", "e"):
            write(files, path, path.encode())
        assert [(info.path, info.size) for info in files.list("d")] == [("d/a", 3), ("d/b", 3)]
        assert [info.path for info in files.list("")] == ["e"]
        assert all(info.modified_seconds > 0 for info in files.list("d"))

    def test_directories_may_be_made_twice(self, files: Files) -> None:
        files.make_directory("x/y")
        files.make_directory("x/y")
        assert files.exists("x/y")
        write(files, "f", b"")
        with pytest.raises(FileExistsError):
            files.make_directory("f")

    def test_parquet_goes_in_and_comes_out(self, files: Files) -> None:
        table = pa.table({"a": range(10_000), "b": [str(number) for number in range(10_000)]})
        with files.create("t.parquet") as file:
            pq.write_table(table, file)
            file.sync()
            assert not file.closed
        assert pq.read_table(files.open_input("t.parquet")).equals(table)

    def test_a_lock_is_held_by_one(self, files: Files) -> None:
        with files.lock("d/LOCK") as lock:
            with pytest.raises(StoreLocked, match="open for writing") as caught:
                files.lock("d/LOCK")
            assert isinstance(caught.value, Unavailable)
            with files.lock("d/OTHER"):
                pass
            lock.release()
            lock.release()
        with files.lock("d/LOCK"):
            assert files.exists("d/LOCK")


def test_parents() -> None:
    assert parent_of("a") == ""
    assert parent_of("a/b/c") == "a/b"
    assert check_path("") == ""


class TestLocalFiles:
    def test_reading_makes_nothing(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path / "root")
        assert files.list("") == []
        assert files.list_directories("a") == []
        assert not files.exists("a")
        assert not (tmp_path / "root").exists()

    def test_the_root_is_made_with_its_parents(self, tmp_path: Path) -> None:
        LocalFiles(tmp_path / "a" / "b").make_directory("")
        assert (tmp_path / "a" / "b").is_dir()

    def test_a_write_that_the_kernel_cuts_short_is_finished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real_write, real_writev = os.write, os.writev
        monkeypatch.setattr(os, "write", lambda where, data: real_write(where, memoryview(data)[:3]))
        monkeypatch.setattr(os, "writev", lambda where, parts: real_writev(where, [parts[0][:2]]))
        files = LocalFiles(tmp_path)
        with files.create("a") as file:
            assert file.write(b"0123456789") == 10
            assert file.write_parts([b"abcdef", b"ghi"]) == 9
            assert file.tell() == 19
        assert files.read("a") == b"0123456789abcdefghi"

    def test_a_full_disk_comes_through_as_an_os_error(self) -> None:
        with pytest.raises(OSError, match="No space left"):
            files_module.LocalWritableFile(os.open("/dev/full", os.O_WRONLY)).write(b"x")

    def test_a_lock_tells_who_holds_it(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path)
        code = (
            "import sys\nfrom ebla.storage.files.files import LocalFiles\n"
            f"lock = LocalFiles({str(tmp_path)!r}).lock('LOCK')\nprint('held', flush=True)\nsys.stdin.read()\n"
        )
        holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(StoreLocked, match=rf"process {holder.pid} has the store.*read_only=True"):
                files.lock("LOCK")
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            holder.stdin.close()
            holder.stdout.close()
        files.lock("LOCK").release()  # it died with its process

    def test_a_forked_child_does_not_keep_the_lock(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path)
        lock = files.lock("LOCK")
        context = multiprocessing.get_context("fork")
        started, may_end = context.Event(), context.Event()

        def live() -> None:
            started.set()
            may_end.wait(30)

        child = context.Process(target=live)
        child.start()
        try:
            assert started.wait(30)
            with pytest.raises(StoreLocked):
                files.lock("LOCK")  # the parent still has it
            lock.release()
            files.lock("LOCK").release()
        finally:
            may_end.set()
            child.join()

    def test_the_space_of_a_large_file_goes_though_its_name_went_before(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path / "root")
        count = late_close.PENDING_MAX + 5
        with files.create("0") as file:
            file.write(bytes(files_module.LATE_CLOSE_BYTES_MIN))
        for number in range(1, count):
            os.link(tmp_path / "root" / "0", tmp_path / "root" / str(number))
        held = os.open(tmp_path / "root" / "0", os.O_RDONLY)
        inode = os.fstat(held).st_ino
        for number in range(count):
            files.delete(str(number))
        assert files.list("") == []
        while late_close._is_running:
            time.sleep(0.001)
        assert [number for number in open_descriptors() if inode_of(number) == inode] == [held]
        os.close(held)

    def test_a_forked_child_keeps_no_space_of_what_its_parent_deletes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(late_close, "_is_running", True)  # so that it stays open until the fork
        files = LocalFiles(tmp_path / "root")
        with files.create("a") as file:
            file.write(bytes(files_module.LATE_CLOSE_BYTES_MIN))
        inode = (tmp_path / "root" / "a").stat().st_ino
        files.delete("a")
        assert [inode_of(number) for number in open_descriptors()].count(inode) == 1
        context = multiprocessing.get_context("fork")
        told = context.Queue()
        child = context.Process(
            target=lambda: told.put([inode_of(number) for number in open_descriptors()].count(inode))
        )
        child.start()
        child.join()
        assert told.get(timeout=30) == 0
        os.close(late_close._pending.pop())

    def test_a_file_that_cannot_be_deleted_stays_and_leaves_nothing_open(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path / "root")
        with pytest.raises(FileNotFoundError):
            files.delete("a")
        before = open_descriptors()
        files.make_directory("d")
        with pytest.raises(OSError, match=r"directory|permitted"):
            files.delete("d")
        assert open_descriptors() == before

    def test_threads_make_the_same_directories(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path / "root")
        barrier = threading.Barrier(8)
        errors: list[BaseException] = []

        def make(number: int) -> None:
            try:
                barrier.wait()
                write(files, f"a/b/c/{number}", b"x")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(files.list("a/b/c")) == 8
