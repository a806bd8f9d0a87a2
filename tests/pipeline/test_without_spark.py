"""Jobs where Spark is not installed: what runs in the process does, and what does not names the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ebla.pipeline.scanning.export_manifest import check_export

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
from ebla.pipeline.spark.engine import InProcess, choose_engine

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
import ebla.pipeline.scanning.scan
from ebla.pipeline.loading.load import LoadSummary
import ebla.pipeline as pipeline
assert callable(pipeline.load) and callable(pipeline.scan) and pipeline.LoadSummary is LoadSummary
assert sys.modules["ebla.pipeline.scanning.scan"].scan is pipeline.scan
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_files_are_loaded_exported_and_compared_by_the_commands(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("id,name,day\n2,Bob,2026-01-31\n1,Ada,2026-01-30\n1,Eve,\nbroken\n")
    (tmp_path / "more.json").write_text('{"id": 3, "name": "Zoë"}\n{"id": "none"}\n')
    told = without_spark(
        """
import glob, json, os
import pyarrow as pa, pyarrow.orc, pyarrow.parquet
from ebla.cli import main

os.chdir(sys.argv[1])
pa.orc.write_table(pa.table({"id": [4], "name": ["Orc"]}), "four.orc")
pa.parquet.write_table(pa.table({"id": [5], "name": ["Parquet"]}), "five.parquet")

def ebla(*words):
    try:
        main(["--store", "store", *words])
    except SystemExit as left:
        print("code", left.code or 0)

ebla("create")
ebla("load", "users", "users.csv", "--key", "id", "--rejects", "bad")
ebla("snapshots", "--take", "first")
for file in ("more.json", "four.orc", "five.parquet"):
    ebla("load", "users", file, "--rejects", "bad")
ebla("changes", "users", "--since", "first")
for kind in ("parquet", "csv", "json"):
    ebla("export", "users", f"out-{kind}", "--format", kind)
(file,) = glob.glob("out-csv/part-*")
print(open(file).read())
print("seen")
ebla("changes", "users", "--since", "snapshot", "--checkpoint", "seen", "--columns", "name")
ebla("erase", "users", "4")
ebla("changes", "users", "--checkpoint", "seen", "--columns", "name")
print("end")
ebla("load", "users", "users.csv", "--spark")
ebla("changes", "users", "--since", "snapshot", "--follow", "--spark")
ebla("export", "users", "out", "--master", "local[2]", "--no-spark")
assert "pyspark" not in sys.modules
""",
        str(tmp_path),
    )
    lines = told.splitlines()
    begin, end = lines.index("seen"), lines.index("end")
    seen = [json.loads(line) for line in lines[begin:end] if '"_change"' in line]
    assert [(row["id"], row["_change"]) for row in seen] == [*((one, "insert") for one in range(1, 6)), (4, "erase")]
    del lines[begin : end + 1]
    loads = [line for line in lines if line.startswith("loaded")]
    assert [line.partition(" in ")[0] for line in loads] == [
        "loaded 3 row(s) into the new table users",
        *["loaded 1 row(s) into users"] * 3,
    ]
    assert "1 row(s) gave way to later ones" in loads[0]
    assert ["1 row(s) rejected" in line for line in loads] == [True, True, False, False]
    assert [json.loads(line) for line in lines if '"_change"' in line] == [
        {"id": 3, "name": "Zoë", "day": None, "_change": "insert"},
        {"id": 4, "name": "Orc", "day": None, "_change": "insert"},
        {"id": 5, "name": "Parquet", "day": None, "_change": "insert"},
    ]
    at = lines.index("id,name,day")
    assert lines[at : at + 6] == ["id,name,day", "1,Eve,", "2,Bob,2026-01-31", "3,Zoë,", "4,Orc,", "5,Parquet,"]
    assert [line for line in lines if line.startswith("code")] == ["code 0"] * 10 + ["code 2"] * 3
    for name in ("parquet", "csv", "json"):
        assert check_export(tmp_path / f"out-{name}").rows == 5
