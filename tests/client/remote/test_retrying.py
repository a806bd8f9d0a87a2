"""What is repeated, and what is told in the end."""

from __future__ import annotations

import pytest

import ebla
from ebla.client.remote.retrying import persist
from ebla.retry import NETWORK


def tried(*errors: type[ebla.EblaError] | None, may_repeat: bool = True, timeout_seconds: float = 5.0) -> int:
    """Return how many attempts it took, of which these failed."""
    count = 0
    failing = iter(errors)

    def attempt(left_seconds: float) -> int:
        nonlocal count
        count += 1
        error = next(failing, None)
        if error is not None:
            raise error(f"attempt {count}")
        return count

    return persist(attempt, lambda error, left_seconds: None, timeout_seconds, may_repeat=may_repeat)


def test_what_did_not_happen_is_tried_again() -> None:
    assert tried() == 1
    assert tried(ebla.Unavailable, ebla.StaleRoute, ebla.TimedOut, ebla.Closed) == 5


def test_an_unknown_outcome_is_repeated_only_where_that_does_no_harm() -> None:
    assert tried(ebla.OutcomeUnknown) == 2
    with pytest.raises(ebla.OutcomeUnknown):
        tried(ebla.OutcomeUnknown, may_repeat=False)


@pytest.mark.parametrize("error", [ebla.Conflict, ebla.SchemaChanged, ebla.TableUnloaded, ebla.RequestError])
def test_what_would_fail_again_is_told(error: type[ebla.EblaError]) -> None:
    with pytest.raises(error, match="attempt 1"):
        tried(error)


def test_after_an_unknown_outcome_a_later_failure_to_connect_does_not_hide_it() -> None:
    with pytest.raises(ebla.OutcomeUnknown, match="attempt 1"):
        tried(ebla.OutcomeUnknown, *[ebla.Unavailable] * 1_000, timeout_seconds=0.1)


def test_nor_does_a_failure_to_look_where_the_rows_are_now() -> None:
    def unknown(left_seconds: float) -> int:
        raise ebla.OutcomeUnknown("may have happened")

    def nobody(error: ebla.EblaError, left_seconds: float) -> None:
        raise ebla.TimedOut("no master answers")

    with pytest.raises(ebla.OutcomeUnknown, match="may have happened"):
        persist(unknown, nobody, 5.0)


def test_pauses_grow_up_to_a_bound_and_differ_by_chance() -> None:
    pauses = NETWORK.pauses(lambda: 1.0)
    first = [next(pauses) for _ in range(20)]
    assert first[0] == NETWORK.first_seconds
    assert first == sorted(first)
    assert first[-1] == NETWORK.longest_seconds
    assert next(NETWORK.pauses(lambda: 0.0)) == NETWORK.first_seconds / 2
