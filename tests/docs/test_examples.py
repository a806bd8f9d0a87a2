"""The Python on the pages of reference runs as it stands; links of all pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, read_page

PAGES = ("docs/types.md", "docs/guarantees.md", "docs/limits.md", "docs/howto/other-tools.md")
ALL = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_run_in_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = read_page(ROOT / name).python
    assert blocks
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{name}, Python block {number}", "exec"), names)


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_of_the_repository(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, heading = target.partition("#")
        path = page.parent / file if file else page
        if not path.exists() or (heading and path.suffix == ".md" and heading not in headings(path)):
            wrong.append(target)
    assert not wrong


def headings(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    found = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", text).lower()).replace(" ", "-") for text in found}
