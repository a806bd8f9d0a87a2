"""What is on record of the log is there after a crash at any moment; and if it is not, that is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ebla.clock import ManualClock, SystemClock
from ebla.coordination.memory import MemoryCoordination
from ebla.errors import Corruption, MissingFile
from ebla.storage.log.log_extent import LogExtent
from ebla.storage.log.log_format import segment_path
from ebla.storage.log.log_reader import recover
from ebla.tablet.recovery.server_record import ServerRecord, read_extent
from tests.crash.machine import Machine, Moment, bounded, open_store
from tests.crash.story import CALM, PLAIN, Step, create, flush, plain_rows, put, reopen
from tests.crash.test_closing import is_log
from tests.crash.test_crash_points import check_all, played

# The log is written on by the next opening, rolled, let go of in part and as a whole, and left alone.
STORY: list[Step] = [
    create("plain", PLAIN, [b"0003"]),
    put("plain", plain_rows(0, 40, 1)),
    put("plain", plain_rows(3, 6, 2), "none"),
    reopen(),
    put("plain", plain_rows(10, 50, 3)),
    put("plain", plain_rows(4, 5, 4)),
    reopen(),
    reopen(),
    put("plain", plain_rows(5, 9, 5)),
    flush("plain"),
    put("plain", plain_rows(2, 4, 6)),
    reopen(),
    put("plain", plain_rows(3, 4, 7)),
]
# Segments of a few commits each.
SETTINGS = replace(CALM, log_segment_bytes=6_000)


def recorded(moments: list[Moment]) -> list[Moment]:
    """Return the moments just before something is put on record, and before the log is touched."""
    return [moment for moment in moments if "log/" in moment.label or "logs/" in moment.label]


def extent_at(moment: Moment) -> tuple[str, LogExtent]:
    """Return where the log is at a moment, and what is on record of it."""
    directories = moment.files.list_directories("log")
    if not directories:
        return "", LogExtent()
    server = directories[0].rpartition("/")[2]
    return directories[0], read_extent(
        MemoryCoordination(moment.nodes, SystemClock()), moment.files.restarted(), server
    )


def test_a_crash_at_any_moment_leaves_what_is_on_record() -> None:
    machine, moments = played(SETTINGS, STORY, wanted=is_log)
    chosen = recorded(moments)
    assert sum("logs/" in moment.label for moment in chosen) > 6
    assert {extent_at(moment)[1].first for moment in chosen} > {1}
    assert bounded(lambda: check_all(machine, chosen[::2], disks_max=1), 600) >= len(chosen) // 2


def losses(moment: Moment) -> Iterator[tuple[str, int]]:
    """Yield the segments on record at a moment, and how many bytes each must have to be found whole."""
    directory, extent = extent_at(moment)
    for number in range(extent.first, extent.last + 1):
        yield segment_path(directory, number), extent.synced_of(number)


def test_a_segment_that_is_lost_after_a_crash_at_any_moment_is_told() -> None:
    machine, moments = played(SETTINGS, STORY, wanted=is_log)
    told = 0
    for moment in recorded(moments)[::4]:
        for path, synced in losses(moment):
            for cut in (None, synced - 1) if synced else (None,):
                disk = moment.files.restarted()
                data = disk.read(path)
                disk.delete(path)
                if cut is not None:
                    disk.put(path, data[:cut])
                with pytest.raises((MissingFile, Corruption), match=path):
                    open_store(disk, moment.nodes.copy(), ManualClock(machine.clock.microseconds()), SETTINGS)
                told += 1
    assert told > 20


def test_a_reader_beside_the_writer_misses_nothing_that_was_let_go_of_meanwhile() -> None:
    """He reads the record at one moment, the log at a later one; what he misses counts if the record still stands."""
    _, moments = played(SETTINGS, STORY, wanted=is_log)
    chosen = [(moment, *extent_at(moment)) for moment in recorded(moments)]
    missed = 0
    for _, _, extent in chosen[::3]:
        for moment, directory, newer in chosen[1::3]:
            if (newer.first, newer.last, newer.synced) < (extent.first, extent.last, extent.synced):
                continue  # that was before
            try:
                for _ in recover(moment.files.restarted(), directory, extent):
                    pass
            except (MissingFile, Corruption):
                assert newer != extent
                missed += 1
    assert missed > 10


class TestTheChecksThemselves:
    def check(self) -> None:
        machine, moments = played(SETTINGS, STORY, wanted=is_log)
        check_all(machine, recorded(moments), disks_max=2)

    def test_a_removal_that_is_not_on_record_first_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ServerRecord, "removing", lambda record, first: None)
        with pytest.raises((AssertionError, MissingFile), match="is missing from the log, which"):
            bounded(self.check, 600)

    def test_bytes_that_are_on_record_before_they_are_synced_are_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reached = ServerRecord.reached
        monkeypatch.setattr(ServerRecord, "reached", lambda record, number, synced: reached(record, number, synced + 8))
        with pytest.raises((AssertionError, Corruption), match="on record as synced"):
            bounded(self.check, 600)


def test_a_machine_that_only_opens_and_closes_writes_nothing_to_the_record() -> None:
    machine = Machine(STORY[:3], replace(CALM, log_segment_bytes=1 << 24, close_flush_bytes=1 << 20))
    bounded(machine.play)
    assert machine.db is not None
    machine.db.close()
    before = dict(machine.nodes.nodes)
    for _ in range(2):
        machine.open().close()
    logs = [path for path in before if path.startswith(("logs/", "clocks/"))]
    assert len(logs) == 2
    assert all(machine.nodes.nodes[path] == before[path] for path in logs)
