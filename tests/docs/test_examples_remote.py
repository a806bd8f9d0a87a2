"""The examples of the API page run on a store that another serves as they do on one in the process."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebla
from tests.cli.test_readme import run_blocks
from tests.support.remote import Opened


def test_python_blocks_of_the_api_page_run_on_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    monkeypatch.setattr(ebla, "open", opened)
    try:
        run_blocks("docs/api.md", tmp_path, monkeypatch)
    finally:
        opened.close()
