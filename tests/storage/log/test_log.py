"""The log: its format, writing and reading it, rolling and deleting segments, and what a failing disk does to it."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.errors import Corruption, LogFailed
from ebla.storage.files.files import FileInfo
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.log.log_format import (
    SEGMENT_HEADER_BYTES,
    EntryKind,
    ErasureHeader,
    LogBlock,
    LogEntry,
    Reply,
    Slice,
    TabletPosition,
    decode_entry,
    decode_segment_header,
    encode_entry,
    encode_segment_header,
    frame_entry,
    segment_path,
    segment_sequence,
)
from ebla.storage.log.log_reader import recover
from ebla.storage.log.log_writer import LogWriter
from tests.support.logs import (
    DIRECTORY,
    MANY,
    SCHEMA_BYTES,
    SERVER,
    exhaust,
    flipped,
    make_entry,
    open_writer,
    recovered,
    write_log,
)
from tests.support.simulated_files import FaultPlan, SimulatedCrash, SimulatedFiles

# --- format --------------------------------------------------------------------------------------

TYPES = [
    (pa.binary(), st.binary(max_size=20)),
    (pa.string(), st.text(max_size=20)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.list_(pa.int32()), st.lists(st.integers(-5, 5), max_size=3)),
    (pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    (pa.struct([("x", pa.int8())]), st.fixed_dictionaries({"x": st.integers(-5, 5)})),
]
NUMBERS = st.integers(0, 2**62)
NAMES = st.text(max_size=10)


@st.composite
def blocks(draw: st.DrawFn) -> LogBlock:
    rows = draw(st.integers(0, 20))
    columns = draw(st.lists(st.sampled_from(TYPES), max_size=5))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind) for kind, values in columns
    ]
    names = [str(number) for number in range(len(arrays))]
    arrays.insert(0, pa.array(draw(st.lists(st.binary(max_size=9), min_size=rows, max_size=rows)), pa.binary()))
    names.insert(0, "_row")
    if draw(st.booleans()):
        arrays.append(pa.array(draw(st.lists(NUMBERS, min_size=rows, max_size=rows)), pa.int64()))
        names.append("_txn")
    records = pa.record_batch(arrays, names=names)
    begin = draw(st.integers(0, rows))
    records = records.slice(begin, draw(st.integers(0, rows - begin)))
    slices = draw(st.lists(st.builds(Slice, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=3))
    schema = records.schema.serialize().to_pybytes()
    txn, txn_min = draw(NUMBERS), draw(NUMBERS)
    return LogBlock(draw(NAMES), draw(NUMBERS), draw(NUMBERS), txn, txn_min, tuple(slices), schema, records)


TABLETS = st.lists(st.builds(TabletPosition, NAMES, NUMBERS, NUMBERS), max_size=3).map(tuple)
ERASURES = st.builds(ErasureHeader, NAMES, st.binary(), st.none() | st.binary(), NUMBERS, TABLETS)
ENTRIES = st.builds(
    LogEntry,
    NUMBERS,
    st.lists(blocks(), max_size=3).map(tuple),
    st.lists(ERASURES, max_size=3).map(tuple),
    st.lists(st.builds(Reply, NAMES, NUMBERS, NUMBERS), max_size=3).map(tuple),
)


class TestFormat:
    @given(ENTRIES)
    @settings(deadline=None, max_examples=60)
    def test_an_entry_is_decoded_to_what_was_encoded(self, entry: LogEntry) -> None:
        payload = b"".join(encode_entry(entry))
        assert len(payload) % 8 == 0
        decoded = decode_entry(pa.py_buffer(payload))
        assert decoded == entry
        for block, other in zip(decoded.blocks, entry.blocks, strict=True):
            block.records.validate(full=True)
            assert block.has_txn_column == other.has_txn_column
            assert block.rows == other.rows

    @given(st.binary(max_size=200))
    def test_bytes_that_are_no_entry_are_refused(self, data: bytes) -> None:
        files = SimulatedFiles()
        header, head = encode_segment_header(SERVER, 1, None)
        framed = frame_entry(EntryKind.COMMIT, [data], header, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)
        files.put(segment_path(DIRECTORY, 1), b"".join([head, *framed]))
        with pytest.raises(Corruption, match=r"offset 64.*cannot be understood"):
            recovered(files)

    def test_records_are_not_copied_by_reading(self) -> None:
        payload = pa.py_buffer(b"".join(encode_entry(make_entry(1, rows=100))))
        block = decode_entry(payload).blocks[0]
        for column in block.records.columns:
            for buffer in column.buffers():
                if buffer is not None:
                    assert payload.address <= buffer.address < payload.address + payload.size
                    assert buffer.address % 8 == 0

    def test_a_schema_that_is_not_the_records_is_refused(self) -> None:
        records = pa.record_batch({"_row": pa.array([b"a"]), "9": pa.array([1])})
        with pytest.raises(ValueError, match="schema"):
            encode_entry(LogEntry(1, (LogBlock("t", 1, 1, 1, 1, (), SCHEMA_BYTES, records),)))

    @pytest.mark.parametrize(
        "kind", [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.string()))]
    )
    def test_dictionaries_are_refused(self, kind: pa.DataType) -> None:
        records = pa.record_batch([pa.array([None], kind)], names=["2"])
        schema = records.schema.serialize().to_pybytes()
        with pytest.raises(ValueError, match="dictionary"):
            encode_entry(LogEntry(1, (LogBlock("t", 1, 1, 1, 1, (), schema, records),)))

    def test_the_smallest_txn_of_an_entry(self) -> None:
        block = make_entry(50).blocks[0]
        erasure = ErasureHeader("t", b"", None, 40, ())
        assert LogEntry(60, (block,)).txn_min == 50
        assert LogEntry(60, (block,), (erasure,)).txn_min == 40
        assert LogEntry(60).txn_min == 60

    @pytest.mark.parametrize("previous", [None, 0, 64, 1 << 40])
    def test_segment_headers_round_trip(self, previous: int | None) -> None:
        header, data = encode_segment_header(SERVER, 7, previous)
        assert len(data) == SEGMENT_HEADER_BYTES
        assert decode_segment_header(data + b"more") == header
        assert (header.server, header.sequence, header.previous_bytes) == (SERVER, 7, previous)
        for position in range(len(data)):
            assert decode_segment_header(flipped(data, position)) is None
            assert decode_segment_header(data[:position]) is None

    def test_segment_names(self) -> None:
        assert segment_path("log/x", 12) == "log/x/0000000000000012.log"
        assert segment_sequence("log/x/0000000000000012.log") == 12
        for name in ("12.log", "0000000000000012.log.bak", "x000000000000012.log", "0000000000000012"):
            assert segment_sequence(f"log/x/{name}") is None


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
        ]  # its header, its entry, its closed mark
        assert kinds == ["create", "write", "sync", "write", "sync", "write", "sync"]
        assert [segment.closed for segment in exhaust(files).segments] == [True, True, False]

    def test_what_the_writer_knows_of_its_segments_is_what_the_recovery_finds(self) -> None:
        files = SimulatedFiles()
        writer = LogWriter(files, DIRECTORY, SERVER, 1, 700)
        for txn in (30, 10, 20, 50, 40):
            writer.append(make_entry(txn))
        writer.sync()
        assert writer.segments() == exhaust(files).segments
        assert writer.total_bytes() == sum(info.size for info in files.list(DIRECTORY))
        writer.close()
        assert writer.segments() == exhaust(files).segments
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
        files.put(path, files.read(path)[:-5])
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
        files.bytes_max = files.size(segment_path(DIRECTORY, 1)) + 50
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
        files.bytes_max = files.size(segment_path(DIRECTORY, 1)) + 50
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

    def test_closing_a_log_that_is_synced_writes_nothing(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        writer.sync()
        before = files.record()
        writer.close()
        assert files.record() == before
        assert recovered(files) == [1]

    def test_an_entry_that_cannot_be_encoded_harms_nothing(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files)
        writer.append(make_entry(1))
        with pytest.raises(ValueError, match="schema"):
            writer.append(LogEntry(2, (LogBlock("t", 1, 1, 1, 1, (), SCHEMA_BYTES, pa.record_batch({"a": [1]})),)))
        writer.append(make_entry(3))
        writer.close()
        assert recovered(files) == [1, 3]


# --- readers beside a writer ---------------------------------------------------------------------


class TestReadingBesideAWriter:
    def test_a_reader_sees_a_growing_beginning_of_the_log(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path)
        synced = 0
        done = threading.Event()
        errors: list[BaseException] = []

        def write() -> None:
            nonlocal synced
            try:
                writer = open_writer(files, segment_bytes=100_000)
                for txn in range(1, 301):
                    writer.append(make_entry(txn, rows=txn % 100))
                    if txn % 3 == 0:
                        writer.sync()
                        synced = txn
                writer.close()
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=write)
        thread.start()
        while True:
            finished = done.is_set()
            expected = synced
            found = recovered(LocalFiles(tmp_path))
            assert found == [*range(1, len(found) + 1)]
            assert len(found) >= expected
            if finished:
                break
        thread.join()
        assert errors == []
        assert found == [*range(1, 301)]

    def test_a_segment_deleted_under_a_reader_is_reported(self) -> None:
        files = SimulatedFiles()
        writer = open_writer(files, segment_bytes=1)
        for txn in range(1, 5):
            writer.append(make_entry(txn))
            writer.sync()
        recovery = recover(files, DIRECTORY)
        assert next(recovery).entry.txn_max == 1
        writer.delete_segments(4)
        with pytest.raises(FileNotFoundError):
            next(recovery)
        assert recovered(files) == [4]

    def test_a_listing_made_while_segments_go_is_made_again(self) -> None:
        """Segment 1 is still seen, 2 is not any more: deleted while the directory was being read."""

        class Listed(SimulatedFiles):
            listings = 0

            def list(self, directory: str) -> Any:
                self.listings += 1
                found = super().list(directory)
                if self.listings == 1:
                    found.insert(0, FileInfo(segment_path(directory, 1), 100, 0.0))
                return found

        files = Listed()
        whole = SimulatedFiles()
        write_log(whole, range(1, 6), segment_bytes=1)
        for sequence in (3, 4, 5):
            files.put(segment_path(DIRECTORY, sequence), whole.read(segment_path(DIRECTORY, sequence)))
        assert recovered(files) == [3, 4, 5]
        assert files.listings == 2

    def test_an_empty_directory_is_an_empty_log(self) -> None:
        recovery = exhaust(SimulatedFiles())
        assert (recovery.segments, recovery.torn_tail, recovery.next_sequence) == ([], None, 1)
