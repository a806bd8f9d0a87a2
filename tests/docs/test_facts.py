"""The numbers and types that pages tell are those of the code."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import tomllib
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla.client import database
from ebla.coordination import sqlite_file
from ebla.metadata.values import transaction_file
from ebla.model import column_types, declaration
from ebla.model.column_types import is_key_type, parse_type
from ebla.model.text_values import to_json, type_text
from ebla.pipeline.backups import manifest
from ebla.pipeline.spark.types import spark_type
from ebla.rows import row_parts
from ebla.storage.fragment import fragment_format
from ebla.storage.log import log_format
from ebla.tablet.recovery import identity
from tests.docs.pages import ROOT

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    text = (ROOT / "docs" / page).read_text().partition(heading)[2]
    lines = text[text.index("\n|") :].strip().splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in list(table)[2:]]


# --- types ---

NOON = datetime(2026, 1, 31, 12)
VALUES: dict[str, Any] = {
    "bool": True,
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), 1),
    **dict.fromkeys(("float16", "float32", "float64"), 0.5),
    "decimal128(10, 2)": Decimal("1.25"),
    "string": "ada",
    "binary": b"\x00\xff",
    "fixed_size_binary[2]": b"ab",
    "date32": date(2026, 1, 31),
    **dict.fromkeys(("timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]"), NOON),
    "timestamp[us, tz=UTC]": NOON.replace(tzinfo=UTC),
    "time32[s]": time(12, 30),
    "time64[us]": time(12, 30),
    "duration[us]": timedelta(seconds=90),
    "list<int64>": [1, 2],
    "fixed_size_list<float32>[2]": [1.0, 2.0],
    "struct<x: int32, y: string>": {"x": 1, "y": "a"},
}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a column of each type is to everybody, found out by writing and reading one that has a null, too."""
    columns = {f"c{at}": kind for at, kind in enumerate(VALUES)}
    with ebla.open(tmp_path_factory.mktemp("types") / "store") as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns=columns))
        table.put([{"k": 1, **{name: VALUES[kind] for name, kind in columns.items()}}, {"k": 2}])
        row = table.get(1)
        assert row == {"k": 1, **{name: VALUES[kind] for name, kind in columns.items()}}
        arrow, pandas, polars = table.scan().to_arrow(), table.scan().to_pandas(), table.scan().to_polars()
    found = {}
    for name, text in columns.items():
        kind = parse_type(text)
        (shown,) = to_json(arrow[name].combine_chunks().slice(0, 1))
        cells = [
            type(row[name]).__name__,
            str(pandas[name].dtype),
            str(polars[name].dtype),
            spark_type(kind).simpleString(),
            json.dumps(shown, separators=(",", ":")),
        ]
        found[type_text(kind)] = ["yes" if is_key_type(kind) else "no", *(f"`{cell}`" for cell in cells)]
    return found


def test_the_table_of_types_is_what_the_code_does(typed: dict[str, list[str]]) -> None:
    told = {row[0].strip("`"): row[1:] for row in rows_of("types.md", "# Types") if row[0].startswith("`")}
    assert told == typed


def test_types_that_are_said_to_be_taken_are_and_others_are_not() -> None:
    text = (ROOT / "docs" / "types.md").read_text()
    also = re.findall(r"`([^`]+)`", text.partition("\nAlso ")[2].partition("Lists\n")[0])
    assert len(also) == 7
    sizes = {"decimal32": "(9, 2)", "decimal64": "(18, 2)", "decimal256": "(76, 2)", "duration": "[ns]"}
    for name in also:
        assert parse_type(name + sizes.get(name, "")) is not None
    for refused in (pa.map_(pa.string(), pa.int64()), pa.month_day_nano_interval(), pa.uuid()):
        with pytest.raises(ebla.SchemaError):
            parse_type(refused)


# --- limits ---


def test_the_limits_are_those_of_the_code() -> None:
    defaults = {setting.name: setting.default for setting in dataclasses.fields(ebla.Settings)}
    told = {row[0]: row for row in rows_of("limits.md", "## Refused")}

    def number(text: str) -> int:
        figure, _, unit = text.replace(",", "").partition(" ")
        return int(figure) * UNITS.get(unit, 1)

    for name, row in told.items():
        setting = re.match(r"`(\w+)`", row[2])
        if setting:
            assert number(row[1]) == defaults[setting[1]], name
    assert number(told["the qualifier of a cell"][1]) == row_parts.QUALIFIER_BYTES_MAX
    assert number(told["tablets of a table when it is made"][1]) == database.TABLETS_MAX
    assert f"{declaration.NAME_BYTES_MAX} bytes" in told["the name of a column, a family, a group"][1]
    assert f"{{1,{told['the name of a table'][1].split()[0]}}}" in declaration._TABLE_NAME.pattern
    least, most = told["blocks of a group (`block_bytes`)"][1].split(" to ")
    assert (number(least), number(most)) == (declaration.BLOCK_BYTES_MIN, declaration.BLOCK_BYTES_MAX)
    assert int(told["digits of a decimal"][1]) == max(digits for _, digits in column_types._DECIMALS.values())


def test_defaults_that_pages_tell_in_brackets_are_those_of_the_code() -> None:
    defaults = {setting.name: setting.default for setting in dataclasses.fields(ebla.Settings)}
    found = 0
    for page in ("limits.md", "guarantees.md"):
        for name, figure, unit in re.findall(
            r"`(\w+)`[,]? \(?(\d+) (KiB|MiB|GiB)\)?", (ROOT / "docs" / page).read_text()
        ):
            assert defaults[name] == int(figure) * UNITS[unit], name
            found += 1
    assert found >= 5


# --- formats ---


def test_the_versions_of_formats_are_those_of_the_code() -> None:
    told = {row[0]: int(row[1]) for row in rows_of("upgrading.md", "# Upgrading")}
    assert told == {
        "the store (its identity in the coordination service)": identity.FORMAT_VERSION,
        "`coordination.sqlite`": sqlite_file.FORMAT_VERSION,
        "METADATA": transaction_file.FORMAT_VERSION,
        "log": log_format.FORMAT_VERSION,
        "fragments": fragment_format.FORMAT_VERSION,
        "backups (manifest)": manifest.FORMAT_VERSION,
    }


def test_the_changelog_and_the_package_speak_of_the_same_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == ebla.__version__
    assert f'version = "{ebla.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_contributing_names_every_target_of_make() -> None:
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert not [target for target in targets[1].split() if f"make {target}" not in page]


def test_contributing_draws_every_package() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    packages = [path.parent.name for path in (ROOT / "ebla").glob("*/__init__.py")]
    assert not [name for name in packages if not re.search(rf"^    ebla/{name}\b", page, re.MULTILINE)]


def test_contributing_lists_every_room_and_no_other() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    told: set[str] = set()
    floor = ""
    for line in re.findall(r"^    (  [a-z_, ]+?|ebla/[a-z_]+)  +\S.*$", page, re.MULTILINE):
        if line.startswith("ebla/"):
            floor = line
        else:
            told |= {f"{floor}/{room}" for room in re.findall(r"\w+", line)}
    assert told == {str(path.parent.relative_to(ROOT)) for path in (ROOT / "ebla").glob("*/*/__init__.py")}


def test_the_tour_draws_the_floors_and_rooms_in_the_order_that_is_checked() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    lines = text.partition("## The house")[2].partition("`a > b` says")[0].splitlines()
    drawn: dict[str, str] = {}  # floors by name, with their rooms: these stand in the third column
    floor = ""
    for line in (line for line in lines if line.startswith("    ")):
        floor = line.split()[0] if line[4] != " " else floor
        drawn[floor] = drawn.get(floor, "") + line[42:]
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layered = [one["layers"] for one in linter["contracts"] if one["type"] == "layers"]
    for name in ("tablet", "pipeline", "client", "metadata"):
        (layers,) = [layers for layers in layered if layers[0].startswith(f"ebla.{name}.")]
        wanted = [sorted(re.findall(rf"ebla\.{name}\.(\w+)", layer)) for layer in layers]
        assert [sorted(re.findall(r"\w+", rooms)) for rooms in drawn[name].split(">")] == wanted, name
    floors = [one for layer in layered[0] for one in re.findall(r"ebla\.(\w+)", layer)]
    packages = [one for one in floors if (ROOT / "ebla" / one).is_dir() and one not in ("storage", "threads")]
    assert [one for one in drawn if one in packages] == packages


def test_help_of_make_tells_of_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert targets is not None
    assert not [name for name in targets[1].split() if not re.search(rf"^{name}:.*## \w", text, re.MULTILINE)]


def test_every_decision_is_in_the_index_once_and_what_amends_it_is_in_both() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text().partition("## Tried")[0]
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+?)\) \| .+? \| (.+) \|$", index, re.MULTILINE)
    assert sorted(file for _, file, _ in listed) == sorted(path.name for path in folder.glob("0*.md"))
    for number, file, status in listed:
        text = (folder / file).read_text()
        assert file.startswith(number)
        assert status.startswith(("in force", "amended", "superseded")), file
        said = text.partition("**Status.**")[2]
        if not status.startswith("in force"):
            assert re.search("[Aa]mended|[Ss]uperseded", said), file
        assert not [other for other in re.findall(r"\((\d{4}-\S+?)\)", status) if other not in said], file


def test_the_tour_and_the_glossary_name_classes_that_there_are() -> None:
    source = "".join(path.read_text() for path in (ROOT / "ebla").rglob("*.py"))
    known = set(re.findall(r"^ *class (\w+)", source, re.MULTILINE))
    for page in ("tour.md", "glossary.md"):
        text = (ROOT / "docs" / page).read_text()
        named = set(re.findall(r"`([A-Z][a-z]\w*[a-z])(?:\.\w+)?`", text)) - {"Schema"}
        assert not named - known, page


def test_files_that_pages_name_are_there() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    wrong = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(r"`((?:ebla|tests|benchmarks|docs)/[\w/.-]+)`", page.read_text())
        if not (ROOT / name).exists()
    ]
    inner = (
        r"`((?:cli|client|coordination|direct|master|metadata|model|pipeline|rows|service|storage|tablet)/[\w/]+\.py)`"
    )
    wrong += [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(inner, page.read_text())
        if not (ROOT / "ebla" / name).exists()
    ]
    assert wrong == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts]
    assert not [str(page) for page in pages if f"({page})" not in index and page != Path("README.md")]
