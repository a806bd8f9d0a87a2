"""Streams through kills: a driver that is killed again and again, both stores reopened meanwhile, an executor lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.settings import Settings
from tests.pipeline.standalone import CODE, Standalone, standalone
from tests.pipeline.streaming.stream_world import same
from tests.support.inside import abandon

pytestmark = pytest.mark.soak

POINTS = ebla.Schema(
    key={"k": "string"},
    groups=[ebla.Group("a", columns={"n": "int64"}), ebla.Group("b", columns={"s": "string"})],
)
# Next to no history of its own: what a stream needs is there because the stream holds it.
SHORT = Settings(history_seconds=1)
KILLS = 6

DRIVER = """
import sys
import ebla.pipeline
spark = ebla.pipeline.session("local[2]", "mirror", log_level="OFF")
follow = sys.argv[4] == "follow"
print("started", flush=True)
ebla.pipeline.mirror(sys.argv[1], "t", sys.argv[2], checkpoint=sys.argv[3], follow=follow, max_rows=300, spark=spark)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


class Driver:
    """A mirror in a process of its own, with all that Spark starts below it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            env=os.environ | {"PYTHONPATH": str(CODE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill the process, its JVM and their workers at once, as when the power goes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def wait(self) -> None:
        out, err = self.process.communicate(timeout=400)
        assert self.process.returncode == 0, (out + err)[-3000:].decode()


def disturb(db: ebla.Database, dice: random.Random) -> None:
    """Something happens to the table."""
    table = db.table("t")
    rows = [{"k": f"{n:05}", "n": dice.randrange(1_000)} for n in dice.sample(range(20_000), 400)]
    table.put([row | {"s": str(row["n"])} for row in rows] if dice.random() < 0.5 else rows)
    low = dice.randrange(20_000)
    match dice.choice(["erase", "range", "flush", "compact", "split", "join", "none"]):
        case "erase":
            for n in range(low, low + 20):
                table.erase(f"{n:05}")
        case "range":
            table.erase_range(f"{low:05}", f"{low + 50:05}")
        case "flush":
            table.flush()
        case "compact":
            table.compact()
        case "split" if f"{low:05}" not in [at["first"] for at in table.tablets()]:
            table.split(f"{low:05}")
        case "join" if len(table.tablets()) > 1:
            ids = [at["id"] for at in table.tablets()]
            place = dice.randrange(len(ids) - 1)
            table.join(tablets=(ids[place], ids[place + 1]))


@pytest.mark.parametrize("seed", range(2))
def test_a_mirror_lives_through_kills_of_its_driver_and_restarts_of_both_sides(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    paths = (str(tmp_path / "from"), str(tmp_path / "to"))
    for path in paths:
        with ebla.open(path, settings=SHORT) as db:
            db.create_table("t", POINTS, splits=["05000"])
    stores: list[ebla.Database] = [ebla.open(path, settings=SHORT) for path in paths]
    stores[0].table("t").put([{"k": f"{n:05}", "n": n, "s": "x"} for n in range(3_000)])
    arguments = (*paths, str(tmp_path / "checkpoint"))
    for _ in range(KILLS):
        driver = Driver(*arguments, "follow")
        assert driver.process.stdout is not None
        assert driver.process.stdout.readline() == b"started\n"
        ends = time.monotonic() + dice.uniform(3, 20)
        while time.monotonic() < ends:
            disturb(stores[0], dice)
            if dice.random() < 0.2:
                side = dice.randrange(2)
                stores[side].close() if dice.random() < 0.5 else abandon(stores[side])
                time.sleep(dice.uniform(0, 0.5))
                # Whoever commits a batch may have it open for a moment.
                stores[side] = _opened(paths[side])
            time.sleep(dice.uniform(0, 0.5))
        driver.kill()
    for side, path in enumerate(paths):
        stores[side].close()
        stores[side] = _opened(path)
    Driver(*arguments, "once").wait()
    assert same(stores[0].table("t"), stores[1].table("t"))
    assert stores[1].table("t").scan().count() > 1_000
    for db in stores:
        db.close()
        assert ebla.verify(db.path).is_clean


def _opened(path: str) -> ebla.Database:
    for _ in range(200):
        try:
            return ebla.open(path, settings=SHORT)
        except ebla.StoreLocked:
            time.sleep(0.1)
    return ebla.open(path, settings=SHORT)


def test_a_stream_goes_on_when_an_executor_is_killed(cluster: Standalone, tmp_path: Path) -> None:
    paths = (str(tmp_path / "from"), str(tmp_path / "to"))
    stores = [ebla.open(path) for path in paths]
    for db in stores:
        db.create_table("t", POINTS, splits=["05000"])
    stores[0].table("t").put([{"k": f"{n:05}", "n": n, "s": "x"} for n in range(10_000)])
    cluster.run(
        """
root, target, checkpoint, mark = sys.argv[2:]
spark = standalone_session(sys.argv[1])

def wounded(batches):
    for batch in batches:
        yield batch
        kill_executor_once(mark)  # what was written of this attempt stays behind

changes = spark.readStream.format("ebla").option("root", root).option("since", "snapshot").option("max_rows", "4000")
frame = changes.load("t")
writer = frame.mapInArrow(wounded, frame.schema).writeStream.format("ebla").option("root", target)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start("t").awaitTermination()
assert Path(mark).exists()
""",
        *paths,
        str(tmp_path / "checkpoint"),
        str(tmp_path / "mark"),
    )
    assert same(stores[0].table("t"), stores[1].table("t"))
    fragments = {f"fragments/{file.parent.name}/{file.name}" for file in stores[1].path.glob("fragments/*/*.parquet")}
    assert fragments == set(stores[1].table("t").files())  # nothing of the lost attempt stayed
    for db in stores:
        db.close()


def test_changes_are_printed_as_they_come(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "store") as db:
        table = db.create_table("t", POINTS)
        table.put({"k": "a", "n": 0})
        process = subprocess.Popen(
            [sys.executable, "-m", "ebla", "--store", str(db.path), "changes", "t", "--since", "snapshot", "--follow"],
            env=os.environ | {"PYTHONPATH": str(CODE), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        found: list[dict[str, Any]] = []
        for n in range(3):
            found.append(json.loads(process.stdout.readline()))
            table.put({"k": "a", "n": n + 1})
        assert [(row["n"], row["_change"]) for row in found] == [(0, "insert"), (1, "update"), (2, "update")]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
