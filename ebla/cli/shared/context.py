"""What all commands share: the place of the store, opening it, and the common arguments.

The place is ``--store`` before or after the command, else the environment's EBLA_STORE, else ``./data``. Commands that
read open the store read-only, and so work while another process writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

import ebla
from ebla.cli.shared.lines import write_line

STORE_DEFAULT = Path("data")
STORE_HELP = "Directory of the store."

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="PATH", help=STORE_HELP + " Also before the command.", show_default=False),
]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="A,B", help="Only these columns, family:qualifier cells or families.", show_default=False
    ),
]


@dataclass(slots=True)
class Context:
    """The options given before the command."""

    store: Path = STORE_DEFAULT
    debug: bool = False


def whole_tables(db: ebla.Database, *, as_json: bool = False) -> list[str]:
    """Return the names of the tables that can be changed, and say which cannot; beside JSON, on standard error."""
    left_out = dict.fromkeys(db.stats()["damaged"], "it is damaged, see `ebla verify`")
    for name in db.tables():
        if name not in left_out and any(tablet["state"] == "unloaded" for tablet in db.table(name).tablets()):
            left_out[name] = f"it is offline, `ebla online {name}` brings it back"
    for name, reason in sorted(left_out.items()):
        told = f"left out {name}: {reason}"
        typer.echo(told, err=True) if as_json else write_line(told)
    return [name for name in db.tables() if name not in left_out]


def open_store(
    ctx: typer.Context,
    store: Path | None,
    *,
    write: bool = False,
    create: bool = False,
    settings: ebla.Settings | None = None,
) -> ebla.Database:
    """Open the store that the options name."""
    shared: Context = ctx.obj
    return ebla.open(str(store or shared.store), read_only=not write, create=create, settings=settings)


def moment_of(db: ebla.Database, text: str, option: str) -> int | datetime:
    """Return the txn or the time that an option means: the name of a snapshot, a txn, or a time, in UTC by default."""
    held = db.snapshots()
    if text in held:  # first, for a name may look like a day
        return held[text]
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ebla.RequestError(
            f"{option} {text!r} is neither a transaction number nor a time nor a snapshot: write 2026-01-31T12:00:00, "
            "or a name that `ebla snapshots` lists"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def column_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list; None stands for all."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ebla.RequestError("--columns is empty: name columns, as in --columns name,age, or leave it out")
    return names


def examples(*lines: str) -> str:
    """Return the end of a command's help: commands to copy, kept as they are."""
    return "\b\nExamples:\n  " + "\n".join(lines).replace("\n", "\n  ")
