"""A cluster is coordinated by what coordinated it before: anything else would know nothing of its tables and users."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebla.access.user_list import UserList
from ebla.clock import SystemClock
from ebla.coordination.address import open_coordination
from ebla.errors import RequestError, Unavailable
from ebla.local_cluster import local_cluster
from ebla.local_cluster.administrator import users_of
from ebla.local_cluster.cluster_file import (
    ClusterFile,
    ClusterProcess,
    had_zookeeper,
    remove_cluster,
    write_cluster,
)


class Started(Exception):
    """A process would have been started."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a cluster that is down; whatever would start is told by its role."""

    def start_zookeeper(data: Path, port: int) -> ClusterProcess:
        raise Started("zookeeper")

    def launch(role: str, *arguments: object, **options: object) -> ClusterProcess:
        raise Started(role)

    monkeypatch.setattr(local_cluster, "start_zookeeper", start_zookeeper)
    monkeypatch.setattr(local_cluster, "launch", launch)
    (tmp_path / "c" / "root").mkdir(parents=True)
    return tmp_path / "c"


def was_up(directory: Path, *, with_zookeeper: bool) -> None:
    """Leave what a cluster leaves that was up and went down."""
    (directory / "master-1").mkdir()
    sqlite = directory / "root" / "coordination.sqlite"
    master = ClusterProcess("master", "m", "127.0.0.1:1", str(directory / "master-1"), 1 << 30)
    zookeeper = ClusterProcess("zookeeper", "zookeeper", "127.0.0.1:2", str(directory / "zookeeper"), 1 << 30)
    if with_zookeeper:
        (directory / "zookeeper" / "data").mkdir(parents=True)
    else:
        with open_coordination(str(sqlite), SystemClock()) as service:
            UserList(service).read()
    place = "zk://127.0.0.1:2/ebla" if with_zookeeper else str(sqlite)
    processes = (zookeeper, master) if with_zookeeper else (master,)
    write_cluster(directory, ClusterFile(master.address, str(directory / "root"), place, processes))
    remove_cluster(directory)


def up(directory: Path, *, zookeeper: bool = False) -> None:
    local_cluster.start(directory, servers=None, masters=None, port=None, zookeeper=zookeeper)


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_a_cluster_with_zookeeper_comes_up_with_it_again_asked_for_or_not(directory: Path, is_asked_for: bool) -> None:
    was_up(directory, with_zookeeper=True)
    with pytest.raises(Started, match="zookeeper"):
        up(directory, zookeeper=is_asked_for)
    assert not (directory / "root" / "coordination.sqlite").exists()


def test_zookeeper_is_refused_for_a_cluster_that_is_coordinated_by_a_file(directory: Path) -> None:
    was_up(directory, with_zookeeper=False)
    with pytest.raises(RequestError, match="without --zookeeper, or a new one in another directory"):
        up(directory, zookeeper=True)
    assert not (directory / "zookeeper").exists()
    with pytest.raises(Started, match="master"):
        up(directory)


@pytest.mark.parametrize("with_zookeeper", [False, True])
def test_what_never_came_up_is_coordinated_by_what_is_there(directory: Path, with_zookeeper: bool) -> None:
    assert had_zookeeper(directory) is None
    was_up(directory, with_zookeeper=with_zookeeper)
    (directory / "cluster.last.json").unlink()
    assert had_zookeeper(directory) is with_zookeeper


def test_a_new_cluster_has_the_coordination_that_is_asked_for(directory: Path) -> None:
    with pytest.raises(Started, match="zookeeper"):
        up(directory, zookeeper=True)
    with pytest.raises(Started, match="master"):
        up(directory)


def test_users_of_a_cluster_that_is_down_are_not_looked_for_in_a_file_if_zookeeper_has_them(directory: Path) -> None:
    was_up(directory, with_zookeeper=True)
    with open_coordination(str(directory / "root" / "coordination.sqlite"), SystemClock()) as stray:
        UserList(stray).read()
    with pytest.raises(Unavailable, match="is down: start it with `ebla up"), users_of(directory, None):
        pass


def test_users_of_a_cluster_that_is_down_are_in_its_file(directory: Path) -> None:
    was_up(directory, with_zookeeper=False)
    with users_of(directory, None) as users:
        assert not users.read().users
