"""A clean close after which nothing in the log is needed leaves a short log, whatever goes wrong on the way."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, PLAIN, Step, create, erase_range, flush, plain_rows, put, reopen
from tests.crash.test_crash_points import check_all, played
from tests.support.simulated_files import Fault, FaultPlan, Operation

# All of it is in fragments when the store is closed, at first of several segments, then of one, then of none.
STORY: list[Step] = [
    create("plain", PLAIN, [b"0003"]),
    put("plain", plain_rows(0, 40, 1)),
    put("plain", plain_rows(10, 50, 2)),
    erase_range("plain", b"0025", b"0030"),
    put("plain", plain_rows(2, 4, 3), "none"),
    flush("plain"),
    reopen(),
    put("plain", plain_rows(3, 6, 4)),
    flush("plain"),
    reopen(),
    reopen(),
    put("plain", plain_rows(4, 5, 5)),
]
SETTINGS = replace(CALM, close_flush_bytes=0)
# A segment for every commit: several go at once, by a flush, and when the log is started over.
SPLIT_UP = replace(SETTINGS, log_segment_bytes=64)
LONG_STORY: list[Step] = [
    create("plain", PLAIN, [b"0003"]),
    *(put("plain", plain_rows(first, first + 3, first)) for first in range(0, 12, 2)),
    flush("plain"),
    erase_range("plain", b"0005", b"0007"),
    *(put("plain", plain_rows(first, first + 2, 50 + first)) for first in range(0, 8, 2)),
    reopen(),
    put("plain", plain_rows(4, 5, 100)),
]


def is_log(operation: Operation) -> bool:
    return operation.path.startswith("log/")


def test_a_crash_at_any_moment_of_starting_the_log_over_loses_nothing() -> None:
    machine, moments = played(SETTINGS, STORY, wanted=is_log)
    moments = [moment for moment in moments if STORY[len(moment.statuses) - 1].kind == "reopen"]
    kinds = [moment.label.split()[1] for moment in moments if moment.label[0].isdigit()]
    assert kinds.count("delete") == 3
    assert bounded(lambda: check_all(machine, moments, disks_max=2), 600) > len(moments)
    assert len(machine.files.list(machine.files.list_directories("log")[0])) <= 2


def test_a_crash_at_any_moment_of_removing_many_segments_loses_nothing() -> None:
    machine, moments = played(SPLIT_UP, LONG_STORY, wanted=is_log)
    told = [moment.label.split()[1] for moment in moments if moment.label[0].isdigit()]
    assert told.count("replace") == 2
    assert told.count("delete") >= 10
    removing = [moment for moment in moments if LONG_STORY[len(moment.statuses) - 1].kind in ("flush", "reopen")]
    disks = bounded(lambda: check_all(machine, removing, disks_max=6), 600)
    assert disks > 2 * len(removing)


@pytest.mark.parametrize("fault", [Fault(errno.EIO), Fault(errno.ENOSPC, 0.5)], ids=["not done", "no space"])
def test_a_disk_that_fails_while_the_log_is_started_over_costs_nothing(fault: Fault) -> None:
    undisturbed = Machine(STORY, SETTINGS)
    bounded(undisturbed.play)
    record = list(undisturbed.files.record())
    # The flush removes a segment, then the close the other, after it has written a new one.
    flushed, closed = [op.number for op in record if op.kind == "delete" and is_log(op)][:2]
    numbers = [op.number for op in record if is_log(op) and flushed + 1 < op.number <= closed + 1]
    assert len(numbers) == 9
    for number in numbers:
        machine = Machine(STORY, SETTINGS, undisturbed.expectations)
        machine.files.plan = FaultPlan(at={number: fault})
        bounded(machine.play)
        disk, nodes = machine.files.restarted(), machine.nodes.copy()
        machine.check_disk(disk, nodes, tuple(machine.journal.statuses), f"after {fault} at {number}")
        if machine.db is not None:
            machine.tried(machine.db.close)
