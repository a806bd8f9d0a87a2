"""Stores for the tests of the pipeline. The session is in `tests/conftest.py`, for others use it too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla


@pytest.fixture
def root(tmp_path: Path) -> str:
    """The place of a store that is not there yet."""
    return str(tmp_path / "store")


@pytest.fixture
def db(root: str) -> Iterator[ebla.Database]:
    """A store that this process has open for writing."""
    with ebla.open(root) as opened:
        yield opened
