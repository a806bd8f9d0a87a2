"""A store that a later version wrote is refused by name of its format, and stays as it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import ebla
from ebla.cli import main
from ebla.clock import SystemClock
from ebla.coordination.sqlite import SqliteCoordination
from ebla.tablet.recovery.identity import FORMAT_VERSION, IDENTITY_NODE, Identity


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A store whose identity says that a later version made it."""
    root = tmp_path / "store"
    with ebla.open(root) as db:
        db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"v": "int64"})).put({"k": 1, "v": 1})
    with SqliteCoordination(root / "coordination.sqlite", SystemClock()) as coordination:
        node = coordination.read(IDENTITY_NODE)
        assert node is not None
        made = msgspec.json.decode(node.value, type=Identity)
        later = msgspec.structs.replace(made, format_version=FORMAT_VERSION + 1)
        coordination.compare_and_set(IDENTITY_NODE, msgspec.json.encode(later), node.version)
    return root


@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
def test_a_newer_store_is_refused_with_a_clear_sentence(newer: Path, read_only: bool) -> None:
    before = {path: path.stat().st_size for path in newer.rglob("*.log")}
    for _ in range(2):
        with pytest.raises(ebla.FormatTooNew) as refused:
            ebla.open(newer, read_only=read_only)
        assert str(refused.value) == (
            f"the store has format {FORMAT_VERSION + 1}, and this version of Ebla knows up to {FORMAT_VERSION}: "
            "open it with a newer version of Ebla"
        )
    assert {path: path.stat().st_size for path in newer.rglob("*.log")} == before


def test_status_and_commands_say_so_in_one_line(newer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "tables"):
        with pytest.raises(SystemExit) as left:
            main(["--store", str(newer), command])
        told = capsys.readouterr().err
        assert left.value.code == 6
        assert told.startswith("error: the store has format ")
        assert told.count("\n") == 1
