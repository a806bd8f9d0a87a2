from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import places

ROOMY = {"f_bavail": 1 << 20, "f_frsize": 4096, "f_flag": 0}


@pytest.mark.parametrize(
    ("found", "is_taken"), [({}, True), ({"f_bavail": 1 << 14}, False), ({"f_flag": os.ST_NOEXEC}, False)]
)
def test_a_directory_without_room_or_programs_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, int], is_taken: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda directory: SimpleNamespace(**{**ROOMY, **found}))
    monkeypatch.setattr(places, "_MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("TMPDIR", raising=False)
    places.keep_in_memory()
    assert (os.environ.get("TMPDIR") == str(tmp_path)) is is_taken
    assert (tempfile.gettempdir() == str(tmp_path)) is is_taken


def test_the_users_choice_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    places.keep_in_memory()
    assert os.environ["TMPDIR"] == str(tmp_path)
    assert not places.is_roomy(tmp_path / "missing")
