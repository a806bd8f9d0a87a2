"""A package that is not installed is named together with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ebla
from ebla.extras import EXTRAS, needing

ROOT = Path(__file__).resolve().parents[1]

# As where none of them is installed. Each line that it prints is what one call says.
WITHOUT = """
import sys

class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "polars", "pyspark", "kazoo"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nobody())
import ebla

db = ebla.open(sys.argv[1])
table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"v": "int64"}))
table.put([{"k": 1, "v": 1}])
for call in (
    lambda: table.scan().to_pandas(),
    lambda: table.scan().to_polars(),
    lambda: db.spark("t"),
    lambda: ebla.open(sys.argv[1] + "-zk", coordination="zk://127.0.0.1:1/x"),
):
    try:
        call()
    except ebla.MissingExtra as error:
        print(error)
assert table.scan().to_arrow().num_rows == 1
db.close()
"""


def test_calls_that_need_a_package_name_the_extra_that_brings_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "store")], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines() == [
        'to_pandas needs pandas, which is not installed: pip install "ebla[frames]"',
        'to_polars needs polars, which is not installed: pip install "ebla[frames]"',
        'db.spark needs pyspark, which is not installed: pip install "ebla[spark]"',
        "the coordination service zk://127.0.0.1:1/x needs kazoo, which is not installed: "
        'pip install "ebla[zookeeper]"',
    ]


def test_every_extra_that_is_named_is_one_of_the_project_and_brings_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(wanted.startswith(package) for wanted in extras[extra]), package


def test_a_module_that_is_missing_inside_a_package_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as found, needing("polars", "to_polars"):
        raise ModuleNotFoundError("No module named 'narwhals'", name="narwhals")
    assert not isinstance(found.value, ebla.MissingExtra)
