"""Settings that cannot be are refused by name, with what they can be."""

from __future__ import annotations

from typing import Any

import pytest

import ebla


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"memory_bytes_max": -5}, "settings: memory_bytes_max is a whole number, 1 or more, not -5"),
        ({"memory_bytes_max": 0}, "settings: memory_bytes_max is a whole number, 1 or more, not 0"),
        ({"memory_bytes_max": 1.5}, "settings: memory_bytes_max is a whole number, 1 or more, not 1.5"),
        ({"memory_bytes_max": "64"}, "settings: memory_bytes_max is a whole number, 1 or more, not '64'"),
        ({"tablet_bytes_max": -1}, "settings: tablet_bytes_max is a whole number, 0 or more, not -1"),
        ({"history_seconds": -1}, "settings: history_seconds is a number, 0 or more, not -1"),
        ({"history_seconds": float("nan")}, "settings: history_seconds is a number, 0 or more, not nan"),
        ({"history_seconds": float("inf")}, "settings: history_seconds is a number, 0 or more, not inf"),
        ({"background_compaction": 1}, "settings: background_compaction is True or False, not 1"),
        (
            {"load_first": "users"},
            "settings: load_first is a list of names of tables, such as ['users'], not 'users'",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_setting_that_cannot_be_is_told_with_what_it_can_be(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ebla.RequestError) as found:
        ebla.Settings(**given)
    assert str(found.value) == told


def test_zero_switches_off_where_that_has_a_meaning() -> None:
    settings = ebla.Settings(tablet_bytes_max=0, row_cache_bytes=0, tablet_idle_seconds=0, load_first=["users"])
    assert (settings.tablet_bytes_max, settings.tablet_idle_seconds) == (0, 0)
