"""What a log must hold: files and bytes that were there once are missed, and no crash makes anything be missed."""

from __future__ import annotations

import random

import pytest

from ebla.errors import Corruption, MissingFile
from ebla.storage.log.log_extent import NOTHING, LogExtent
from ebla.storage.log.log_format import segment_path
from ebla.storage.log.log_reader import list_segments, recover, truncate_torn_tail
from ebla.storage.log.log_removal import finish_removal
from ebla.storage.log.log_writer import LogWriter, start_over
from tests.support.logs import (
    DIRECTORY,
    SERVER,
    finished_segment,
    flipped,
    make_entry,
    open_writer,
    recovered,
    with_segment,
    write_log,
)
from tests.support.simulated_files import FaultPlan, SimulatedCrash, SimulatedFiles


class Witness:
    """Keeps an extent as a coordination service would, and what was on disk whenever it changed."""

    def __init__(self, extent: LogExtent = NOTHING) -> None:
        self.extent = extent
        self.told: list[tuple[str, int]] = []

    def reached(self, sequence: int, synced: int) -> None:
        self.extent = self.extent.reaching(sequence, synced)

    def begun(self, sequence: int) -> None:
        self.told.append(("begun", sequence))
        self.extent = self.extent.reaching(sequence, 64)

    def removing(self, first: int) -> None:
        self.told.append(("removing", first))
        self.extent = self.extent.beginning_at(first)

    def closed(self) -> None:
        """Let go of nothing: it is all in memory."""


def witnessed(files: SimulatedFiles, witness: Witness, segment_bytes: int) -> LogWriter:
    """Open a log for writing as a store does."""
    recovery = recover(files, DIRECTORY, witness.extent)
    for _ in recovery:
        pass
    truncate_torn_tail(files, recovery)
    finish_removal(files, DIRECTORY)
    return LogWriter(
        files,
        DIRECTORY,
        SERVER,
        recovery.next_sequence,
        segment_bytes,
        recovery.segments,
        unfinished=recovery.unfinished,
        witness=witness,
    )


class TestExtents:
    def test_an_end_only_moves_forward(self) -> None:
        extent = LogExtent(3, 5, 100)
        assert extent.reaching(5, 99) is extent
        assert extent.reaching(4, 500) is extent
        assert extent.reaching(6, 64) == LogExtent(3, 6, 64)
        assert extent.beginning_at(2) is extent
        assert extent.beginning_at(5) == LogExtent(5, 5, 100)

    def test_what_is_missing_is_what_is_on_record_or_between_others_and_not_there(self) -> None:
        extent = LogExtent(3, 5, 100)
        assert extent.missing([3, 4, 5]) == extent.missing([2, 3, 4, 5, 6]) == []
        assert extent.missing([4, 5]) == [3]
        assert extent.missing([3, 4]) == [5]
        assert extent.missing([]) == [3, 4, 5]
        assert extent.missing([3, 4, 5, 7]) == [6]
        assert NOTHING.missing([7, 8]) == NOTHING.missing([]) == []
        assert NOTHING.missing([7, 9]) == [8]

    def test_what_is_given_up_is_not_missed_any_more(self) -> None:
        extent = LogExtent(3, 6, 100)
        assert extent.without([3, 5]) == LogExtent(4, 6, 100, (5,))
        assert extent.without([5]).missing([3, 4, 6]) == []
        assert extent.without([6]) == LogExtent(3, 6, 0, (6,))
        assert extent.without([3, 4, 5, 6]) == LogExtent(7, 6, 0)
        assert extent.without([4, 5]).beginning_at(5) == LogExtent(5, 6, 100, (5,))


class TestMissing:
    def log(self) -> tuple[SimulatedFiles, LogExtent]:
        """Return a log of 4 segments, the last of two entries, and what is on record of it."""
        files, witness = SimulatedFiles(), Witness()
        writer = witnessed(files, witness, 1)
        for txn in (1, 2, 3, 4):
            writer.append(make_entry(txn))
        writer._segment_bytes = 1 << 20
        writer.append(make_entry(5))
        writer.close()
        assert witness.extent == LogExtent(1, 4, files.size(segment_path(DIRECTORY, 4)))
        assert recovered(files, witness.extent) == [1, 2, 3, 4, 5]
        return files, witness.extent

    @pytest.mark.parametrize(
        ("gone", "told"),
        [
            ([1], r"0001.log is missing from the log, which begins with 0000000000000002.log now"),
            ([1, 2], r"0001.log is missing.*begins with 0000000000000003.log"),
            ([4], r"0004.log is missing from the log, which ends with 0000000000000003.log now"),
            ([2], r"0002.log is missing from the log, between other segments"),
            ([1, 2, 3, 4], r"0001.log is missing from the log, with all up to 0000000000000004.log"),
        ],
    )
    def test_segments_that_are_gone_are_missed(self, gone: list[int], told: str) -> None:
        files, extent = self.log()
        for number in gone:
            files.delete(segment_path(DIRECTORY, number))
        with pytest.raises(MissingFile, match=told + r".*restore it.*--accept-lost-log"):
            recover(files, DIRECTORY, extent)
        assert recovered(files, extent.without(gone)) == [txn for txn in (1, 2, 3, 4, 5) if min(txn, 4) not in gone]

    def test_an_end_that_is_cut_off_is_missed_wherever_it_is_cut(self) -> None:
        files, extent = self.log()
        data = files.read(segment_path(DIRECTORY, 4))
        for size in range(len(data)):
            with pytest.raises(Corruption, match="on record as synced"):
                recovered(with_segment(data[:size], 4, files), extent)
        assert recovered(with_segment(data + b"torn", 4, files), extent) == [1, 2, 3, 4, 5]

    def test_a_flipped_bit_in_what_is_on_record_is_found(self) -> None:
        files, extent = self.log()
        data = files.read(segment_path(DIRECTORY, 4))
        for position in range(len(data)):
            with pytest.raises(Corruption):
                recovered(with_segment(flipped(data, position, position % 8), 4, files), extent)

    def test_numbers_that_are_lost_are_not_used_again(self) -> None:
        files, extent = self.log()
        files.delete(segment_path(DIRECTORY, 4))
        files.delete(segment_path(DIRECTORY, 2))
        witness = Witness(extent.without([2, 4]))
        writer = witnessed(files, witness, 1)
        writer.append(make_entry(6))
        writer.close()
        assert [segment.sequence for segment in writer.segments()] == [1, 3, 5]
        assert recovered(files, witness.extent) == [1, 3, 6]
        writer = witnessed(files, witness, 1)
        writer.append(make_entry(7))
        assert len(writer.delete_segments(7)) == 3
        assert recovered(files, witness.extent) == [7]
        assert witness.extent.lost == ()

    def test_a_mark_without_segments_is_no_loss_once_they_are_given_up(self) -> None:
        files = SimulatedFiles()
        files.put(f"{DIRECTORY}/0000000000000003.begin", b"")
        with pytest.raises(MissingFile):
            list_segments(files, DIRECTORY)
        assert list_segments(files, DIRECTORY, LogExtent(3, 4, 100).without([3, 4])) == []


class TestWritingOn:
    def test_the_last_segment_is_written_on_until_it_is_full(self) -> None:
        files, witness = SimulatedFiles(), Witness()
        for txn in range(1, 30):
            writer = witnessed(files, witness, 4_000)
            writer.append(make_entry(txn))
            writer.sync()
            if txn % 3:
                writer.close()
            assert recovered(files, witness.extent) == [*range(1, txn + 1)]
        sizes = [info.size for info in files.list(DIRECTORY)]
        assert 2 <= len(sizes) <= 5
        assert all(size >= 4_000 for size in sizes[:-1])

    def test_a_segment_that_was_finished_or_torn_is_not_written_on(self) -> None:
        for data in (finished_segment(range(1, 3)), finished_segment(range(1, 3))[:-5]):
            files = with_segment(data)
            writer = witnessed(files, Witness(), 1 << 20)
            writer.append(make_entry(3))
            writer.close()
            assert [segment.sequence for segment in writer.segments()] == [1, 2]
            assert recovered(files) == [1, 2, 3]

    def test_it_needs_no_other_file_operation_than_a_write_and_a_sync(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 3))
        writer = witnessed(files, Witness(), 1 << 20)
        before = len(files.record())
        writer.append(make_entry(3))
        writer.close()
        assert [operation.kind for operation in files.record()[before:]] == ["write", "sync"]

    def test_who_does_not_say_so_begins_a_new_segment(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 3))
        writer = open_writer(files)
        writer.append(make_entry(3))
        assert [segment.sequence for segment in writer.segments()] == [1, 2]


class TestCrashes:
    """At every operation of a life with many openings, removals and a log that is started over."""

    def live(self, files: SimulatedFiles, witness: Witness, synced: list[int], needed: list[int]) -> None:
        txn = 0
        for opening in range(4):
            writer = witnessed(files, witness, (1, 1_500, 1, 3_000)[opening])
            for _ in range(4):
                txn += 1
                writer.append(make_entry(txn))
                writer.sync()
                synced.append(txn)
            if opening % 2:
                needed.append(txn - 2)
                writer.delete_segments(txn - 2)
            writer.close()
        needed.append(txn)
        start_over(files, DIRECTORY, SERVER, writer._next_sequence, writer.segments(), 1, make_entry(txn), witness)

    def test_what_is_on_record_is_there_after_a_crash_at_any_operation(self) -> None:
        whole = SimulatedFiles()
        self.live(whole, Witness(), [], [])
        operations = len(whole.record())
        assert operations > 60
        dice = random.Random(5)
        for number in range(operations):
            files, witness = SimulatedFiles(FaultPlan.crash_at(number)), Witness()
            synced: list[int] = []
            needed = [0]
            with pytest.raises(SimulatedCrash):
                self.live(files, witness, synced, needed)
            for image in [*files.crash_images(dice.randrange(1 << 30), 3), files.restarted()]:
                found = recovered(image, witness.extent)
                assert {txn for txn in synced if txn >= needed[-1]} <= {*found}
                # And it goes on from there, under the same record.
                again = Witness(witness.extent)
                writer = witnessed(image, again, 1_500)
                writer.append(make_entry(100))
                writer.close()
                assert recovered(image, again.extent) == [*found, 100]

    def test_a_segment_is_told_before_its_first_entry_and_a_removal_before_the_first_goes(self) -> None:
        class Noting(Witness):
            def begun(self, sequence: int) -> None:
                super().begun(sequence)
                assert files.size(segment_path(DIRECTORY, sequence)) == 64
                assert files.record()[-1].kind == "sync_directory"

            def removing(self, first: int) -> None:
                super().removing(first)
                assert files.exists(segment_path(DIRECTORY, 1))

        files, witness = SimulatedFiles(), Noting()
        writer = witnessed(files, witness, 1)
        for txn in (1, 2, 3):
            writer.append(make_entry(txn))
            writer.sync()
        writer.delete_segments(3)
        assert witness.told == [("begun", 1), ("begun", 2), ("begun", 3), ("removing", 3)]

    def test_nothing_is_removed_if_the_record_of_it_fails(self) -> None:
        class Failing(Witness):
            def removing(self, first: int) -> None:
                raise MissingFile("the record")

        files = SimulatedFiles()
        writer = witnessed(files, Failing(), 1)
        for txn in (1, 2, 3):
            writer.append(make_entry(txn))
            writer.sync()
        with pytest.raises(MissingFile, match="the record"):
            writer.delete_segments(3)
        assert recovered(files, LogExtent(1, 3, 64)) == [1, 2, 3]
