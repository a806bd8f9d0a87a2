"""The steps of a story that a test is about, cut and failed at each of their operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebla.settings import Settings
from tests.crash.journal import Expectations
from tests.crash.machine import Machine, Moment, bounded
from tests.crash.story import Step
from tests.crash.test_crash_points import check_all, played
from tests.crash.test_failed_operations import DONE_BUT_FAILED, NO_SPACE, NOT_DONE
from tests.support.simulated_files import Fault, FaultPlan

FAULTS = {"not done": NOT_DONE, "done but failed": DONE_BUT_FAILED, "no space": NO_SPACE}


@dataclass(frozen=True)
class Episodes:
    """A story, and which of its steps are looked at."""

    story: Sequence[Step]
    settings: Settings
    is_meant: Callable[[Step], bool]

    def machine(self) -> Machine:
        """Return a machine that is about to play the story."""
        return Machine(self.story, self.settings, Expectations(self.story))

    def operations(self) -> list[int]:
        """Return the numbers of the operations that belong to the steps, of an undisturbed run."""
        machine = self.machine()
        numbers: list[int] = []
        before = 0

        def note(step: Step) -> None:
            nonlocal before
            count = len(list(machine.files.record()))
            if self.is_meant(step):
                numbers.extend(range(before, count))
            before = count

        bounded(lambda: machine.play(note))
        assert not machine.errors
        return numbers

    def crash(self, images_max: int) -> None:
        """Crash within the steps, at so many moments, and check what is found after each."""
        machine, moments = played(self.settings, self.story)
        meant = [moment for moment in moments if self.is_within(moment)]
        assert len(meant) > 30
        chosen = meant[:: max(1, len(meant) // images_max)]
        assert bounded(lambda: check_all(machine, chosen, disks_max=1), 600) >= len(chosen)

    def is_within(self, moment: Moment) -> bool:
        """Tell whether a moment is in the middle of one of the steps."""
        return moment.statuses[-1:] == ("begun",) and self.is_meant(self.story[len(moment.statuses) - 1])

    def fail_some(self, fault: Fault, count: int) -> int:
        """Fail so many of the operations, one in each run; return how many errors that gave."""
        numbers = self.operations()
        chosen = numbers[:: max(1, len(numbers) // count)]
        return sum(len(bounded(lambda at=number: self.fail(fault, at)).errors) for number in chosen)

    def fail(self, fault: Fault, number: int) -> Machine:
        """Play the story with one operation failing; whatever was told must be true, also of the store opened again."""
        machine = self.machine()
        machine.files.plan = FaultPlan(at={number: fault})
        machine.play(after_error=4)
        where = f"operation {number} {fault}"
        statuses, nodes = tuple(machine.journal.statuses), machine.nodes.copy()
        if machine.db is not None:
            machine.check(machine.db, statuses, f"open after {where}")
        machine.check_disk(machine.files.crash_images(number, 1)[-1], nodes, statuses, f"crashed after {where}")
        machine.check_disk(machine.files.restarted(), nodes, statuses, f"opened again after {where}")
        if machine.db is not None:
            machine.tried(machine.db.close)
        return machine

    def everything(self) -> None:
        """Crash at every moment of the story, and fail every operation of the steps, in each way."""
        machine, moments = played(self.settings, self.story, lambda operation: True)
        bounded(lambda: check_all(machine, moments, disks_max=8), 3_600)
        for number in self.operations():
            for fault in FAULTS.values():
                bounded(lambda at=number, how=fault: self.fail(how, at))
