"""What a command lets people hear of the work inside: the records of ``logging`` under the name ``ebla``.

    (nothing)            warnings and errors        --verbose             what was done, with sizes and times
    --log-level LEVEL    debug, info, warning or error

They go to standard error, a line each: text, or with --log-format json an object, whose fields are `at`, `level`,
`logger`, `message`, `pid`, `thread`, and where they apply `request`, which client and server have in common, and
`exception`.

A command line in the process of others takes its handler along when it leaves.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
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


class LogFormat(StrEnum):
    """How records are shown."""

    text = "text"
    json = "json"


LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="Show the log as text, or as a line of JSON for each event.")
]

_ebla = logging.getLogger("ebla")


class _Text(logging.Formatter):
    """A line of text, with the id of the request that it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        request = _request()
        first, newline, rest = line.partition("\n")
        return f"{first} [request {request}]{newline}{rest}" if request else line


class _Json(logging.Formatter):
    """A line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told: dict[str, object] = {
            "at": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            "thread": record.threadName,
        }
        request = _request()
        if request:
            told["request"] = request
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def _request() -> str:
    """Return the id of the request that this thread is about; nothing where nobody has connected to anybody."""
    ids = sys.modules.get("ebla.rpc.request_ids")
    return "" if ids is None else str(ids.current_request.get())


def level_of(level: LogLevel | None, verbose: bool) -> int:
    """Return the level that the options ask for."""
    if level is not None and verbose:
        raise ebla.RequestError("--verbose is short for --log-level info: give one of them")
    if verbose:
        return logging.INFO
    return logging.WARNING if level is None else logging.getLevelNamesMapping()[level.upper()]


def show(level: int, form: LogFormat = LogFormat.text) -> None:
    """Show records from a level on."""
    handler = logging.StreamHandler()  # whatever standard error is now
    handler.setFormatter(_Json() if form is LogFormat.json else _Text())
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
