"""Files of this machine: short writes, full disks, locks, large files that are deleted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ebla.errors import StoreLocked
from ebla.storage.files import late_close, local_files
from ebla.storage.files.files import Files
from ebla.storage.files.local_file import LocalWritableFile
from ebla.storage.files.local_files import LocalFiles


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
            assert file.write_buffers([b"abcdef", b"ghi"]) == 9
            assert file.tell() == 19
        assert files.read("a") == b"0123456789abcdefghi"

    def test_a_full_disk_comes_through_as_an_os_error(self) -> None:
        with pytest.raises(OSError, match="No space left"):
            LocalWritableFile(os.open("/dev/full", os.O_WRONLY)).write(b"x")

    def test_a_lock_tells_who_holds_it(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path)
        code = (
            "import sys\nfrom ebla.storage.files.local_files import LocalFiles\n"
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
            file.write(bytes(local_files.LATE_CLOSE_BYTES_MIN))
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
            file.write(bytes(local_files.LATE_CLOSE_BYTES_MIN))
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
