"""A crash at every operation of the story: every disk that it may leave opens, and shows what may have survived.

A pure crash damages nothing, so no opening may be refused. What a crash may leave is up to `SimulatedFiles`: unsynced
bytes and names survive in part or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ebla.clock import ManualClock
from ebla.settings import Settings
from ebla.storage.log.log_entry import LogEntry
from ebla.storage.log.log_writer import LogWriter
from tests.crash.journal import BEGUN, IN, OUT
from tests.crash.machine import Machine, Moment, bounded, open_store
from tests.crash.story import (
    CALM,
    MIXED,
    PLAIN,
    RESTLESS,
    Step,
    create,
    erase,
    flush,
    plain_rows,
    put,
    reopen,
    story,
    sync,
)
from tests.support.inside import abandon
from tests.support.simulated_files import Operation, SimulatedFiles


def is_telling(operation: Operation) -> bool:
    """Leave out most writes of a fragment's bytes: nothing names the file yet, and one is as good as another."""
    return operation.kind != "write" or "fragments/" not in operation.path or operation.number % 8 == 0


def everything(operation: Operation) -> bool:
    return True


def played(
    settings: Settings, steps: Sequence[Step] | None = None, wanted: Callable[[Operation], bool] = is_telling
) -> tuple[Machine, list[Moment]]:
    """Play the story once and return the machine and all the moments at which it might have crashed."""
    machine = Machine(story() if steps is None else steps, settings)
    moments: list[Moment] = []
    machine.capture(moments, wanted)
    bounded(machine.play)
    assert not machine.errors
    return machine, moments


def check_all(machine: Machine, moments: Sequence[Moment], *, disks_max: int, seed: int = 0) -> int:
    """Open what crashes at these moments may leave, and compare; return how many disks that was."""
    checked = 0
    for number, moment in enumerate(moments):
        for image, disk in enumerate(moment.disks(seed + number, disks_max)):
            where = f"moment {number} ({moment.label}), image {image}"
            machine.check_disk(disk, moment.nodes, moment.statuses, where, thorough=checked % 16 == 0)
            checked += 1
    return checked


def test_after_a_crash_at_any_operation_the_store_opens_with_all_that_was_acknowledged() -> None:
    machine, moments = played(CALM)
    kinds = {moment.label.split()[1] for moment in moments if moment.label[0].isdigit()}
    assert kinds >= {"create", "write", "sync", "sync_directory", "delete", "truncate", "make_directory"}
    assert any(moment.label.startswith("CompareAndSet") for moment in moments)
    assert bounded(lambda: check_all(machine, moments[::5], disks_max=1), 600) > len(moments) // 5


def test_background_flushes_lose_nothing_in_a_crash() -> None:
    machine, moments = played(RESTLESS)
    assert any("fragments/" in moment.label for moment in moments)
    bounded(lambda: check_all(machine, moments[1::14], disks_max=1), 600)


@pytest.mark.soak
@pytest.mark.parametrize("settings", [CALM, RESTLESS], ids=["calm", "restless"])
@pytest.mark.parametrize("seed", range(4))
def test_after_a_crash_at_every_operation_every_disk_opens(settings: Settings, seed: int) -> None:
    machine, moments = played(settings, wanted=everything)
    bounded(lambda: check_all(machine, moments, disks_max=8, seed=1_000 * seed), 3_600)


def check_crash_in_recovery(machine: Machine, moment: Moment, seed: int, every: int = 1) -> None:
    """Kill the process, let the next one recover, and cut the power at every operation of that (or some of them)."""
    # So that recovery itself flushes, and has more to do than to cut the tail of the log.
    eager = replace(machine.settings, flush_bytes=1)
    recovering = Machine(machine.journal.steps, eager, machine.expectations)
    recovering.files = moment.files.restarted()
    recovering.nodes = moment.nodes.copy()
    recovering.clock = ManualClock(machine.clock.microseconds())
    within: list[Moment] = []
    recovering.capture(within, is_telling)
    db = recovering.open()
    found = machine.check(db, moment.statuses, f"killed at {moment.label}", thorough=False)
    settled = tuple(IN if there else OUT for there in found)
    # From here on somebody may have read it: it must not go away any more.
    after = Moment("after recovery", recovering.files.restarted(), recovering.nodes.copy(), settled)
    abandon(db)
    for step in [*(replace(one, statuses=moment.statuses) for one in within[seed % every :: every]), after]:
        for disk in step.disks(seed, 1):
            machine.check_disk(
                disk, step.nodes, step.statuses, f"killed at {moment.label}, then a crash at {step.label}"
            )


def test_a_crash_during_recovery_loses_nothing_and_what_recovery_showed_stays() -> None:
    machine, moments = played(CALM)
    # Just before a sync, the log holds a commit as a whole that may be gone after the next power cut.
    sampled = [moment for moment in moments if "sync log/" in moment.label and BEGUN in moment.statuses][4::9]
    assert len(sampled) >= 4
    bounded(lambda: [check_crash_in_recovery(machine, moment, n, every=10) for n, moment in enumerate(sampled)], 600)


@pytest.mark.soak
def test_a_crash_at_every_operation_of_every_recovery() -> None:
    machine, moments = played(CALM)
    bounded(lambda: [check_crash_in_recovery(machine, moment, seed) for seed, moment in enumerate(moments)], 3_600)


def test_unsynced_commits_survive_as_a_prefix() -> None:
    rows = [{"user": f"u{n % 7}", "age": n, "click:n": b"%d" % n} for n in range(24)]
    waits = ["none", "none", "logged", "none", "none", "none"]
    steps = [create("mixed", MIXED, ["u3"])]
    steps += [put("mixed", row, waits[n % len(waits)]) for n, row in enumerate(rows)]
    steps += [erase("mixed", "u2", wait="none"), put("mixed", {"user": "u2", "age": 1}, "none"), sync()]
    machine, moments = played(CALM, steps)
    log = [moment for moment in moments if "log/" in moment.label]
    bounded(lambda: check_all(machine, log[::3], disks_max=2), 600)


def test_the_store_goes_on_after_a_crash_and_txns_only_grow() -> None:
    machine, moments = played(CALM)
    for number, moment in enumerate(moments[20::60]):
        disk = moment.files.crash_images(number, 1)[-1]
        nodes = moment.nodes.copy()
        # The clock went back by a day while the machine was down.
        clock = ManualClock(machine.clock.microseconds() - 86_400_000_000)
        db = open_store(disk, nodes, clock, machine.settings)
        seen = [v.txn for name in db.tables() for row in db.table(name).scan(versions=9) for v in all_versions(row)]
        table = db.create_table("later", MIXED)
        first = table.put({"user": "x", "age": 1})
        assert first > max(seen, default=0)
        table.put({"user": "x", "age": 2}, wait="none")
        db.close()
        db = open_store(disk, nodes, clock, machine.settings)
        assert [v.value for v in next(iter(db.table("later").scan(versions=9)))["age"]] == [2, 1]
        assert db.table("later").put({"user": "x", "age": 3}) > first
        db.close()


def all_versions(row: dict) -> list:
    return [version for value in row.values() if isinstance(value, list) for version in value]


class TestTheChecksThemselves:
    """A store that cheats is found out; otherwise the tests above would prove nothing."""

    STEPS = (
        create("mixed", MIXED, ["h"]),
        put("mixed", {"user": "ada", "age": 1}),
        put("mixed", {"user": "kurt", "click:a": b"1"}),
        flush("mixed"),
        create("plain", PLAIN),
        put("plain", plain_rows(0, 3, 1)),
        put("mixed", {"user": "ada", "age": 2}),
        flush("mixed"),
        reopen(),
    )

    def check(self) -> None:
        machine, moments = played(CALM, self.STEPS)
        check_all(machine, moments, disks_max=2)

    def test_an_honest_store_passes(self) -> None:
        self.check()

    @pytest.mark.parametrize("directory", ["log/", "fragments/", "metadata/"])
    def test_a_file_that_is_not_synced_is_noticed(self, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
        sync = SimulatedFiles._sync

        def cheat(files: SimulatedFiles, path: str, inode: object) -> None:
            if not path.startswith(directory):
                sync(files, path, inode)  # type: ignore[arg-type]

        monkeypatch.setattr(SimulatedFiles, "_sync", cheat)
        with pytest.raises(Exception, match=r"survived|damaged|missing"):
            self.check()

    @pytest.mark.parametrize("directory", ["log/", "fragments/", "metadata/"])
    def test_a_directory_that_is_not_synced_is_noticed(self, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
        sync = SimulatedFiles.sync_directory

        def cheat(files: SimulatedFiles, path: str) -> None:
            if not path.startswith(directory):
                sync(files, path)

        monkeypatch.setattr(SimulatedFiles, "sync_directory", cheat)
        with pytest.raises(Exception, match=r"survived|damaged|not there|missing"):
            self.check()

    def test_a_log_that_is_not_replayed_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ebla.tablet.recovery.opening.replay", lambda *_: None)
        with pytest.raises(AssertionError, match="survived"):
            self.check()

    def test_a_log_that_is_deleted_too_early_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        delete = LogWriter.delete_segments
        monkeypatch.setattr(LogWriter, "delete_segments", lambda writer, txn: delete(writer, 1 << 62))
        monkeypatch.setattr(LogWriter, "append", _append_to_a_segment_of_its_own)
        with pytest.raises(AssertionError, match="survived"):
            self.check()


_append = LogWriter.append


def _append_to_a_segment_of_its_own(writer: LogWriter, entry: LogEntry) -> int:
    writer._segment_bytes = 0
    return _append(writer, entry)
