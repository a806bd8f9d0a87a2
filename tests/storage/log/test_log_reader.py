"""Reading the log while somebody writes it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ebla.storage.files.files import FileInfo
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.log.log_format import (
    segment_path,
)
from ebla.storage.log.log_reader import recover
from tests.support.logs import (
    DIRECTORY,
    exhaust,
    make_entry,
    open_writer,
    recovered,
    write_log,
)
from tests.support.simulated_files import SimulatedFiles


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
