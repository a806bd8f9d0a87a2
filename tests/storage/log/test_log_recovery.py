"""The log keeps every synced entry, cuts off what a crash tore, and refuses what was damaged."""

from __future__ import annotations

import contextlib
import errno
import random
import struct
from typing import Any

import google_crc32c
import pytest

from ebla.errors import Corruption, FormatTooNew, MissingFile
from ebla.storage.log.log_format import (
    ENTRY_HEADER_BYTES,
    FORMAT_VERSION,
    SEGMENT_HEADER_BYTES,
    encode_segment_header,
    frame_entry,
    segment_path,
)
from ebla.storage.log.log_reader import read_segment, recover, truncate_torn_tail
from ebla.storage.log.log_writer import LogWriter
from tests.support.logs import (
    DIRECTORY,
    SERVER,
    exhaust,
    finished_segment,
    flipped,
    make_entry,
    offsets_of,
    open_writer,
    recovered,
    with_segment,
    write_log,
    written,
)
from tests.support.simulated_files import FaultPlan, SimulatedCrash, SimulatedFiles


class TestTornTail:
    def test_a_cut_at_any_byte_leaves_the_entries_before_it(self) -> None:
        whole = SimulatedFiles()
        write_log(whole, range(1, 4))
        data = whole.read(segment_path(DIRECTORY, 1))
        ends = offsets_of(whole)[1:]
        for size in range(len(data) + 1):
            files = with_segment(data[:size])
            recovery = recover(files, DIRECTORY)
            found = [entry.entry.txn_max for entry in recovery]
            assert found == [txn for txn, end in enumerate(ends, start=1) if end <= size]
            good = max([0, *(end for end in [SEGMENT_HEADER_BYTES, *ends, len(data)] if end <= size)])
            torn = recovery.torn_tail
            assert (torn.offset, torn.size) == (good, size - good) if torn else size == good
            truncate_torn_tail(files, recovery)
            assert files.size(segment_path(DIRECTORY, 1)) == good
            write_log(files, range(7, 8))
            assert recovered(files) == [*found, 7]

    def test_the_name_of_a_segment_is_durable_before_it_is_written_on(self) -> None:
        """Who made it was killed before it could sync the directory: the next power failure must not take it away."""
        whole = SimulatedFiles()
        write_log(whole, range(1, 3))
        files = SimulatedFiles()
        write_log(files, range(1, 1))
        with files.create(segment_path(DIRECTORY, 1)) as file:
            file.write(whole.read(segment_path(DIRECTORY, 1)))
            file.sync()
        assert any(not image.list(DIRECTORY) for image in files.crash_images())
        recovery = recover(files, DIRECTORY)
        assert len(list(recovery)) == 2
        truncate_torn_tail(files, recovery)
        assert all(recovered(image) == [1, 2] for image in files.crash_images())

    def test_nothing_is_cut_where_reading_stopped_early(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4))
        recovery = recover(files, DIRECTORY)
        next(recovery)
        with pytest.raises(ValueError, match="read to its end"):
            truncate_torn_tail(files, recovery)
        assert recovered(files) == [1, 2, 3]

    def test_a_reader_does_not_truncate(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4), close=False)
        path = segment_path(DIRECTORY, 1)
        files.put(path, written(files)[:-1])
        assert recovered(files) == [1, 2]
        assert [entry.txn_max for _, entry in read_segment(files, path)] == [1, 2]
        assert files.record()[-1].kind != "truncate"

    def test_zeros_at_the_end_are_room_that_was_reserved(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 3), close=False)
        whole = written(files)
        assert files.size(segment_path(DIRECTORY, 1)) > len(whole)
        for zeros in (1, 8, 5000):
            files.put(segment_path(DIRECTORY, 1), whole + bytes(zeros))
            recovery = exhaust(files)
            assert recovery.torn_tail is None
            truncate_torn_tail(files, recovery)
            assert files.read(segment_path(DIRECTORY, 1)) == whole

    def test_unsynced_entries_may_reach_the_disk_in_any_order(self) -> None:
        """The first of three unsynced entries is missing, the others are there: nobody was told of any of them."""
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        writer.sync()
        for txn in (2, 3, 4):
            writer.append(make_entry(txn))
        begin, end = offsets_of(files)[1:3]
        path = segment_path(DIRECTORY, 1)
        data = files.read(path)
        files.put(path, data[:begin] + bytes(end - begin) + data[end:])
        recovery = recover(files, DIRECTORY)
        assert [found.entry.txn_max for found in recovery] == [1]
        assert recovery.torn_tail is not None
        assert recovery.torn_tail.offset == begin

    def test_a_copy_of_a_log_in_a_torn_entry_is_not_taken_for_entries(self) -> None:
        other = SimulatedFiles()
        write_log(other, range(1, 30), close=False)
        stolen = other.read(segment_path(DIRECTORY, 1))
        files = SimulatedFiles()
        write_log(files, range(1, 3), close=False)
        begin = len(written(files))
        # The same server and segment, but at other offsets; and the same offsets, but of another segment.
        shifted = written(files) + bytes(16) + stolen
        assert recovered(with_segment(shifted)) == [1, 2]
        write_log(other, range(30, 60), close=False)
        elsewhere = written(files) + other.read(segment_path(DIRECTORY, 2))[begin:]
        assert recovered(with_segment(elsewhere)) == [1, 2]


class TestDamage:
    def test_a_flipped_bit_is_found_wherever_it_is(self) -> None:
        """In the last segment of a log that was not closed only the last entry can pass for torn."""
        whole = SimulatedFiles()
        write_log(whole, range(1, 4), close=False)
        data = written(whole)
        begins = offsets_of(whole)
        dice = random.Random(0)
        for position in range(len(data)):
            files = with_segment(flipped(data, position, dice.randrange(8)))
            damaged = max([0, *(begin for begin in begins if begin <= position)])
            if damaged == begins[2]:
                assert recovered(files) == [1, 2]
            else:
                with pytest.raises(Corruption) as caught:
                    recovered(files)
                assert (caught.value.file, caught.value.offset) == (segment_path(DIRECTORY, 1), damaged)

    def test_a_flipped_bit_before_the_closing_mark_is_found(self) -> None:
        data = finished_segment(range(1, 4))
        for position in range(len(data)):
            files = with_segment(flipped(data, position))
            if position >= len(data) - ENTRY_HEADER_BYTES:  # the mark itself
                assert recovered(files) == [1, 2, 3]
            else:
                with pytest.raises(Corruption):
                    recovered(files)

    def test_a_flipped_bit_in_a_finished_segment_is_found(self) -> None:
        """Finished by a clean close or, as here, cut off by a recovery and followed by another."""
        whole = SimulatedFiles()
        write_log(whole, range(1, 4), close=False)
        write_log(whole, range(4, 5), close=False)
        data = whole.read(segment_path(DIRECTORY, 1))
        begins = offsets_of(whole)
        for position in range(len(data)):
            with pytest.raises(Corruption, match=r"0000000000000001.log") as caught:
                recovered(with_segment(flipped(data, position), 1, whole))
            assert caught.value.offset == max([0, *(begin for begin in begins if begin <= position)])

    def test_damage_is_found_though_the_next_segment_was_still_in_the_making(self) -> None:
        """That the next segment exists at all shows that this one was whole."""
        whole = SimulatedFiles()
        write_log(whole, range(1, 4))
        whole.put(segment_path(DIRECTORY, 2), b"EBLA")
        assert recovered(whole) == [1, 2, 3]
        data = whole.read(segment_path(DIRECTORY, 1))
        last = offsets_of(whole)[2]
        with pytest.raises(Corruption) as caught:
            recovered(with_segment(flipped(data, len(data) - 1), 1, whole))
        assert caught.value.offset == last

    def test_the_closing_mark_vouches_for_every_entry_before_it(self) -> None:
        files = SimulatedFiles(FaultPlan.crash_when(lambda operation: operation.path == segment_path(DIRECTORY, 2)))
        writer = LogWriter(files, DIRECTORY, SERVER, 1, 700)
        writer.append(make_entry(1))  # neither is synced by the caller
        writer.append(make_entry(2))
        with pytest.raises(SimulatedCrash):
            writer.append(make_entry(3))
        image = files.crash_images()[0]
        data = image.read(segment_path(DIRECTORY, 1))
        assert recovered(image) == [1, 2]
        for position in range(len(data) - ENTRY_HEADER_BYTES):
            with pytest.raises(Corruption):
                recovered(with_segment(flipped(data, position)))

    def test_a_finished_segment_that_lost_its_end_is_found(self) -> None:
        whole = SimulatedFiles()
        write_log(whole, range(1, 4), close=False)
        write_log(whole, range(4, 5), close=False)
        data = whole.read(segment_path(DIRECTORY, 1))
        for size in range(len(data)):
            with pytest.raises(Corruption, match=r"0000000000000001.log"):
                recovered(with_segment(data[:size], 1, whole))

    def test_damage_before_a_torn_entry_is_found(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4), close=False)
        path = segment_path(DIRECTORY, 1)
        begins = offsets_of(files)
        torn = files.read(path)[: begins[2] + ENTRY_HEADER_BYTES + 1]
        assert recovered(with_segment(torn)) == [1, 2]
        with pytest.raises(Corruption) as caught:
            recovered(with_segment(flipped(torn, begins[1] + 40)))
        assert caught.value.offset == begins[1]

    def test_entries_before_the_damage_are_read_first(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4))
        path = segment_path(DIRECTORY, 1)
        files.put(path, flipped(files.read(path), offsets_of(files)[1] + 50))
        recovery = recover(files, DIRECTORY)
        assert next(recovery).entry == make_entry(1)
        with pytest.raises(Corruption):
            next(recovery)

    def test_bytes_after_the_closing_mark_are_damage(self) -> None:
        with pytest.raises(Corruption, match="bytes follow"):
            recovered(with_segment(finished_segment(range(1, 3)) + b"x"))

    def test_random_bytes_in_place_of_a_segment(self) -> None:
        dice = random.Random(3)
        for size in (1, 63, 64, 65, 1000):
            whole = SimulatedFiles()
            write_log(whole, range(1, 4), segment_bytes=1)
            for sequence in (1, 2, 3):
                files = with_segment(dice.randbytes(size), sequence, whole)
                if sequence == 3 and size <= SEGMENT_HEADER_BYTES:
                    assert recovered(files) == [1, 2]  # as if it had been in the making
                else:
                    with pytest.raises(Corruption, match=f"000{sequence}.log at offset 0"):
                        recovered(files)

    def test_a_missing_segment_between_others_is_named(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 6), segment_bytes=1)
        files.delete(segment_path(DIRECTORY, 3))
        with pytest.raises(MissingFile, match=r"0000000000000003.log is missing"):
            recover(files, DIRECTORY)

    def test_missing_oldest_segments_are_normal(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 6), segment_bytes=1)
        files.delete(segment_path(DIRECTORY, 1))
        files.delete(segment_path(DIRECTORY, 2))
        assert recovered(files) == [3, 4, 5]

    def test_a_segment_in_the_place_of_another_is_damage(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4), segment_bytes=1)
        first = files.read(segment_path(DIRECTORY, 1))
        with pytest.raises(Corruption, match="it is segment 1 of the log of server"):
            recovered(with_segment(first, 2, files))
        stranger = "00000000-0000-4000-8000-000000000000"
        files.put(segment_path(f"log/{stranger}", 1), first)
        with pytest.raises(Corruption, match=f"server {SERVER}"):
            [*recover(files, f"log/{stranger}")]

    def test_other_files_in_the_directory_are_left_alone(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4))
        files.put(f"{DIRECTORY}/notes.txt", b"hello")
        files.put(f"{DIRECTORY}/0000000000000009.log.copy", b"hello")
        assert recovered(files) == [1, 2, 3]

    def test_an_unreadable_segment_is_not_an_empty_one(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4), segment_bytes=1)
        files.plan = FaultPlan(reads={segment_path(DIRECTORY, 3): errno.EIO})
        with pytest.raises(OSError, match="Input/output error"):
            recovered(files)


class TestLaterVersions:
    def test_a_segment_of_a_later_version_is_told_from_damage(self) -> None:
        _, data = encode_segment_header(SERVER, 1, None)
        checked = data[:8] + struct.pack("<I", FORMAT_VERSION + 1) + data[12:-4]
        files = with_segment(checked + struct.pack("<I", google_crc32c.value(checked)))
        with pytest.raises(
            FormatTooNew, match=rf"0000000000000001.log is a log of format {FORMAT_VERSION + 1}.*update"
        ):
            recovered(files)

    def test_an_entry_of_an_unknown_kind_is_told_from_damage(self) -> None:
        header, data = encode_segment_header(SERVER, 1, None)
        unknown: Any = 77
        framed = frame_entry(unknown, [bytes(8)], header, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)
        with pytest.raises(FormatTooNew, match="offset 64 has an entry of kind 77"):
            recovered(with_segment(b"".join([data, *framed])))


# --- crashes -------------------------------------------------------------------------------------


def script(files: SimulatedFiles, synced: list[int], deleted: list[int]) -> None:
    """Open, write, roll, delete, close, open again and go on; note what was promised on the way."""
    for begin in (1, 6):
        writer = open_writer(files, segment_bytes=900)
        for txn in range(begin, begin + 5):
            writer.append(make_entry(txn, rows=txn))
            if txn % 5 != 2:  # some are synced together with the next
                writer.sync()
                synced[:] = range(1, txn + 1)
        deleted[:] = [txn for segment in writer.segments()[:1] for txn in range(1, segment.txn_max + 1)]
        writer.delete_segments(deleted[-1] + 1)
        writer.close()


class TestCrashes:
    def test_every_synced_entry_is_in_every_image_of_every_crash(self) -> None:
        whole = SimulatedFiles()
        script(whole, [], [])
        operations = len(whole.record())
        assert operations > 40
        for number in range(operations + 1):
            files = SimulatedFiles(FaultPlan.crash_at(number))
            synced: list[int] = []
            deleted: list[int] = []
            with contextlib.suppress(SimulatedCrash):
                script(files, synced, deleted)
            for image in files.crash_images(seed=number, count=6):
                self.check(image, synced, deleted)

    def test_what_a_killed_process_left_is_durable_once_it_was_recovered(self) -> None:
        """First the process is killed, so that unsynced entries are still found; later the power fails."""
        whole = SimulatedFiles()
        script(whole, [], [])
        for number in range(len(whole.record()) + 1):
            killed = SimulatedFiles(FaultPlan.crash_at(number))
            with contextlib.suppress(SimulatedCrash):
                script(killed, [], [])
            files = killed.restarted()
            found = recovered(files)
            write_log(files, range(100, 101))
            for image in files.crash_images(seed=number, count=4):
                assert recovered(image) == [*found, 100]

    def test_a_crash_in_a_recovery_is_recovered(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4), segment_bytes=900, close=False)
        writer = open_writer(files, segment_bytes=900)
        writer.append(make_entry(4))
        writer.sync()
        writer.append(make_entry(5, rows=2000))
        for first in files.crash_images(seed=1, count=6):
            found = recovered(first)
            probe = first.crash_images()[1]
            write_log(probe, range(10, 13), segment_bytes=900)
            for number in range(len(probe.record()) + 1):
                second = first.crash_images()[1]  # a fresh copy
                second.plan = FaultPlan.crash_at(number)
                with contextlib.suppress(SimulatedCrash):
                    write_log(second, range(10, 13), segment_bytes=900)
                for image in second.crash_images(seed=number, count=2):
                    again = recovered(image)
                    assert again[:4] == [1, 2, 3, 4]
                    assert again in [[*found, *range(10, end)] for end in range(10, 14)]

    @staticmethod
    def check(image: SimulatedFiles, synced: list[int], deleted: list[int]) -> None:
        found = recovered(image)
        assert found == [*range(found[0], found[0] + len(found))] if found else not (set(synced) - set(deleted))
        assert set(synced) - set(deleted) <= set(found)
        # The store goes on, and what was there stays.
        write_log(image, range(100, 102))
        assert recovered(image) == [*found, 100, 101]
