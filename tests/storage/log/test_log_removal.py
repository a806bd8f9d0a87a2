"""Removing the beginning of a log: two syncs, right whatever names a crash leaves, and other holes are refused."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from ebla.errors import MissingFile
from ebla.storage.files.files import FileInfo
from ebla.storage.log.log_format import mark_path, mark_sequence, segment_path
from ebla.storage.log.log_reader import list_segments, recover
from ebla.storage.log.log_removal import finish_removal, list_names, remove_before
from ebla.storage.log.log_writer import start_over
from tests.support.logs import DIRECTORY, SERVER, exhaust, make_entry, open_writer, recovered, write_log
from tests.support.simulated_files import FaultPlan, SimulatedCrash, SimulatedFiles

Work = Callable[[SimulatedFiles], object]


def log_of(segments: int) -> SimulatedFiles:
    """Return a disk with a log of so many segments, of the txns from 1 on, one each."""
    files = SimulatedFiles()
    write_log(files, range(1, segments + 1), segment_bytes=1)
    return files


def images(files: SimulatedFiles) -> Iterator[SimulatedFiles]:
    """Yield every disk that a crash now may leave: any choice of the changes of names since they were synced."""
    for kept in product((False, True), repeat=len(files._pending)):
        yield files.image(lambda inode: bytes(inode.data[: inode.synced]), kept)


def names(files: SimulatedFiles) -> tuple[str, ...]:
    return tuple(info.path.rpartition("/")[2].lstrip("0") for info in files.list(DIRECTORY))


def crashed(disk: SimulatedFiles, work: Work) -> Iterator[tuple[int, SimulatedFiles]]:
    """Yield all that crashes at any operation of `work` may leave of a disk, and those after the last; with numbers."""
    probe = disk.restarted()
    work(probe)
    for number in range(len(probe.record()) + 1):
        files = disk.restarted()
        files.plan = FaultPlan.crash_at(number)
        with contextlib.suppress(SimulatedCrash):
            work(files)
        for image in images(files):
            yield number, image


class TestCrashes:
    @pytest.mark.parametrize("removed", [1, 2, 3, 6])
    def test_whatever_a_crash_leaves_the_log_is_whole_from_where_it_begins(self, removed: int) -> None:
        """Also if another crash comes while the next process finishes what was begun, at any of its operations."""
        seen: set[tuple[str, ...]] = set()
        finished: set[tuple[str, ...]] = set()
        whole = log_of(removed + 2)
        for _, image in crashed(whole, lambda files: remove_before(files, DIRECTORY, removed + 1)):
            if names(image) in seen:
                continue
            seen.add(names(image))
            found = recovered(image)
            assert found == [*range(found[0], removed + 3)]
            assert found[0] <= removed + 1
            for _, again in crashed(image, lambda files: finish_removal(files, DIRECTORY)):
                if names(again) not in finished:
                    finished.add(names(again))
                    self.check_goes_on(again, removed + 2)
        if removed == 1:
            assert seen == {("1.log", "2.log", "3.log"), ("2.log", "3.log")}
        else:
            # All before any is gone; and any of those between the oldest and the first that is needed.
            assert len(seen) == 2 + 2 ** (removed - 1)

    def check_goes_on(self, image: SimulatedFiles, last: int) -> None:
        """The next process writes on; after that only what counts is there."""
        found = recovered(image)
        assert found[-1] == last
        write_log(image, range(100, 102))
        assert recovered(image) == [*found, 100, 101]
        assert names(image) == (*(f"{number}.log" for number in found), f"{last + 1}.log")

    @pytest.mark.parametrize("second", [4, 5, 7])
    def test_a_mark_that_comes_back_hides_nothing_that_is_needed(self, second: int) -> None:
        """The first removal is done, but that its mark is gone is not durable when the second one begins."""
        seen = set()
        files = log_of(8)
        remove_before(files, DIRECTORY, 3)
        assert len(files._pending) == 1
        for _, image in crashed(files, lambda files: remove_before(files, DIRECTORY, second)):
            seen.add(names(image))
            found = recovered(image)
            assert found == [*range(found[0], 9)]
            assert 3 <= found[0] <= second
            self.check_goes_on(image, 8)
        assert ("3.begin", *(f"{number}.log" for number in range(3, 9))) in seen

    def test_starting_over_keeps_its_entry_through_any_crash(self) -> None:
        whole = log_of(5)
        segments = exhaust(whole).segments
        seen = set()

        def starts_over(files: SimulatedFiles) -> None:
            start_over(files, DIRECTORY, SERVER, 6, segments, 1, make_entry(5, value="only"))

        for _, image in crashed(whole, starts_over):
            entries = [found.entry for found in recover(image, DIRECTORY)]
            seen.add(len(entries))
            assert entries[-1] == make_entry(5, value="only") or [e.txn_max for e in entries] == [1, 2, 3, 4, 5]
            finish_removal(image, DIRECTORY)
            assert [found.entry for found in recover(image, DIRECTORY)] == entries
            assert not list_names(image, DIRECTORY).marks
        assert seen == {1, 5, 6}

    def test_the_price_is_two_syncs_however_many_there_are(self) -> None:
        files = log_of(40)
        begin = len(files.record())
        remove_before(files, DIRECTORY, 40)
        done = files.record()[begin:]
        kinds = [operation.kind for operation in done]
        assert kinds == ["replace", "sync_directory", *["delete"] * 38, "sync_directory", "delete"]
        # From the oldest on, for readers who list them meanwhile.
        assert [operation.path for operation in done[2:40]] == [segment_path(DIRECTORY, at) for at in range(2, 40)]
        assert names(files) == ("40.log",)


class TestFailures:
    @pytest.mark.parametrize("effect", [0.0, 1.0])
    def test_after_any_error_the_next_call_does_the_rest(self, effect: float) -> None:
        probe = log_of(6)
        begin = len(probe.record())
        remove_before(probe, DIRECTORY, 5)
        numbers = range(begin, len(probe.record()))
        assert len(numbers) == 7
        for number in numbers:
            files = log_of(6)
            files.plan = FaultPlan.fail_at(number, errno.EIO, effect)
            with pytest.raises(OSError, match="Input/output error"):
                remove_before(files, DIRECTORY, 5)
            assert recovered(files)[-2:] == [5, 6]
            # Less may be asked for than before: what was marked is not needed any more all the same.
            remove_before(files, DIRECTORY, 3)
            remove_before(files, DIRECTORY, 5)
            assert names(files) == ("5.log", "6.log")
            for image in images(files):
                assert recovered(image) == [5, 6]

    def test_a_log_is_never_removed_to_its_end(self) -> None:
        files = log_of(3)
        with pytest.raises(ValueError, match="it ends before"):
            remove_before(files, DIRECTORY, 4)
        writer = open_writer(files)  # nothing was written to it
        assert [segment.sequence for segment in writer.delete_segments(1 << 62)] == [1, 2]
        assert names(files) == ("3.log",)
        write_log(files, range(4, 5))
        assert names(files) == ("3.log", "4.log")

    def test_above_a_mark_a_hole_is_a_lost_file(self) -> None:
        files = log_of(6)
        files.put(mark_path(DIRECTORY, 3), b"")
        files.delete(segment_path(DIRECTORY, 1))
        assert recovered(files) == [3, 4, 5, 6]
        files.delete(segment_path(DIRECTORY, 5))
        with pytest.raises(MissingFile, match=r"0000000000000005.log is missing from the log, between"):
            recover(files, DIRECTORY)
        files.delete(segment_path(DIRECTORY, 3))  # as if it had been removed before the mark came back
        with pytest.raises(MissingFile, match=r"0000000000000005.log is missing from the log, between"):
            recover(files, DIRECTORY)

    def test_a_mark_with_nothing_after_it_is_a_lost_file(self) -> None:
        files = log_of(3)
        files.put(mark_path(DIRECTORY, 4), b"")
        before = names(files)
        with pytest.raises(MissingFile, match=r"0000000000000004.log is missing from the log, with all"):
            recover(files, DIRECTORY)
        with pytest.raises(ValueError, match="it ends before"):
            finish_removal(files, DIRECTORY)
        assert names(files) == before

    def test_a_reader_changes_nothing(self) -> None:
        files = log_of(4)
        files.put(mark_path(DIRECTORY, 3), b"")
        files.delete(segment_path(DIRECTORY, 2))
        before = files.record()
        assert recovered(files) == [3, 4]
        assert files.record() == before

    def test_only_a_number_makes_a_mark(self) -> None:
        assert mark_sequence("log/x/0000000000000012.begin") == 12
        for name in ("12.begin", "0000000000000012.log", "0000000000000012.begin.bak", "x000000000000012.begin"):
            assert mark_sequence(f"log/x/{name}") is None


class TestListing:
    @pytest.mark.parametrize("hidden", [[4], [3], [3, 4]])
    def test_a_mark_that_is_seen_before_its_segment_is_looked_at_again(self, hidden: list[int]) -> None:
        """They came while the directory was being read: it shows a mark, and not what was made before the mark."""

        class Listed(SimulatedFiles):
            listings = 0

            def list(self, directory: str) -> list[FileInfo]:
                self.listings += 1
                gone: list[Any] = [segment_path(directory, number) for number in hidden] if self.listings == 1 else []
                return [info for info in super().list(directory) if info.path not in gone]

        files = Listed()
        for info in log_of(4).list(DIRECTORY):
            files.put(info.path, b"")
        files.put(mark_path(DIRECTORY, 3), b"")
        assert list_segments(files, DIRECTORY)[0] == segment_path(DIRECTORY, 3)
        assert hidden == [4] or files.listings == 2
