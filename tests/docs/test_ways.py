"""The files that the tour lists for a put and a scan are those that they pass, and so are the steps back up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ebla
from tests.docs.ways import ROOT, Way, way_of


def told_of(request: str) -> Way:
    """Return the way that the tour tells of: the lines below its title, a folder and its files, or ``^`` and a step."""
    text = (ROOT / "docs" / "tour.md").read_text()
    block = re.search(rf"^    {request}, now: (\d+) files, (\d+) steps up\n((?:        .*\n)+)", text, re.MULTILINE)
    assert block is not None
    way = Way()
    folder = ""
    for line in block[3].splitlines():
        words = line.split()
        if words[0] == "^":
            way.steps_up.append(line.strip().removeprefix("^ "))
            continue
        if not line.startswith(" " * 9):  # others go on with the folder of the line before
            folder = words.pop(0)
        way.files += [f"{folder}/{name}.py".removeprefix("./") for name in words]
    assert (len(way.files), len(way.steps_up)) == (int(block[1]), int(block[2]))
    return way


def passed(request: Callable[[], object]) -> Way:
    """Return the shortest of some ways: on any of them txns may have to be reserved, or a block to be decoded."""
    return min((way_of(request) for _ in range(3)), key=lambda way: (len(way.files), len(way.steps_up)))


def assert_alike(told: Way, found: Way) -> None:
    too_many = sorted({*told.files, *told.steps_up} - {*found.files, *found.steps_up})
    too_few = sorted({*found.files, *found.steps_up} - {*told.files, *told.steps_up})
    assert too_many == [], "the tour lists what is not passed: mend the list in docs/tour.md"
    assert too_few == [], "the tour does not list what is passed: mend the list in docs/tour.md"


@pytest.fixture
def users(tmp_path: Path) -> Iterator[ebla.Table]:
    schema = ebla.Schema(key={"user": "string"}, columns={"name": "string", "age": "int32"})
    with ebla.open(tmp_path) as db:
        table = db.create_table("users", schema)
        table.put([{"user": f"u{at}", "name": "x", "age": at} for at in range(100)])
        table.flush()
        table.put({"user": "u2", "age": 1})
        table.put({"user": "zoe", "age": 1})
        table.scan().to_arrow()
        yield table


def test_the_tour_lists_the_files_and_steps_up_of_a_put(users: ebla.Table) -> None:
    told, found = told_of("put"), passed(lambda: users.put({"user": "ada", "age": 37}))
    assert_alike(told, found)


def test_the_tour_lists_the_files_and_steps_up_of_a_scan(users: ebla.Table) -> None:
    told, found = told_of("scan"), passed(lambda: users.scan("a", "z").to_arrow())
    assert_alike(told, found)
