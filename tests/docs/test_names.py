"""What the pages name is there: arguments, methods, functions, commands and their options, in prose as in examples."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shlex
from collections.abc import Iterator

import pytest
import typer

import ebla
import ebla.pipeline
from ebla.cli import app
from ebla.pipeline.datasource import datasource_options
from ebla.pipeline.streaming import stream_options
from tests.docs.pages import ROOT, Page, pages

PAGES = pages()
KINDS = (ebla.Database, ebla.Table, ebla.Scan, ebla.Snapshot, ebla.TabletListener)
MODULES = (ebla, ebla.pipeline)
# What pages call a database, a table, ... in the middle of a sentence.
HOLDERS: dict[str, tuple[object, ...]] = {
    "db": (ebla.Database,),
    **dict.fromkeys(("table", "users", "orders", "trial", "days", "t"), (ebla.Table,)),
    "scan": (ebla.Scan,),
    "ebla": (ebla,),
    "pipeline": (ebla.pipeline,),
}
# Arguments and functions of others: Python, Arrow, Spark, DuckDB.
FOREIGN_ARGUMENTS = {"key", "precision", "scale", "shape", "time_unit", "time_zone", "tz", "tzinfo"}
FOREIGN_FUNCTIONS = {
    "getLogger",
    "setLevel",
    "sql",
    "read_parquet",
    "field",
    "print",
    "range",
    "mode",
    "option",
    "save",
    "load",
    "format",
    "decimal",
    "decimal32",
    "decimal64",
    "decimal128",
    "decimal256",
    "Decimal",
    "Datetime",
    "Duration",
    "List",
    "Array",
    "Struct",
}
# These follow the source, and may name any function of it.
ABOUT_THE_SOURCE = ("docs/tour.md", "docs/master.md", "docs/metadata.md", "docs/replication.md")
SOURCE = "".join(path.read_text() for path in sorted((ROOT / "ebla").rglob("*.py")))


def public_callables() -> dict[str, object]:
    found = {f"{kind.__name__}.{name}": member for kind in KINDS for name, member in inspect.getmembers(kind)}
    found |= {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    return {name: one for name, one in found.items() if callable(one) and not name.rpartition(".")[2].startswith("_")}


CALLABLES = public_callables()


def parameters_of(one: object) -> set[str]:
    try:
        return set(inspect.signature(one).parameters) - {"self"}  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return set()


ARGUMENTS = {name for one in CALLABLES.values() for name in parameters_of(one)}
ARGUMENTS |= {field.name for kind in (ebla.Settings, ebla.Group, ebla.Schema) for field in dataclasses.fields(kind)}
FUNCTIONS = {name.rpartition(".")[2] for name in CALLABLES}


def calls_in(code: str) -> Iterator[ast.Call]:
    """Yield the calls in a piece of code, as far as it is Python: a span may be cut short with dots."""
    for text in (code, code.replace("...)", ")").replace("...", "None")):
        try:
            tree = ast.parse(text.strip())
        except SyntaxError:
            continue
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        return


def called(call: ast.Call) -> str:
    return ast.unparse(call.func)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_argument_that_a_page_names_is_one_of_a_public_call(page: Page) -> None:
    named = {name for span in page.spans for name in re.findall(r"(?<![-.\w\"'/])([a-z_]\w*)=(?!=)", span)}
    assert not named - ARGUMENTS - FOREIGN_ARGUMENTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_call_in_prose_names_a_public_function_and_arguments_that_it_takes(page: Page) -> None:
    wrong = []
    for span in page.spans:
        for call in calls_in(span):
            name = called(call).rpartition(".")[2]
            if not isinstance(call.func, (ast.Name, ast.Attribute)) or name in FOREIGN_FUNCTIONS:
                continue
            alike = [one for path, one in CALLABLES.items() if path.rpartition(".")[2] == name]
            given = {keyword.arg for keyword in call.keywords if keyword.arg}
            if page.name in ABOUT_THE_SOURCE and f"def {name}(" in SOURCE:
                continue
            if not any(given <= parameters_of(one) for one in alike):
                wrong.append(span)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_attribute_that_a_page_names_is_there(page: Page) -> None:
    wrong = []
    for span in page.spans:
        for holder, name in re.findall(r"(?<![\w./`-])(\w+)\.([a-z_]\w*)(?![\w./])", span):
            owners = HOLDERS.get(holder, ())
            if owners and not any(hasattr(owner, name) or name in vars_of(owner) for owner in owners):
                wrong.append(f"{holder}.{name}")
    assert not wrong


def vars_of(owner: object) -> set[str]:
    """Return what instances get when they are made, which the class does not have."""
    if not isinstance(owner, type):
        return set()
    return set(re.findall(r"self\.(\w+) =", inspect.getsource(owner.__init__)))


def commands() -> dict[str, set[str]]:
    """Return the options of every command, by its name."""
    group = typer.main.get_command(app)
    shared = {option for parameter in group.params for option in parameter.opts}
    return {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        | {"--help", "-h"}
        | shared
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }


COMMANDS = commands()


def lines_of_shell(page: Page) -> Iterator[str]:
    for block in page.shell:
        yield from (line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines())
    yield from page.spans


# Options of all commands, and how many values they have.
BEFORE_THE_COMMAND = {"--verbose": 0, "--debug": 0, "--store": 1, "--log-level": 1, "--log-format": 1}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_there_with_its_options(page: Page) -> None:
    wrong = []
    for line in lines_of_shell(page):
        if not line.startswith("ebla "):
            continue
        try:
            words = shlex.split(line, comments=True)[1:]
        except ValueError:
            words = line.split()[1:]
        words = words[: next((at for at, word in enumerate(words) if word in ("|", ">")), len(words))]
        while words and words[0] in BEFORE_THE_COMMAND:
            words = words[1 + BEFORE_THE_COMMAND[words[0]] :]
        name = next((word for word in words if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)), None)
        if name is None:
            continue  # `ebla --help`, `ebla COMMAND --help`
        options = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
        if name not in COMMANDS or options - COMMANDS[name]:
            wrong.append(line)
    assert not wrong


def test_options_that_stand_alone_in_prose_are_options_of_some_command() -> None:
    known = set().union(*COMMANDS.values())
    wrong = {
        f"{page.name}: {span}"
        for page in PAGES
        for span in page.spans
        for option in re.findall(r"^(--[a-z][a-z-]*)", span)
        if option not in known
    }
    assert not wrong


def test_a_wrong_name_is_found() -> None:
    assert "uncommitted" not in ARGUMENTS
    assert {"read_uncommitted", "wait", "as_of", "memory_bytes_max", "max_age"} <= ARGUMENTS
    assert {"put", "scan", "time_of", "mirror"} <= FUNCTIONS
    assert "--where" in COMMANDS["scan"]
    assert "--where" not in COMMANDS["get"]


def test_every_option_of_the_data_source_that_a_page_names_is_one() -> None:
    known = set(datasource_options._READING | datasource_options._WRITING)
    known |= stream_options._READING | stream_options._WRITING | {"checkpointLocation"}  # the last is Spark's own
    texts = {page.name: "\n".join((*page.spans, *page.python, *page.shell)) for page in PAGES}
    named = {(page, name) for page, text in texts.items() for name in re.findall(r"option\(\"(\w+)\"", text)}
    named |= {
        (page, name)
        for page, text in texts.items()
        for inside in re.findall(r"OPTIONS \(([^)]*)\)", text)
        for name in re.findall(r"(\w+) '", inside)
    }
    assert len(named) >= 5
    assert not [(page, name) for page, name in sorted(named) if name not in known]


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert not [name for name in COMMANDS if not re.search(rf"`{name}\b|ebla {name}\b", text)]
