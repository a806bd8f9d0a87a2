"""Which tests are quick."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.quick import LONG, LONG_FOLDERS, is_quick, is_quick_file

TESTS = Path(__file__).resolve().parent.parent


def test_what_needs_a_server_or_takes_long_is_not_quick() -> None:
    assert is_quick("tests/model/test_keys.py::test_one")
    assert is_quick("tests/contract/test_coordination_contract.py::test_one[sqlite]")
    assert not is_quick("tests/contract/test_coordination_contract.py::test_one[zookeeper]")
    assert not is_quick("tests/crash/test_crash_points.py::test_one")
    assert not is_quick_file("tests/pipeline/scanning/test_scan.py")
    assert is_quick_file("tests/model/test_where.py")
    assert is_quick_file("tests/tablet/recovery/test_replay.py")
    assert not is_quick("tests/model/test_where.py::test_a_filter_keeps_the_rows_for_which_the_model_says_true")


@pytest.mark.parametrize("long", LONG)
def test_what_is_said_to_take_long_is_there(long: str) -> None:
    module, _, name = long.partition("::")
    texts = [path.read_text() for path in TESTS.rglob(module)]
    assert texts
    assert any(f"def {name}" in text for text in texts)


@pytest.mark.parametrize("folder", LONG_FOLDERS)
def test_folders_that_are_said_to_take_long_are_there(folder: str) -> None:
    assert (TESTS / folder / "__init__.py").exists()
