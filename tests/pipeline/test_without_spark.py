"""Jobs where Spark is not installed: what runs in the process does, and what does not names the extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# As where it is not installed.
NO_SPARK = """
import sys

class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nobody())
"""


def without_spark(code: str, *arguments: str) -> str:
    """Run Python in a process in which there is no Spark; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", NO_SPARK + code, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_there_and_what_needs_spark_names_its_extra() -> None:
    told = without_spark("""
import ebla
import ebla.pipeline
from ebla.pipeline.engine import InProcess, choose_engine

assert isinstance(choose_engine(None, 1 << 50, "a job"), InProcess)
for call in (
    lambda: choose_engine(True, 0, "a job"),
    lambda: ebla.pipeline.scan,
    lambda: ebla.pipeline.session,
):
    try:
        call()
    except ebla.MissingExtra as error:
        print(error)
assert "scan" in dir(ebla.pipeline) and not hasattr(ebla.pipeline, "nothing")
""")
    assert told.splitlines() == [
        'a job needs pyspark, which is not installed: pip install "ebla[spark]"',
        'ebla.pipeline.scan needs pyspark, which is not installed: pip install "ebla[spark]"',
        'ebla.pipeline.session needs pyspark, which is not installed: pip install "ebla[spark]"',
    ]


def test_a_name_of_the_package_is_its_function_whoever_imported_the_module_first() -> None:
    code = """
import sys
import ebla.pipeline.scan
from ebla.pipeline.load import LoadSummary
import ebla.pipeline as pipeline
assert callable(pipeline.load) and callable(pipeline.scan) and pipeline.LoadSummary is LoadSummary
assert sys.modules["ebla.pipeline.scan"].scan is pipeline.scan
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
