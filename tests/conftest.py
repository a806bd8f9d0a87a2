"""Makes `tests.support` importable wherever pytest is started from; has the one Spark session and ZooKeeper server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

    from tests.support.zookeeper import ZooKeeperServer

_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

# Java compiles for a run of hours; in a run of minutes that is half of its work. Whatever tests start inherits this.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No test may fail because the machine is busy.
settings.register_profile("ebla", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("ebla")


def pytest_configure(config: pytest.Config) -> None:
    from tests.support.places import keep_in_memory

    keep_in_memory()
    if config.option.markexpr == "quick":
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what has no quick test, where only those are asked for."""
    from tests.support.quick import is_quick_file

    if config.option.markexpr != "quick" or not collection_path.name.startswith("test_"):
        return None
    return None if is_quick_file(str(collection_path.relative_to(_ROOT))) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, before any are chosen by their marks."""
    from tests.support.quick import is_quick

    for item in items:
        if is_quick(item.nodeid) and item.get_closest_marker("soak") is None:
            item.add_marker("quick")


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session, as Ebla starts it. Tasks may fail three times: tests of lost attempts need that."""
    from ebla.pipeline.spark.session import session

    # Left running at the end: tests of the command line, in the same process, go on with it.
    settings = {"spark.sql.shuffle.partitions": "2"}
    return session("local[2, 4]", "ebla tests", log_level="OFF", **settings)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper server by itself. Every test takes a root of its own; nobody stops it."""
    from tests.support.zookeeper import ZooKeeperServer, free_ports

    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), free_ports(1)[0])
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Keep tests of one process together that need Spark, and ZooKeeper."""
    from tests.support.sharing_out import SharingOut

    return SharingOut(config, log)
