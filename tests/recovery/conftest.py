"""Stores of processes that are killed are on a disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import disk


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ebla-recovery-", dir=disk()) as directory:
        yield Path(directory)
