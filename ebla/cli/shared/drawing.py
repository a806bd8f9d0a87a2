"""Tables for people, drawn by rich: in a terminal to its width, else as wide as needed, so that a pipe cuts nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ebla.cli.shared.lines import write_line

WIDTH_IN_A_PIPE = 10_000
_NULL = "[dim]null[/dim]"


class PlainConsole(Console):
    """A console that lets a closed pipe be seen, so that one place decides what it means."""

    def on_broken_pipe(self) -> None:
        """Pass the error on."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console on standard output."""
    sys.stdout.flush()
    return PlainConsole(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE, highlight=False)


def print_rows(rows: Sequence[Mapping[str, Any]], caption: str) -> None:
    """Draw rows of JSON values as a table, with a line about them below."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = RichTable()
    for name in names:
        numeric = all(isinstance(row.get(name, 0), (int, float, type(None))) for row in rows)
        table.add_column(escape(name), justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(row[name]) if name in row else "" for name in names))
    if names:
        console().print(table)
    write_line(caption)


def print_facts(title: str, facts: Iterable[tuple[str, Any]]) -> None:
    """Draw names and values as a table of two columns."""
    write_line(title)
    table = RichTable(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(escape(name), _shown(value))
    console().print(table)


def _shown(value: Any) -> str:
    if value is None:
        return _NULL
    if isinstance(value, (dict, list)):
        return escape(msgspec.json.encode(value, enc_hook=str).decode())
    return escape(str(value))
