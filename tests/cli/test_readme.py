"""The Python in README and API page runs as it stands, from top to bottom, and the links lead somewhere."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import ebla

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.usefixtures("spark")
def test_python_blocks_of_the_readme_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks("README.md", tmp_path, monkeypatch)


def test_python_blocks_of_the_api_page_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks("docs/api.md", tmp_path, monkeypatch)


def test_the_api_page_names_every_method_and_every_part_of_an_alteration() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    kinds = (ebla.Database, ebla.Table, ebla.Scan, ebla.Snapshot)
    names = {name for kind in kinds for name in vars(kind) if not name.startswith("_")}
    names |= set(inspect.signature(ebla.Database.alter_table).parameters) - {"self", "name"}
    assert not [name for name in sorted(names) if not re.search(rf"\b{name}\b", page)]


@pytest.mark.usefixtures("spark")
def test_python_blocks_of_a_how_to_page_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in sorted((ROOT / "docs" / "howto").glob("*.md")):
        place = tmp_path / page.stem
        place.mkdir()
        run_blocks(str(page.relative_to(ROOT)), place, monkeypatch, blocks_min=1)


def run_blocks(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks_min: int = 5) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= blocks_min
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, Python block {number}", "exec"), names)


@pytest.mark.parametrize("page", ["README.md", "docs/README.md", "docs/api.md", "docs/operations.md"])
def test_links_lead_to_files_of_the_repository(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    missing = [target for target in targets if not ((ROOT / page).parent / target.partition("#")[0]).exists()]
    assert not missing


def test_operations_tells_the_true_defaults_of_settings() -> None:
    units = {"KiB": 1 << 10, "MiB": 1 << 20}
    defaults = {setting.name: setting.default for setting in dataclasses.fields(ebla.Settings)}
    section = OPERATIONS.partition("## Settings")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    assert len(rows) >= 5
    for names, values in rows:
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split(", "), strict=True):
            if value.strip() == "none":
                assert not defaults[name], name
                continue
            number, _, unit = value.partition(" ")
            assert defaults[name] == int(number) * units.get(unit, 1), name


def test_operations_speaks_of_every_error_there_is() -> None:
    leaves = {name for name in dir(ebla) if isinstance(kind := getattr(ebla, name), type) and _is_leaf(kind)}
    assert leaves - {"StaleRoute"} == {name for name in leaves if f"`{name}`" in OPERATIONS}


def _is_leaf(kind: type) -> bool:
    return issubclass(kind, ebla.EblaError) and not any(
        sub.__module__ == "ebla.errors" for sub in kind.__subclasses__()
    )
