"""Starting a process: who it says it is, its last words, and a port that somebody else has taken meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ebla.errors import StoreError
from ebla.local_cluster import local_cluster
from ebla.local_cluster.launching import Launched, PortTaken, launch

TAKEN = "error: 127.0.0.1:7070 cannot be listened on: choose another port"


def saying(line: str, data: Path, code: int = 0) -> Launched:
    return launch("master", data, [], [sys.executable, "-c", f"print({line!r}, flush=True); raise SystemExit({code})"])


def test_a_process_tells_who_and_where_it_is(tmp_path: Path) -> None:
    found = saying("master 7c9e at 127.0.0.1:7070", tmp_path / "master-1").wait()
    assert (found.role, found.uuid, found.address) == ("master", "7c9e", "127.0.0.1:7070")


@pytest.mark.parametrize(("said", "kind"), [(TAKEN, PortTaken), ("error: no space is left", StoreError)])
def test_the_last_words_of_a_process_that_ended_are_told(tmp_path: Path, said: str, kind: type[StoreError]) -> None:
    with pytest.raises(StoreError, match=said) as told:
        saying(said, tmp_path / "master-1", 1).wait()
    assert type(told.value) is kind


def test_a_port_that_was_taken_while_a_process_started_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Sequence[str]] = []

    def again(role: str, data: Path, arguments: Sequence[str], *, log_format: str) -> Launched:
        tried.append(arguments)
        return saying(TAKEN if len(tried) < 2 else "master 7c9e at 127.0.0.1:7072", data, len(tried) < 2)

    monkeypatch.setattr(local_cluster, "launch", again)
    first = saying(TAKEN, tmp_path / "master-1", 1)
    found = local_cluster._waited_for(first, ["--root", "r"], iter([7071, 7072]))
    assert found.address == "127.0.0.1:7072"
    assert tried == [["--root", "r", "--port", "7071"], ["--root", "r", "--port", "7072"]]


def test_a_port_that_was_asked_for_and_is_taken_is_told(tmp_path: Path) -> None:
    none: Iterator[int] = iter([])
    with pytest.raises(PortTaken, match="cannot be listened on"):
        local_cluster._waited_for(saying(TAKEN, tmp_path / "master-1", 1), [], none)
