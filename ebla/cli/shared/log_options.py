"""What a command lets people hear of the work inside: the records of ``logging`` under the name ``ebla``.

    (nothing)            warnings and errors        --verbose             what was done, with sizes and times
    --log-level LEVEL    debug, info, warning or error

They go to standard error, a line each. A command line in the process of others takes its handler along when it leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

import ebla

VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Tell what is done, with sizes and times: --log-level info.")
]


class LogLevel(StrEnum):
    """From which weight on records are shown."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level", help="Show the log of the work from this level on, on standard error.", show_default=False
    ),
]

_ebla = logging.getLogger("ebla")


def level_of(level: LogLevel | None, verbose: bool) -> int:
    """Return the level that the options ask for."""
    if level is not None and verbose:
        raise ebla.RequestError("--verbose is short for --log-level info: give one of them")
    if verbose:
        return logging.INFO
    return logging.WARNING if level is None else logging.getLevelNamesMapping()[level.upper()]


def show(level: int) -> None:
    """Show records from a level on."""
    handler = logging.StreamHandler()  # whatever standard error is now
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(level)
    _ebla.addHandler(handler)
    _ebla.setLevel(level)


@contextmanager
def shown_only_inside() -> Iterator[None]:
    """Take away, in the end, the handlers that were added inside, and set the level as it was."""
    before, level = list(_ebla.handlers), _ebla.level
    try:
        yield
    finally:
        _ebla.handlers[:] = before
        _ebla.setLevel(level)
