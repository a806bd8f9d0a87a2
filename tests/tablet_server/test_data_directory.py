"""The data directory of a tablet server: who it is, over restarts and copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ebla.errors import Corruption, RequestError, StoreLocked
from ebla.tablet_server.data_directory import DataDirectory


def test_the_uuid_stays_and_starts_are_counted_over_restarts(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "ts", "cluster", "first")
    assert [directory.next_start(), directory.next_start()] == [1, 2]
    directory.release()
    again = DataDirectory(tmp_path / "ts", "cluster", "second")
    assert again.server == "first"
    assert again.next_start() == 3


def test_a_directory_of_another_cluster_is_refused_and_left_alone(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, "cluster", "uuid")
    directory.next_start()
    directory.release()
    with pytest.raises(RequestError, match="belongs to the cluster cluster"):
        DataDirectory(tmp_path, "other", "uuid")
    assert DataDirectory(tmp_path, "cluster", "x").next_start() == 2


def test_two_processes_cannot_run_with_one_directory(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, "cluster", "uuid")
    with pytest.raises(StoreLocked):
        DataDirectory(tmp_path, "cluster", "uuid")
    directory.release()
    DataDirectory(tmp_path, "cluster", "uuid").release()


def test_a_copy_of_a_directory_has_another_owner(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "a", "cluster", "uuid")
    directory.next_start()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied = DataDirectory(tmp_path / "b", "cluster", "uuid")
    assert copied.server == directory.server
    assert copied.owner != directory.owner


def test_a_damaged_file_is_told_with_its_path(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, "cluster", "uuid")
    directory.next_start()
    directory.release()
    (tmp_path / "server.json").write_bytes(b"{")
    with pytest.raises(Corruption, match=r"server\.json"):
        DataDirectory(tmp_path, "cluster", "uuid")
