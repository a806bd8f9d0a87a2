"""Jobs on a Spark cluster of several processes, of which executors are killed in the middle of the work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.standalone import Standalone, can_have_two_hosts, standalone

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not can_have_two_hosts(), reason="the machine has one address of its own"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


KILLED_LOAD = """
from ebla.pipeline.load_task import LoadTask

url, root = sys.argv[1:]
mark = str(Path(root).parent / "mark")

class KillsItsExecutor(LoadTask):
    def run(self, partition, batches, files):
        result = super().run(partition, batches, files)
        if partition == 0:
            kill_executor_once(mark)
        return result

spark = standalone_session(url)
with ebla.open(root) as db, replaced("ebla.pipeline.load", "LoadTask", KillsItsExecutor):
    frame = spark.range(1000).selectExpr("concat('k', id) AS k", "id AS n")
    done = ebla.pipeline.load(db, "t", frame, key="k", partitions=2)
    assert Path(mark).exists()
    assert done.rows == 1000 and db.table("t").scan().count() == 1000
    files = {str(path.relative_to(root)) for path in (Path(root) / "fragments").rglob("*.parquet")}
    assert files == set(db.table("t").files()), files
print("fine")
"""


def test_a_load_survives_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(KILLED_LOAD, str(tmp_path / "store"))


SPECULATED_LOAD = """
from ebla.pipeline.load_task import LoadTask

url, root = sys.argv[1:]
marks = Path(root).parent

class SlowTheFirstTime(LoadTask):
    def run(self, partition, batches, files):
        is_second = partition == 1 and at_the_other(marks / "begun")
        result = super().run(partition, batches, files)
        if partition == 1:
            # Both attempts have written their files. The first one waits until the second has, and is too late.
            names = "\\n".join(one.fragment.file for one in result.fragments)
            (marks / ("second" if is_second else "first")).write_text(names)
            while not is_second and not (marks / "second").exists():
                time.sleep(0.05)
            if not is_second:
                time.sleep(60)
        return result

spark = standalone_session(url, **{
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
})
with ebla.open(root) as db, replaced("ebla.pipeline.load", "LoadTask", SlowTheFirstTime):
    frame = spark.range(1000).selectExpr("concat('k', id) AS k", "id AS n")
    done = ebla.pipeline.load(db, "t", frame, key="k", partitions=2)
    assert done.rows == 1000 and db.table("t").scan().count() == 1000
    named = set(db.table("t").files())
    first, second = (set((marks / name).read_text().split()) for name in ("first", "second"))
    assert first and second and not first & second, (first, second)
    assert second <= named and not first & named, (first, second, named)
    assert ebla.verify(root).is_clean
print("fine")
"""


def test_of_two_attempts_that_both_wrote_one_is_committed(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(SPECULATED_LOAD, str(tmp_path / "store"))
