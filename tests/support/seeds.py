"""Seeds of random tests: a few for every run, all of them in the soak."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(few: int, all_of_them: int) -> list[Any]:
    """Return so many seeds, those behind the `few` first ones marked for the soak."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(few, all_of_them))]
