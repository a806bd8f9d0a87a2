"""Seeds of random tests: a few for every run, all of them in the soak."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(few: int, all_of_them: int, first: int = 0) -> list[Any]:
    """Return so many seeds, those behind the `few` first ones marked for the soak."""
    numbers = range(first, first + all_of_them)
    return [*numbers[:few], *(pytest.param(number, marks=pytest.mark.soak) for number in numbers[few:])]
