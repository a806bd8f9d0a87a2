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
from ebla.pipeline.loading.load_task import LoadTask

url, root = sys.argv[1:]
mark = str(Path(root).parent / "mark")

class KillsItsExecutor(LoadTask):
    def run(self, partition, batches, files):
        result = super().run(partition, batches, files)
        if partition == 0:
            kill_executor_once(mark)
        return result

spark = standalone_session(url)
with ebla.open(root) as db, replaced("ebla.pipeline.loading.load", "LoadTask", KillsItsExecutor):
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
from ebla.pipeline.loading.load_task import LoadTask

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
with ebla.open(root) as db, replaced("ebla.pipeline.loading.load", "LoadTask", SlowTheFirstTime):
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


TABLE = """
url, root = sys.argv[1:]
mark = str(Path(root).parent / "mark")
SETTINGS = ebla.Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
SCHEMA = ebla.Schema(key={"k": "string"}, columns={"n": "int64", "s": "string"})
KEYS = [f"{n:05}" for n in range(8_000)]

def filled(db):
    table = db.create_table("t", SCHEMA, splits=["02000", "04000", "06000"])
    for step in (1, 3, 7):
        table.put([{"k": key, "n": int(key) * step, "s": key} for key in KEYS[::step]])
        table.flush()
    table.erase_many(KEYS[::11])
    table.flush()
    return table

def files_of(db):
    return {file for name in db.tables() for file in db.table(name).files()}

def files_there():
    return {str(path.relative_to(root)) for path in Path(root).glob("fragments/*/*")}

spark = standalone_session(url)
"""

KILLED_COMPACT = (
    TABLE
    + """
import threading
from ebla.pipeline.care import compact_plan
from ebla.pipeline.care.compact_task import CompactTask

class KillsItsExecutor(CompactTask):
    def run(self, portion, files):
        results = super().run(portion, files)
        if portion == 1:
            kill_executor_once(mark)
        return results

compact_plan.SECTION_BYTES_MIN = 20_000  # a portion for every tablet
with ebla.open(root, settings=SETTINGS) as db:
    table = filled(db)
    before = [dict(row) for row in table.scan()]
    told, stop = {}, threading.Event()

    def write():
        while not stop.is_set():
            key = f"w{len(told):05}"
            table.put({"k": key, "n": 1})
            told[key] = 1
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with replaced("ebla.pipeline.care.compact", "CompactTask", KillsItsExecutor):
            done = ebla.pipeline.compact(root, "t", spark=spark)
    finally:
        stop.set()
        writer.join()
    assert Path(mark).exists()
    assert done.tablets == 4 and done.given_up == (), done
    rows = [dict(row) for row in table.scan()]
    assert [row for row in rows if not row["k"].startswith("w")] == before
    assert {row["k"] for row in rows if row["k"].startswith("w")} == set(told)
    assert files_of(db) <= files_there()
    of_the_job = {file for file in files_there() if "/compact-" in file}
    assert of_the_job and of_the_job <= files_of(db), "what the attempt that was killed wrote is gone"
    assert ebla.verify(root).is_clean
print("fine")
"""
)


def test_a_compaction_survives_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(KILLED_COMPACT, str(tmp_path / "store"))


KILLED_VERIFY = (
    TABLE
    + """
module = sys.modules["ebla.pipeline.care.verify"]
module.TASK_BYTES = 1  # a task for every file
looker = module._looker

def killing(*arguments):
    look = looker(*arguments)

    def run(numbers):
        for made in look(numbers):
            kill_executor_once(mark)
            yield made

    return run

with ebla.open(root, settings=SETTINGS) as db:
    table = filled(db)
    files = sorted(table.files())
    raw = bytearray(Path(root, files[0]).read_bytes())
    raw[len(raw) // 4] ^= 0xFF
    Path(root, files[0]).write_bytes(raw)
    with replaced("ebla.pipeline.care.verify", "_looker", killing):
        report = ebla.pipeline.verify(root, spark=spark)
    assert Path(mark).exists()
    assert report.files == len(files)
    assert [(one.file, one.kind) for one in report.findings] == [(files[0], "damaged")], report
print("fine")
"""
)


def test_a_verification_survives_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(KILLED_VERIFY, str(tmp_path / "store"))


KILLED_GC = (
    TABLE
    + """
former = {name: getattr(sys.modules["ebla.pipeline.care.garbage"], name) for name in ("_lister", "_reader")}

def killing(name):
    def make(root):
        work = former[name](root)

        def run(thing):
            yield from work(thing)
            kill_executor_once(mark + name)

        return run

    return make

with ebla.open(root, settings=SETTINGS) as db:
    table = filled(db)
    db.create_table("other", SCHEMA)
    before = [dict(row) for row in table.scan()]
    db.clone_table("t", "clone")
    table.compact()
    db.drop_table("clone")
    with replaced("ebla.pipeline.care.garbage", "_lister", killing("_lister")):
        first = ebla.pipeline.gc(root, dry_run=False, spark=spark)
    with replaced("ebla.pipeline.care.garbage", "_reader", killing("_reader")):
        second = ebla.pipeline.gc(root, dry_run=False, spark=spark)
    assert Path(mark + "_lister").exists() and Path(mark + "_reader").exists()
    assert first.candidates == len(second.removed) > 0, (first, second)
    assert files_there() == files_of(db)
    assert [dict(row) for row in table.scan()] == before
print("fine")
"""
)


def test_garbage_collection_survives_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(KILLED_GC, str(tmp_path / "store"))


READS = (
    TABLE
    + """
def killing(module, name, mark):
    former = getattr(sys.modules[module], name)

    def run(*arguments):
        for made in former(*arguments):
            yield made
            kill_executor_once(mark)  # what Spark has of this attempt does not count

    return replaced(module, name, run)

def plain(rows):
    return sorted((dict(row.asDict() if hasattr(row, "asDict") else row) for row in rows), key=lambda row: row["k"])
"""
)

KILLED_CHANGES = (
    READS
    + """
with ebla.open(root, settings=SETTINGS) as db:
    table = filled(db)
    since = table.scan().txn
    old = {row["k"] for row in table.scan()}
    table.put([{"k": key, "n": -1} for key in KEYS[1::50]] + [{"k": "new", "n": 1}])
    table.flush()
    table.erase_many(KEYS[5::100])
    table.erase_range("07000", "07100")
    new = {row["k"]: row["n"] for row in table.scan()}
    written, erased = {*KEYS[1::50], "new"}, {*KEYS[5::100], *KEYS[7000:7100]}
    expected = {key: "update" if key in old else "insert" for key in written & new.keys()}
    expected |= dict.fromkeys(old - new.keys(), "erase")
    with killing("ebla.pipeline.change_feed.changes", "read_changes", mark):
        found = ebla.pipeline.changes(root, "t", since, before=True, spark=spark).collect()
    assert Path(mark).exists()
    assert len(found) == len({row["k"] for row in found})
    assert {row["k"]: row["_change"] for row in found} == expected
    assert all(row["n"] == new[row["k"]] for row in found if row["_change"] != "erase")
print("fine")
"""
)


def test_changes_survive_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(KILLED_CHANGES, str(tmp_path / "store"))


KILLED_SCAN = (
    READS
    + """
with ebla.open(root, settings=SETTINGS) as db:
    table = filled(db)
    table.put([{"k": key, "n": -1} for key in KEYS[::20]])  # in memory and in the log alone
    expected = plain(table.scan())
    with killing("ebla.pipeline.scanning.scan", "read_section", mark + "-scan"):
        frame = ebla.pipeline.scan(root, "t", spark=spark)
        table.put([{"k": key, "n": -2} for key in KEYS[::10]])  # after its snapshot
        assert plain(frame.collect()) == expected
        assert plain(frame.collect()) == expected
    assert Path(mark + "-scan").exists()
    now = plain(table.scan())
    target = str(Path(root).parent / "out")
    with killing("ebla.pipeline.scanning.scan", "read_section", mark + "-export"):
        done = ebla.pipeline.export(root, "t", target, spark=spark)
    assert Path(mark + "-export").exists()
    assert done.rows == len(now)
    from ebla.pipeline.scanning.export_manifest import check_export
    check_export(target)
    import pyarrow.parquet as pq
    assert plain(pq.read_table(target).to_pylist()) == now
    assert {path.name for path in Path(target).parent.iterdir() if "ebla-export" in path.name} == set()
print("fine")
"""
)


def test_a_scan_and_an_export_survive_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(KILLED_SCAN, str(tmp_path / "store"))


KILLED_PRESPLIT = (
    READS
    + """
from ebla.pipeline.statistics.stats_task import StatsTask

def killer(mark):
    class KillsItsExecutor(StatsTask):
        def marks(self, shared):
            found = super().marks(shared)
            kill_executor_once(mark)
            return found

    return replaced("ebla.pipeline.statistics.key_survey", "StatsTask", KillsItsExecutor)

sys.modules["ebla.pipeline.statistics.key_survey"].TASK_BYTES = 1  # a task for every file
with ebla.open(root, settings=SETTINGS) as db:
    table = filled(db)
    table.compact()
    whole = ebla.pipeline.stats(root, "t", tablets=7, spark=spark)
    with killer(mark + "-stats"):
        found = ebla.pipeline.stats(root, "t", tablets=7, spark=spark)
    assert Path(mark + "-stats").exists()
    assert (found.records, found.buckets, found.splits) == (whole.records, whole.buckets, whole.splits)
    before = plain(table.scan())
    with killer(mark + "-presplit"):
        done = ebla.pipeline.presplit(db, "t", tablets=7, spark=spark)
    assert Path(mark + "-presplit").exists()
    assert (done.tablets, len(table.tablets()), done.splits) == (7, 7, whole.splits)
    assert plain(table.scan()) == before
    assert ebla.verify(root).is_clean or {one.kind for one in ebla.verify(root).findings} == {"orphan"}
print("fine")
"""
)


def test_a_histogram_and_a_presplit_survive_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    assert "fine" in cluster.run(KILLED_PRESPLIT, str(tmp_path / "store"))
