"""One contract, kept by the real files and by their simulated twin; and what only the real ones can show."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebla.errors import StoreLocked, Unavailable
from ebla.storage.files.direct_files import DirectFiles
from ebla.storage.files.files import Files, check_path, parent_of
from ebla.storage.files.local_files import LocalFiles
from tests.support.simulated_files import SimulatedFiles


@pytest.fixture(params=["local", "direct", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "direct":
        return DirectFiles(tmp_path / "root")
    return LocalFiles(tmp_path / "root") if request.param == "local" else SimulatedFiles()


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
            assert file.write_buffers([b"one", pa.py_buffer(b"two"), b"", memoryview(b"three")]) == 11
            assert file.write_buffers([]) == 0
            assert file.tell() == 11
            file.flush()
        assert files.read("a") == b"onetwothree"

    def test_more_parts_than_the_kernel_takes_at_once(self, files: Files) -> None:
        parts = [bytes([number % 251]) * (number % 7) for number in range(5000)]
        with files.create("a") as file:
            assert file.write_buffers(parts) == sum(map(len, parts))
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
            file.write_buffers([b"late"])
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
