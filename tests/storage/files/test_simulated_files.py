"""The twin loses what a disk may lose, keeps what it must keep, and fails when told to."""

from __future__ import annotations

import errno

import pytest

from ebla.errors import StoreLocked
from tests.support.simulated_files import Fault, FaultPlan, Operation, SimulatedCrash, SimulatedFiles


def write(files: SimulatedFiles, path: str, data: bytes, sync: bool = True) -> None:
    with files.create(path) as file:
        file.write(data)
        if sync:
            file.sync()


def contents(files: SimulatedFiles, directory: str = "d") -> dict[str, bytes]:
    return {info.path.rpartition("/")[2]: files.read(info.path) for info in files.list(directory)}


def images(files: SimulatedFiles, count: int = 100) -> list[dict[str, bytes]]:
    return [contents(image) for image in files.crash_images(count=count)]


class TestCrashImages:
    def test_a_synced_file_with_a_synced_name_survives_always(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"data")
        files.sync_directory("d")
        assert all(image == {"a": b"data"} for image in images(files))

    def test_a_name_that_was_not_synced_may_be_lost(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"data")
        seen = images(files)
        assert {} in seen
        assert {"a": b"data"} in seen

    def test_bytes_that_were_not_synced_are_cut_anywhere(self) -> None:
        files = SimulatedFiles()
        with files.create("d/a") as file:
            file.write(b"synced")
            file.sync()
            file.write(b"UNSYNCED")
        files.sync_directory("d")
        seen = {image["a"].rstrip(b"\0") for image in images(files, 300)}
        assert seen == {(b"syncedUNSYNCED")[:length] for length in range(6, 15)}

    def test_unsynced_pages_may_be_written_in_any_order(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"x" * 20_000, sync=False)
        files.sync_directory("d")
        assert any(image["a"].startswith(b"\0") and image["a"].endswith(b"x") for image in images(files))

    def test_a_rename_leaves_the_old_or_the_new_and_never_neither(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"old")
        files.sync_directory("d")
        write(files, "d/a.new", b"new")
        files.replace("d/a.new", "d/a")
        seen = images(files)
        assert {image["a"] for image in seen} == {b"old", b"new"}
        files.sync_directory("d")
        assert all(image == {"a": b"new"} for image in images(files))

    def test_a_deleted_file_may_come_back_until_the_directory_is_synced(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"1")
        write(files, "d/b", b"2")
        files.sync_directory("d")
        files.delete("d/a")
        files.delete("d/b")
        seen = {tuple(sorted(image)) for image in images(files)}
        assert seen == {(), ("a",), ("b",), ("a", "b")}
        files.sync_directory("d")
        assert images(files) == [{}] * len(images(files))

    def test_truncation_is_durable(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"0123456789", sync=False)
        files.sync_directory("d")
        files.truncate("d/a", 5)
        assert all(image == {"a": b"01234"} for image in images(files))

    def test_directories_are_durable(self) -> None:
        files = SimulatedFiles()
        files.make_directory("x/y")
        assert all(image.exists("x/y") for image in files.crash_images())

    def test_a_restart_loses_nothing_and_makes_nothing_durable(self) -> None:
        files = SimulatedFiles(FaultPlan.crash_at(5))
        write(files, "d/a", b"synced")
        with files.create("d/b") as file, pytest.raises(SimulatedCrash):
            file.write(b"never")
        restarted = files.restarted()
        assert contents(restarted) == {"a": b"synced", "b": b""}
        assert {tuple(sorted(image)) for image in images(restarted)} == {(), ("a",), ("b",), ("a", "b")}
        restarted.sync_directory("d")
        restarted.delete("d/a")
        assert contents(files.restarted()) == {"a": b"synced", "b": b""}

    def test_images_come_from_the_seed(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"x" * 1000, sync=False)
        one, same, other = ([contents(image) for image in files.crash_images(seed, count=20)] for seed in (1, 1, 2))
        assert one == same
        assert one != other

    def test_an_image_lives_on_its_own(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"1")
        files.sync_directory("d")
        lock = files.lock("LOCK")
        image = files.crash_images()[0]
        image.delete("d/a")
        image.lock("LOCK").release()
        assert files.read("d/a") == b"1"
        with pytest.raises(StoreLocked):
            files.lock("LOCK")
        lock.release()
        assert image.record() == (Operation(0, "delete", "d/a"),)


class TestFaults:
    def test_every_change_is_recorded(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"12345")
        files.sync_directory("d")
        files.truncate("d/a", 2)
        files.replace("d/a", "d/b")
        files.delete("d/b")
        assert [(operation.kind, operation.path, operation.size) for operation in files.record()] == [
            ("make_directory", "d", 0),
            ("create", "d/a", 0),
            ("write", "d/a", 5),
            ("sync", "d/a", 0),
            ("sync_directory", "d", 0),
            ("truncate", "d/a", 2),
            ("replace", "d/b", 0),
            ("delete", "d/b", 0),
        ]
        assert [operation.number for operation in files.record()] == [*range(8)]

    def test_a_crash_stops_everything_from_then_on(self) -> None:
        files = SimulatedFiles(FaultPlan.crash_at(2))
        file = files.create("d/a")
        with pytest.raises(SimulatedCrash):
            file.write(b"data")
        assert files.crashed
        for operation in (
            lambda: file.write(b"x"),
            lambda: file.sync(),
            lambda: files.read("d/a"),
            lambda: files.exists("d/a"),
            lambda: files.list("d"),
            lambda: files.create("d/b"),
            lambda: files.lock("LOCK"),
        ):
            with pytest.raises(SimulatedCrash):
                operation()
        file.close()
        assert {tuple(contents(image).items()) for image in files.crash_images()} == {(), (("a", b""),)}

    def test_a_crash_can_come_between_operations(self) -> None:
        files = SimulatedFiles()
        files.crash()
        with pytest.raises(SimulatedCrash):
            files.make_directory("d")

    def test_an_operation_fails_before_or_after_it_takes_effect(self) -> None:
        for effect, there in ((0.0, False), (1.0, True)):
            files = SimulatedFiles(FaultPlan.fail_at(1, errno.EIO, effect))
            with pytest.raises(OSError, match="Input/output error") as caught:
                files.create("d/a")
            assert caught.value.errno == errno.EIO
            assert files.exists("d/a") is there
            files.make_directory("other")  # only that one fails

    def test_a_write_fails_after_a_part_of_it(self) -> None:
        files = SimulatedFiles(FaultPlan(at={2: Fault(errno.ENOSPC, 0.5)}))
        with files.create("d/a") as file:
            with pytest.raises(OSError, match="No space left"):
                file.write(b"0123456789")
            assert file.tell() == 5
        assert files.read("d/a") == b"01234"

    def test_a_failed_sync_has_synced_nothing(self) -> None:
        files = SimulatedFiles(FaultPlan.fail_when(lambda operation: operation.kind == "sync"))
        with files.create("d/a") as file:
            file.write(b"data")
            files.sync_directory("d")
            with pytest.raises(OSError, match="Input/output error"):
                file.sync()
        assert {"a": b""} in images(files)

    def test_files_can_be_unreadable(self) -> None:
        files = SimulatedFiles()
        write(files, "d/a", b"data")
        files.plan = FaultPlan(reads={"d/a": errno.EIO})
        for operation in (files.read, files.open_input, files.size):
            with pytest.raises(OSError, match="Input/output error"):
                operation("d/a")

    def test_the_disk_fills_up_and_can_be_given_room(self) -> None:
        files = SimulatedFiles(bytes_max=10)
        write(files, "d/a", b"1234567")
        with files.create("d/b") as file:
            with pytest.raises(OSError, match="No space left"):
                file.write(b"1234567")
            assert file.tell() == 3
            files.bytes_max = 20
            file.write(b"4567")
        assert files.read("d/b") == b"1234567"
        files.bytes_max = 10
        files.delete("d/a")
        write(files, "d/c", b"123")

    def test_a_scene_can_be_set_without_operations(self) -> None:
        files = SimulatedFiles()
        files.put("x/y/z", b"data")
        assert files.record() == ()
        assert files.list_directories("x") == ["x/y"]
        assert all(image.read("x/y/z") == b"data" for image in files.crash_images())
