"""The way of a request through the source: which files it passes, and where it is called back up.

A step up is a call into a file that stands above the caller's: on a higher floor or in a higher room of the contracts
in pyproject.toml, or, within a room, in a file that imports the caller's. An overridden method is no step.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ebla"


@dataclass
class Way:
    """The files of a way in the order in which they are first come to, below ``ebla/``, and its steps up."""

    files: list[str] = field(default_factory=list)
    steps_up: list[str] = field(default_factory=list)


def way_of(request: Callable[[], object]) -> Way:
    """Carry out a request on this thread, and return its way."""
    way = Way()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = _file_of(frame)
        if event != "call" or file is None or _is_cleared_away(frame):
            return
        if file not in way.files:
            way.files.append(file)
        caller = frame.f_back
        while caller is not None and _file_of(caller) is None:
            caller = caller.f_back
        if caller is None or not _is_above(file, str(_file_of(caller))):
            return
        its_self = frame.f_locals.get("self")
        if its_self is not None and its_self is caller.f_locals.get("self"):
            return
        step = f"{_file_of(caller)} -> {file} {_plain(frame.f_code.co_qualname)}"
        if step not in way.steps_up:
            way.steps_up.append(step)

    sys.setprofile(note)
    try:
        request()
    finally:
        sys.setprofile(None)
    return way


def _is_cleared_away(frame: FrameType) -> bool:
    """Tell whether this is a generator that nobody began, and Python closes: a call to the profiler, and no step."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and frame.f_lasti == 0


def _plain(name: str) -> str:
    """Return the name of a function, or of the one that a function without a name was made in."""
    return name.replace(".<locals>", "").removesuffix(".<lambda>")


@cache
def _below(name: str) -> str | None:
    path = Path(name)
    inside = path.is_relative_to(PACKAGE) and path.name != "__init__.py"
    return str(path.relative_to(PACKAGE)) if inside else None


def _file_of(frame: FrameType) -> str | None:
    return _below(frame.f_code.co_filename)


@cache
def _is_above(file: str, other: str) -> bool:
    """Tell whether a file stands above another."""
    for layers in _contracts():
        ranks = _rank(file, layers), _rank(other, layers)
        if None not in ranks and ranks[0] != ranks[1]:
            return ranks[0] < ranks[1]  # type: ignore[operator]
    return file != other and other in _reached_from(file) and file not in _reached_from(other)


@cache
def _contracts() -> list[list[list[str]]]:
    """Return the layers of every contract, from the top, each a list of packages; first that of the floors."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layered = [contract["layers"] for contract in linter["contracts"] if contract["type"] == "layers"]
    return [[layer.split(" | ") for layer in layers] for layers in layered]


def _rank(file: str, layers: list[list[str]]) -> int | None:
    module = "ebla." + file.removesuffix(".py").replace("/", ".")
    found = [at for at, packages in enumerate(layers) if any(f"{module}.".startswith(f"{one}.") for one in packages)]
    return found[0] if found else None


@cache
def _reached_from(file: str) -> frozenset[str]:
    """Return the files that a file imports, directly and by way of others."""
    reached: set[str] = set()
    left = [file]
    while left:
        for one in _imports_of(left.pop()) - reached:
            reached.add(one)
            left.append(one)
    return frozenset(reached)


@cache
def _imports_of(file: str) -> frozenset[str]:
    found = set()
    for node in ast.parse((PACKAGE / file).read_text()).body:  # the top alone: not what is there for type checkers
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ebla."):
            inner = node.module.removeprefix("ebla.").replace(".", "/")
            found |= {f"{inner}.py", *(f"{inner}/{name.name}.py" for name in node.names)}
    return frozenset(one for one in found if (PACKAGE / one).exists())
