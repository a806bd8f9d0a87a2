"""What tests of the client share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from tests.client.damages import make_store


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(scope="session")
def healthy_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two tables, of which copies are damaged."""
    root = tmp_path_factory.mktemp("healthy")
    make_store(root)
    return root


@pytest.fixture
def root(healthy_store: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(healthy_store, tmp_path / "store"))
