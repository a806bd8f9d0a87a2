"""A crash, or a failing disk, at each step of a change of the schema: the old one or the new one, and every row.

The story has rows in files, in memory and in the log alone when the schema changes. Columns and families move, are
dropped and come again, and are widened; that the names stay the same lets every later step mean something either way.
"""

from __future__ import annotations

import pytest

from tests.crash.episodes import FAULTS, Episodes
from tests.crash.story import CALM, story_of_alterations

ALTERATIONS = Episodes(story_of_alterations(), CALM, lambda step: step.kind == "alter")


def test_after_a_crash_at_any_step_of_an_alteration_the_store_has_the_old_schema_or_the_new() -> None:
    ALTERATIONS.crash(images_max=20)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_operation_that_fails_during_an_alteration_is_survived_or_told(fault: str) -> None:
    assert ALTERATIONS.fail_some(FAULTS[fault], 5)


@pytest.mark.soak
def test_every_crash_and_every_failure_of_an_alteration() -> None:
    ALTERATIONS.everything()
