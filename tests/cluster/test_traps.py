"""What the mind of a master had to unlearn before it was wired: each is a test, found here by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

TRAPS = {
    "a replica that is removed is told to delete at once": [
        "test_a_replica_is_deleted_only_after_the_new_leader_said_that_it_serves",
        "test_a_replica_is_deleted_by_its_own_assignment_only",
    ],
    "a move makes the empty target the leader": [
        "test_a_move_asks_the_leader_to_resign_before_the_target_leads",
    ],
    "one time is used for leases, assignments and dead servers, and splitting tablets are passed over": [
        "test_a_tablet_is_led_by_another_seconds_after_its_leader_fell_silent",
        "test_a_lease_is_none_of_the_times_that_people_set",
        "test_a_splitting_tablet_is_led_by_another_as_well",
    ],
    "an alteration writes the schema and late flushes are refused": [
        "test_an_alteration_keeps_the_former_schema_until_every_leader_reports_the_new_one",
        "test_what_a_dead_server_logged_under_the_old_schema_is_taken_over_under_the_new_one",
    ],
    "retired tablets are forgotten by the log of one server": [
        "test_retired_tablets_are_on_record_as_long_as_the_log_may_name_them",
        "test_the_log_of_a_retired_tablet_is_passed_over_and_that_of_an_unknown_one_is_not",
    ],
    "the tail of a deposed leader is replayed": [
        "test_what_a_returning_server_writes_through_an_open_file_is_never_replayed",
        "test_a_late_flush_of_the_former_leader_is_refused",
    ],
    "a replica that reports itself failed is passed over": [
        "test_a_replica_that_reports_itself_failed_is_given_to_another",
    ],
    "a reply about METADATA cannot go over a wire": [
        "test_messages_go_over_the_wire_and_back",
        "test_a_tablet_server_reads_and_changes_metadata_through_the_masters",
    ],
}


@pytest.mark.parametrize("trap", TRAPS)
def test_there_is_a_test_for_what_had_to_be_unlearned(trap: str) -> None:
    texts = (file.read_text() for file in TESTS.rglob("test_*.py"))
    there = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    assert set(TRAPS[trap]) <= there
