"""A replay of which an executor is killed, or the driver: the outcome is that of opening, or it can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from tests.pipeline.replaying.replay_world import copied, died, log_of, opened, replay_here
from tests.pipeline.standalone import CODE, SETUP, Standalone, can_have_two_hosts, standalone

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


KILLED = """
from ebla.direct.log_sorting import ReplayTask

url, root = sys.argv[1:]
mark = str(Path(root).parent / "mark")

class KillsItsExecutor(ReplayTask):
    def run(self, number):
        result = super().run(number)
        if number == 1:
            kill_executor_once(mark)
        return result

spark = standalone_session(url)
with replaced("ebla.direct.log_replay", "ReplayTask", KillsItsExecutor):
    done = ebla.pipeline.replay(root, portions=4, spark=spark)
assert Path(mark).exists()
assert done.portions == 4 and done.records, done
print("fine")
"""


@pytest.mark.skipif(not can_have_two_hosts(), reason="the machine has one address of its own")
def test_a_replay_survives_the_death_of_an_executor(cluster: Standalone, tmp_path: Path) -> None:
    root = tmp_path / "store"
    txns = died(root, 200)
    expected = opened(copied(root), txns)
    before = set(root.glob("fragments/*/*.parquet"))
    assert "fine" in cluster.run(KILLED, str(root))
    written = {str(path.relative_to(root)) for path in root.glob("fragments/*/*.parquet") if path not in before}
    with ebla.open(root) as db:
        named = {file for name in db.tables() for file in db.table(name).files()}
    assert written <= named, "what the killed attempt left is gone"
    assert opened(root, txns) == expected


DRIVER = """
import signal
from ebla.direct.log_sorting import ReplayTask

root = sys.argv[1]
driver = os.getpid()

class KillsItsDriver(ReplayTask):
    def run(self, number):
        result = super().run(number)
        if number == 1:
            os.kill(driver, signal.SIGKILL)
            time.sleep(60)
        return result

spark = ebla.pipeline.session("local[2]", log_level="OFF")
with replaced("ebla.direct.log_replay", "ReplayTask", KillsItsDriver):
    ebla.pipeline.replay(root, portions=4, spark=spark)
"""


def settle(root: Path) -> None:
    """Wait until what is left of a Spark whose driver is gone writes no more."""
    before: set[Path] = set()
    while (now := set(root.glob("fragments/*/*"))) != before:
        before = now
        time.sleep(3)


def test_a_replay_whose_driver_was_killed_can_be_run_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    txns = died(root, 201)
    expected, log = opened(copied(root), txns), log_of(root)
    script = tmp_path / "driver.py"
    script.write_text(SETUP + DRIVER)
    environment = os.environ | {"PYTHONPATH": str(CODE)}
    done = subprocess.run([sys.executable, str(script), str(root)], env=environment, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    settle(root)
    assert log_of(root) == log
    assert list(root.glob("fragments/*/replay-*")), "it had begun"
    assert opened(copied(root, "instead"), txns) == expected, "opening does as well"
    replay_here(root, 4)
    assert opened(root, txns) == expected
    with ebla.open(root) as db:
        named = {file for name in db.tables() for file in db.table(name).files()}
    assert {str(path.relative_to(root)) for path in root.glob("fragments/*/replay-*")} <= named
