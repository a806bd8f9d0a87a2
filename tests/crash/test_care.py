"""A crash, or a failing disk, at each step of a clone, a compaction and a round of garbage: no row is lost by any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.episodes import FAULTS, Episodes
from tests.crash.machine import bounded
from tests.crash.story import CALM, story_of_care

EAGER = replace(CALM, garbage_age_seconds=0.0)
CARE = Episodes(story_of_care(), EAGER, lambda step: step.name.split()[0] in ("clone", "gc", "compact", "drop"))


def test_the_story_ends_with_few_files() -> None:
    machine = CARE.machine()
    bounded(machine.play)
    assert not machine.errors
    assert machine.db is not None
    named = {file for name in machine.db.tables() for file in machine.db.table(name).files()}
    assert machine.db.gc(dry_run=False).files <= 2 * len(named)
    machine.db.close()


def test_after_a_crash_at_any_step_of_care_every_row_is_there() -> None:
    CARE.crash(images_max=25)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_operation_that_fails_during_a_step_of_care_is_survived_or_told(fault: str) -> None:
    assert CARE.fail_some(FAULTS[fault], 6)


@pytest.mark.soak
def test_every_crash_and_every_failure_of_care() -> None:
    CARE.everything()
