"""The bound of the txns given out, on record: only its own writes move it, also those it never heard back from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ebla.clock import SystemClock
from ebla.coordination.memory import Fault, Faults, MemoryCoordination, MemoryStore
from ebla.coordination.service import Operation
from ebla.errors import Corruption, StoreError, Unavailable
from ebla.storage.log.log_extent import NOTHING, LogExtent
from ebla.storage.log.log_format import SegmentInfo
from ebla.tablet.recovery.server_record import ServerRecord, read_extent
from tests.support.simulated_files import SimulatedFiles


class Interrupted(MemoryCoordination):
    """Writes, and is interrupted before it can say so."""

    interrupts = 0

    def multi(self, operations: Sequence[Operation]) -> list[int | None]:
        written = super().multi(operations)
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return written


def test_an_interrupt_in_the_middle_of_a_reservation_is_not_taken_for_another_process() -> None:
    coordination = Interrupted(MemoryStore(), SystemClock())
    bound = ServerRecord(coordination, SimulatedFiles(), "server")
    bound.reserve(10)
    coordination.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        bound.reserve(20)
    bound.reserve(30)
    assert ServerRecord(coordination, SimulatedFiles(), "server").txn == 30


def test_another_process_that_reserves_is_told() -> None:
    store = MemoryStore()
    bound, other = (
        ServerRecord(MemoryCoordination(store, SystemClock()), SimulatedFiles(), "server") for _ in range(2)
    )
    bound.reserve(10)
    with pytest.raises(StoreError, match="another process writes this store"):
        other.reserve(20)


class TestTheLog:
    """What the log holds goes on record with the bound, or alone, and counts as long as the two agree."""

    SEGMENTS = (SegmentInfo("log/server/0000000000000003.log", 3, 500), SegmentInfo("log/server/4", 4, 700))

    def record(self, store: MemoryStore, faults: Faults | None = None) -> ServerRecord:
        return ServerRecord(MemoryCoordination(store, SystemClock(), faults=faults), SimulatedFiles(), "server")

    def extent(self, store: MemoryStore) -> LogExtent:
        return read_extent(MemoryCoordination(store, SystemClock()), SimulatedFiles(), "server")

    def test_a_new_log_is_on_record_with_its_first_txns_and_segment(self) -> None:
        store = MemoryStore()
        record = self.record(store)
        assert record.extent == self.extent(store) == NOTHING
        record.recovered([], 1)
        record.reserve(10)
        assert self.extent(store) == LogExtent(1, 0, 0)
        record.begun(1)
        assert self.extent(store) == LogExtent(1, 1, 64)

    def test_a_reservation_brings_along_how_far_the_log_reaches(self) -> None:
        store = MemoryStore()
        record = self.record(store)
        record.recovered([], 1)
        record.begun(1)
        record.reached(1, 900)
        assert self.extent(store) == LogExtent(1, 1, 64)
        record.reserve(10)
        assert self.extent(store) == LogExtent(1, 1, 900)
        assert (self.record(store).txn, self.record(store).extent) == (10, LogExtent(1, 1, 900))

    def test_it_is_written_only_if_it_has_changed(self) -> None:
        written = []
        store = MemoryStore()
        record = self.record(store, lambda name, paths: written.append(paths) if name not in ("read", "list") else None)
        record.recovered([], 1)
        record.begun(1)
        record.reached(1, 900)
        record.save()
        assert len(written) == 2
        record.save()
        record.removing(1)
        assert len(written) == 2
        record.reserve(10)
        assert written[2] == ("clocks/server", "logs/server")

    def test_a_store_of_the_version_before_gets_its_record_when_it_is_opened(self) -> None:
        store = MemoryStore()
        MemoryCoordination(store, SystemClock()).create("clocks/server", b"10")
        record = self.record(store)
        assert (record.txn, record.extent) == (10, NOTHING)
        record.recovered(self.SEGMENTS, 5)
        assert self.extent(store) == LogExtent(3, 4, 700)

    def test_a_record_that_the_version_before_did_not_keep_up_counts_for_nothing(self) -> None:
        store = MemoryStore()
        record = self.record(store)
        record.recovered(self.SEGMENTS, 5)
        record.reserve(10)
        older = MemoryCoordination(store, SystemClock())
        node = older.read("clocks/server")
        assert node is not None
        older.compare_and_set("clocks/server", b"20", node.version)
        assert self.extent(store) == self.record(store).extent == NOTHING
        again = self.record(store)
        again.recovered([SegmentInfo("log/server/9", 9, 300)], 10)
        assert self.extent(store) == LogExtent(9, 9, 300)
        assert self.record(store).txn == 20

    def test_another_owner_keeps_segments_from_being_removed(self) -> None:
        store = MemoryStore()
        record = self.record(store)
        record.recovered(self.SEGMENTS, 5)
        other = self.record(store)
        other.recovered(self.SEGMENTS, 5)
        other.begun(5)
        with pytest.raises(StoreError, match="another process writes this store"):
            record.removing(4)
        with pytest.raises(StoreError, match="another process writes this store"):
            record.begun(5)
        assert self.extent(store) == LogExtent(3, 5, 64)

    def test_a_service_that_does_not_answer_holds_up_no_segment_and_the_next_write_makes_up_for_it(self) -> None:
        store = MemoryStore()
        faults = {"is_down": False}
        record = self.record(store, lambda name, _: Fault.FAIL_BEFORE if faults["is_down"] and name != "read" else None)
        record.recovered(self.SEGMENTS, 5)
        faults["is_down"] = True
        record.begun(5)
        with pytest.raises(Unavailable):
            record.removing(4)
        faults["is_down"] = False
        assert self.extent(store) == LogExtent(3, 4, 700)
        record.reached(5, 200)
        record.reserve(30)
        assert self.extent(store) == LogExtent(4, 5, 200)

    @pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"bound":"x","first":1,"last":1,"synced":1}'])
    def test_a_record_that_cannot_be_read_is_damage(self, value: bytes) -> None:
        store = MemoryStore()
        MemoryCoordination(store, SystemClock()).create("logs/server", value)
        with pytest.raises(Corruption, match="logs/server"):
            self.record(store)
        with pytest.raises(Corruption, match="logs/server"):
            self.extent(store)

    def test_what_was_synced_since_the_last_write_is_known_from_the_file_beside(self) -> None:
        store, files = MemoryStore(), SimulatedFiles()
        coordination = MemoryCoordination(store, SystemClock())
        record = ServerRecord(coordination, files, "server")
        record.recovered([], 1)
        record.begun(1)
        record.reached(1, 900)
        assert self.extent(store) == LogExtent(1, 1, 64)
        assert read_extent(coordination, files, "server") == LogExtent(1, 1, 900)
        assert ServerRecord(coordination, files, "server").extent == LogExtent(1, 1, 900)

    def test_what_is_given_up_is_not_told_by_the_file_beside_any_more(self) -> None:
        store, files = MemoryStore(), SimulatedFiles()
        coordination = MemoryCoordination(store, SystemClock())
        record = ServerRecord(coordination, files, "server")
        record.recovered([], 1)
        record.begun(1)
        record.reached(1, 900)
        record.accept(LogExtent(1, 1, 300))
        assert read_extent(coordination, files, "server") == LogExtent(1, 1, 300)
