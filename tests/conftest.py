"""Makes `tests.support` importable wherever pytest is started from, and has the one Spark session of all tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session, as Ebla starts it. Tasks may fail three times: tests of lost attempts need that."""
    from ebla.pipeline.session import session

    # Left running at the end: tests of the command line, in the same process, go on with it.
    return session("local[2, 4]", "ebla tests", log_level="OFF", **{"spark.sql.shuffle.partitions": "2"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests that need Spark in one process, where the tests are shared out among several."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
