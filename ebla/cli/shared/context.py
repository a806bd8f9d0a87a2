"""What all commands share: the place of the store, opening it, and the common arguments.

The place is ``--store`` before or after the command, else the environment's EBLA_STORE, else ``./data``. Commands that
read open the store read-only, and so work while another process writes. A place may be a cluster: the directory that
`ebla up` made, or the addresses of masters, by commas; then EBLA_TOKEN is shown, and EBLA_TLS_CA trusted.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

import ebla
from ebla.cli.shared.lines import write_line
from ebla.service.cluster_place import CLUSTER_FILE, is_cluster_directory

STORE_DEFAULT = Path("data")
STORE_HELP = "Directory of the store, or of a cluster; or host:port of its master."
_ADDRESSES = re.compile(r"[^/,\s]+:\d+(,[^/,\s]+:\d+)*")

# What jobs work on: the directory of a store that anybody may have open, or the connection to a cluster.
Source: TypeAlias = "Path | ebla.Database"

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
    log_format: str = "text"


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
    """Open the store that the options name, or connect to the cluster."""
    place = place_of(ctx, store)
    if is_cluster(place):
        return connected(place)
    return ebla.open(str(place), read_only=not write, create=create, settings=settings)


def place_of(ctx: typer.Context, store: Path | None) -> Path:
    """Return the place that the options name."""
    shared: Context = ctx.obj
    return store or shared.store


def is_cluster(place: Path) -> bool:
    """Tell whether a place is a cluster, up or down: its directory or file, or addresses that are no path."""
    if place.name == CLUSTER_FILE or (place / CLUSTER_FILE).is_file() or is_cluster_directory(place):
        return True
    return _ADDRESSES.fullmatch(str(place)) is not None and not place.exists()


def source_of(ctx: typer.Context, store: Path | None) -> Source:
    """Return what a job works on. The connection to a cluster is closed when the command ends."""
    place = place_of(ctx, store)
    if not is_cluster(place):
        return place
    database = connected(place)
    ctx.call_on_close(database.close)
    return database


def directory_of(ctx: typer.Context, store: Path | None, done: str) -> Path:
    """Return the directory of a store, for what is done to its files while nobody has it open."""
    place = place_of(ctx, store)
    if is_cluster(place):
        raise ebla.RequestError(f"{place} is a cluster: {done}")
    return place


def connected(place: Path) -> ebla.Database:
    """Connect to the cluster of a place."""
    if place.exists():
        return ebla.connect(place)
    token, authority = os.environ.get("EBLA_TOKEN") or None, os.environ.get("EBLA_TLS_CA") or None
    return ebla.connect(str(place).split(","), token=token, tls_ca=authority)


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
