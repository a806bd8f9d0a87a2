"""A cluster's directories are taken for nothing else, and whoever names them is told what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebla
from ebla.cli.shared.command_failures import ExitCode
from ebla.errors import RequestError, Unavailable
from ebla.service.cluster_place import mark_root
from tests.cli.conftest import Cli


@pytest.fixture
def down(tmp_path: Path) -> Path:
    """What an older version left: nothing but the directories says what they are."""
    directory = tmp_path / "cl"
    for name in ("root", "master-1", "server-1"):
        (directory / name).mkdir(parents=True)
    return directory


def _content(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("name", [".", "root"])
def test_the_directory_of_a_cluster_that_is_down_is_not_opened_and_not_touched(
    down: Path, name: str, read_only: bool
) -> None:
    before = _content(down)
    with pytest.raises(RequestError, match=r"of (a|the) cluster.* is down: `ebla up --data .*cl` starts it"):
        ebla.open(down / name, read_only=read_only)
    with pytest.raises(RequestError, match="is down"):
        ebla.status(down / name)
    assert _content(down) == before


@pytest.mark.parametrize("name", [".", "root"])
def test_of_one_that_is_up_the_way_to_connect_is_told(down: Path, name: str) -> None:
    (down / "cluster.json").write_text("{}")
    with pytest.raises(RequestError, match=r'it is up, and ebla.connect\(".*cl"\) connects'):
        ebla.open(down / name)


def test_a_store_that_was_made_in_the_directory_of_a_cluster_does_not_hide_it(down: Path) -> None:
    (down / "coordination.sqlite").touch()
    with pytest.raises(RequestError, match="directory of a cluster"):
        ebla.open(down)


def test_a_root_elsewhere_is_known_by_the_mark_of_its_masters(tmp_path: Path) -> None:
    mark_root(tmp_path / "shared", "51bb")
    with pytest.raises(RequestError, match="root of a cluster"):
        ebla.open(tmp_path / "shared")


def test_a_store_in_a_directory_called_root_is_a_store(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "root") as db:
        assert db.tables() == []


def test_connecting_to_a_cluster_that_is_down_says_how_it_is_started(down: Path) -> None:
    for place in (down, down / "cluster.json"):
        with pytest.raises(Unavailable, match="is down: start it with `ebla up --data"):
            ebla.connect(place)


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("scan", "words"),
        ("create",),
        ("create", "t", "--key", "k:string", "--column", "v:int64"),
        ("verify",),
        ("backup", "elsewhere", "--no-spark"),
    ],
)
def test_every_command_says_that_the_cluster_is_down(down: Path, command: tuple[str, ...]) -> None:
    before = _content(down)
    told = Cli(str(down)).fails(ExitCode.UNAVAILABLE, *command)
    assert "is down: start it with `ebla up --data" in told
    assert "ebla create" not in told
    told = Cli(str(down / "root")).fails(ExitCode.REQUEST, *command)
    assert "is the root of the cluster in" in told
    assert _content(down) == before


@pytest.mark.parametrize("command", [("down",), ("top", "--once")])
def test_commands_for_the_cluster_itself_say_that_it_is_down(down: Path, command: tuple[str, ...]) -> None:
    told = Cli(str(down)).fails(ExitCode.UNAVAILABLE, *command, "--data", str(down))
    assert "is down: start it with `ebla up --data" in told
    assert "ebla create" not in told
