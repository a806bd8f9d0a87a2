"""Files that jobs are merging: theirs until they are done, begin anew, or have taken too long."""

from __future__ import annotations

from ebla.clock import ManualClock
from ebla.tablet.garbage.job_merges import BUSY_SECONDS, JobMerges


def test_files_belong_to_the_jobs_of_their_table_until_they_are_done() -> None:
    merges = JobMerges(ManualClock())
    merges.begin("one", "t", ["a", "b"])
    merges.begin("two", "t", ["c"])
    merges.begin("three", "other", ["d"])
    assert merges.files_of("t") == {"a", "b", "c"}
    merges.begin("one", "t", ["b"])
    assert merges.files_of("t") == {"b", "c"}
    merges.end("two")
    merges.begin("one", "t", [])
    assert merges.files_of("t") == frozenset()
    assert merges.files_of("other") == {"d"}


def test_a_job_that_takes_too_long_loses_its_files() -> None:
    clock = ManualClock()
    merges = JobMerges(clock)
    merges.begin("one", "t", ["a"])
    clock.advance(BUSY_SECONDS - 1)
    assert merges.files_of("t") == {"a"}
    clock.advance(2)
    assert merges.files_of("t") == frozenset()
