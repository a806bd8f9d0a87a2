"""Writing the log: rolling and deleting segments, and what a failing disk does to it."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from ebla.errors import LogFailed
from ebla.storage.log.log_entry import (
    LogBlock,
    LogEntry,
    LogPart,
)
from ebla.storage.log.log_format import (
    segment_path,
)
from ebla.storage.log.log_reader import recover
from ebla.storage.log.log_writer import LogWriter
from tests.support.logs import (
    DIRECTORY,
    MANY,
    SCHEMA_BYTES,
    SERVER,
    exhaust,
    make_entry,
    open_writer,
    recovered,
    write_log,
    written,
)
from tests.support.simulated_files import FaultPlan, SimulatedCrash, SimulatedFiles

# --- writing -------------------------------------------------------------------------------------


class TestWriting:
    def test_entries_come_back_in_order_over_many_segments(self) -> None:
        files = SimulatedFiles()
        segments = write_log(files, range(1, 21), segment_bytes=1500)
        assert len(segments) > 3
        assert recovered(files) == [*range(1, 21)]
        found = next(recover(files, DIRECTORY))
        assert (found.path, found.offset, found.entry) == (segment_path(DIRECTORY, 1), 64, make_entry(1))

    def test_no_segment_is_made_before_the_first_entry(self) -> None:
        files = SimulatedFiles()
        writer = LogWriter(files, DIRECTORY, SERVER, 1, MANY)
        writer.sync()
        writer.close()
        assert files.record() == ()
        assert writer.segments() == []
        assert recover(files, DIRECTORY).next_sequence == 1

    def test_a_segment_is_durable_before_its_first_entry(self) -> None:
        files = SimulatedFiles()
        LogWriter(files, DIRECTORY, SERVER, 1, MANY).append(make_entry(1))
        assert [operation.kind for operation in files.record()][-5:] == [
            "create",
            "write",
            "sync",
            "sync_directory",
            "write",
        ]

    def test_one_entry_is_one_write_and_one_sync(self) -> None:
        files = SimulatedFiles()
        writer = LogWriter(files, DIRECTORY, SERVER, 1, MANY)
        writer.append(make_entry(1))
        writer.sync()
        before = len(files.record())
        length = writer.append(make_entry(2, rows=500))
        writer.sync()
        writer.sync()  # nothing to do
        write, sync = files.record()[before:]
        assert (write.kind, write.size, sync.kind) == ("write", length, "sync")

    def test_a_segment_that_is_full_is_closed_before_the_next_is_made(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4), segment_bytes=100, close=False)
        kinds = [
            operation.kind for operation in files.record() if operation.path == segment_path(DIRECTORY, 2)
        ]  # its header, its entry, what was reserved given back, its closed mark
        assert kinds == ["create", "write", "sync", "write", "sync", "sync", "write", "sync"]
        assert [segment.closed for segment in exhaust(files).segments] == [True, True, False]

    def test_what_the_writer_knows_of_its_segments_is_what_the_recovery_finds(self) -> None:
        files = SimulatedFiles()
        writer = LogWriter(files, DIRECTORY, SERVER, 1, 700)
        for txn in (30, 10, 20, 50, 40):
            writer.append(make_entry(txn))
        writer.sync()
        assert writer.segments() == exhaust(files).segments
        writer.close()
        assert writer.segments() == exhaust(files).segments
        assert writer.total_bytes() == sum(info.size for info in files.list(DIRECTORY))
        assert [(segment.txn_min, segment.txn_max) for segment in writer.segments()] == [(10, 30), (20, 50), (40, 40)]

    def test_an_older_log_is_continued_in_a_new_segment(self) -> None:
        files = SimulatedFiles()
        first = write_log(files, range(1, 3))
        second = write_log(files, range(3, 5), close=False)
        assert second[:1] == first
        assert [segment.sequence for segment in second] == [1, 2]
        write_log(files, range(5, 6))
        assert recovered(files) == [1, 2, 3, 4, 5]

    def test_a_closed_log_takes_nothing(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        writer.close()
        writer.close()
        with pytest.raises(ValueError, match="closed"):
            writer.append(make_entry(2))
        assert recovered(files) == [1]  # closing syncs

    def test_a_torn_tail_must_be_cut_before_writing(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 3), close=False)
        path = segment_path(DIRECTORY, 1)
        files.put(path, written(files)[:-5])
        recovery = exhaust(files)
        with pytest.raises(ValueError, match="must be cut"):
            LogWriter(files, DIRECTORY, SERVER, recovery.next_sequence, MANY, recovery.segments)


class TestDeleting:
    def test_segments_below_a_txn_are_deleted_oldest_first(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files, segment_bytes=1)  # an entry each
        for txn in range(1, 6):
            writer.append(make_entry(txn))
            writer.sync()
        before = len(files.record())
        assert [segment.txn_max for segment in writer.delete_segments(3)] == [1, 2]
        # Marked durably before any goes, or a crash could leave a gap that counts.
        kinds = [operation.kind for operation in files.record()[before:]]
        assert kinds == ["replace", "sync_directory", "delete", "sync_directory", "delete"]
        assert [segment.sequence for segment in writer.segments()] == [3, 4, 5]
        assert recovered(files) == [3, 4, 5]
        assert writer.delete_segments(3) == []

    def test_the_current_segment_stays(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files, segment_bytes=1)
        for txn in range(1, 4):
            writer.append(make_entry(txn))
            writer.sync()
        writer.delete_segments(1 << 62)
        assert [segment.sequence for segment in writer.segments()] == [3]
        writer.append(make_entry(4))
        writer.close()
        assert recovered(files) == [3, 4]

    def test_a_segment_that_is_needed_keeps_those_after_it(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files, segment_bytes=1)
        for txn in (9, 1, 2, 3):
            writer.append(make_entry(txn))
            writer.sync()
        assert writer.delete_segments(5) == []

    def test_segments_of_the_process_before_are_deleted_too(self) -> None:
        files = SimulatedFiles()
        write_log(files, range(1, 4), segment_bytes=1)
        writer = open_writer(files, segment_bytes=1)
        assert [segment.sequence for segment in writer.delete_segments(3)] == [1, 2]
        writer.append(make_entry(4))
        writer.close()
        assert recovered(files) == [3, 4]

    @pytest.mark.parametrize("kind", ["replace", "delete", "sync_directory"])
    @pytest.mark.parametrize("effect", [0.0, 1.0])
    def test_a_failed_deletion_can_be_repeated(self, kind: str, effect: float) -> None:
        files = SimulatedFiles()
        writer = open_writer(files, segment_bytes=1)
        for txn in range(1, 4):
            writer.append(make_entry(txn))
            writer.sync()
        files.plan = FaultPlan.fail_when(lambda operation: operation.kind == kind, effect=effect)
        with pytest.raises(OSError, match="Input/output error"):
            writer.delete_segments(3)
        files.plan = FaultPlan()
        writer.append(make_entry(4))  # the log goes on
        writer.delete_segments(3)
        writer.sync()
        assert recovered(files) == [3, 4]


class TestFailing:
    def test_a_full_disk_stops_the_log_and_says_so(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        writer.sync()
        files.bytes_max = len(written(files)) + 50
        with pytest.raises(LogFailed, match=r"no space left.*free space, then reopen"):
            writer.append(make_entry(2))
        assert writer.failed
        files.bytes_max = None
        before = len(files.record())
        for operation in (lambda: writer.append(make_entry(3)), writer.sync):
            with pytest.raises(LogFailed, match="no space left"):
                operation()
        writer.close()
        assert len(files.record()) == before  # nothing was tried again, no clean end claimed
        assert recovered(files) == [1]

    def test_writing_resumes_on_reopening_when_space_returns(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        writer.sync()
        files.bytes_max = len(written(files)) + 50
        with pytest.raises(LogFailed):
            writer.append(make_entry(2))
        with pytest.raises(LogFailed, match="no space left"):
            open_writer(files).append(make_entry(3))  # no room for a segment either
        files.bytes_max = None
        write_log(files, range(4, 6))
        assert recovered(files) == [1, 4, 5]

    def test_a_failed_sync_is_never_repeated(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        writer.sync()
        writer.append(make_entry(2))
        files.plan = FaultPlan.fail_at(len(files.record()), errno.EIO)
        with pytest.raises(LogFailed, match=r"Input/output error.*reopen") as caught:
            writer.sync()
        assert isinstance(caught.value.__cause__, OSError)
        before = len(files.record())
        with pytest.raises(LogFailed, match="Input/output error"):
            writer.sync()
        with pytest.raises(LogFailed):
            writer.append(make_entry(3))
        writer.close()
        assert len(files.record()) == before

    @pytest.mark.parametrize("effect", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
    def test_a_failure_at_any_operation_stops_the_log_and_loses_nothing(self, error: int, effect: float) -> None:
        script = SimulatedFiles()
        write_log(script, range(1, 5), segment_bytes=700)
        for number in range(len(script.record())):
            files = SimulatedFiles(FaultPlan.fail_at(number, error, effect))
            writer = LogWriter(files, DIRECTORY, SERVER, 1, 700)
            synced = []
            try:
                for txn in range(1, 5):
                    writer.append(make_entry(txn))
                    writer.sync()
                    synced.append(txn)
                writer.close()
            except LogFailed:
                with pytest.raises(LogFailed):
                    writer.append(make_entry(9))
            for image in files.crash_images(number, count=3):
                found = recovered(image)
                assert found[: len(synced)] == synced
                assert found in ([*range(1, n)] for n in range(1, 6))
                write_log(image, range(10, 12))
                assert recovered(image) == [*found, 10, 11]

    def test_a_write_that_is_broken_off_in_any_other_way_stops_the_log(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))

        files.plan = FaultPlan.crash_at(len(files.record()))
        with pytest.raises(SimulatedCrash):
            writer.append(make_entry(2))
        with pytest.raises(LogFailed, match="SimulatedCrash"):
            writer.append(make_entry(2))

    def test_closing_a_log_that_is_synced_gives_back_what_was_reserved_and_writes_nothing(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        writer.sync()
        before = len(files.record())
        whole = written(files)
        assert len(whole) < files.size(segment_path(DIRECTORY, 1))
        writer.close()
        assert [operation.kind for operation in files.record()[before:]] == ["sync"]
        assert files.read(segment_path(DIRECTORY, 1)) == whole

    def test_what_was_reserved_is_written_on_and_grows_when_it_is_used_up(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        sizes = set()
        for txn in range(1, 40):
            writer.append(make_entry(txn, rows=300))
            writer.sync()
            sizes.add(files.size(segment_path(DIRECTORY, 1)))
            assert files.size(segment_path(DIRECTORY, 1)) >= writer.total_bytes()
        assert 2 < len(sizes) < 20
        assert recovered(files) == [*range(1, 40)]
        assert all(recovered(image) == [*range(1, 40)] for image in files.crash_images())

    def test_an_entry_that_cannot_be_encoded_harms_nothing(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        block = LogBlock(1, 1, 1, 1, SCHEMA_BYTES, pa.record_batch({"a": [1]}))
        with pytest.raises(ValueError, match="schema"):
            writer.append(LogEntry(2, (LogPart("t", "tablet", 1, 1, 1, 1, 2, (block,)),)))
        writer.append(make_entry(3))
        writer.close()
        assert recovered(files) == [1, 3]
