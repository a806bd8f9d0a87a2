"""The commands about tablets: tablets, split, join."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, TableArgument, examples, open_store
from ebla.cli.shared.lines import size_text, write_json, write_line

KEY_HELP = "The first key column's value, or a JSON array of the first few columns' values."

TABLETS_EXAMPLES = examples("ebla tablets users", "ebla tablets users --json")


@guarded
def tablets(ctx: typer.Context, table: TableArgument, json: JsonOption = False, store: StoreOption = None) -> None:
    """List the tablets of a table: which keys, how much, in which state.

    Each has the keys from `first` up to and not including `last`. Rows are counted once; a number is `about` if updates
    or erasures lie over them that were not merged yet. Of a file that two tablets share, each counts its part.
    """
    with open_store(ctx, store) as db:
        found = [_plain(tablet) for tablet in db.table(table).tablets()]
    if json:
        write_json(found)
        return
    from ebla.cli.shared.drawing import print_rows

    # How much of a tablet is loaded says something of the process that has it open, not of this one.
    shown = [
        {**tablet, "rows": rows_text(tablet["rows"], tablet["is_exact"]), "bytes": size_text(tablet["bytes"])}
        for tablet in found
    ]
    for tablet in shown:
        del tablet["life"], tablet["is_exact"]
    print_rows(shown, f"{len(found)} tablet(s)")


def rows_text(rows: int, is_exact: bool) -> str:
    """Return a number of rows as people read it, and whether it is an estimate."""
    return f"{rows:,}" if is_exact else f"about {rows:,}"


def _plain(tablet: dict[str, Any]) -> dict[str, Any]:
    bounds = {name: key_text(tablet[name]) for name in ("first", "last")}
    plain: dict[str, Any] = msgspec.to_builtins({**tablet, **bounds}, enc_hook=str, str_keys=True)
    return plain


def key_text(key: Any) -> Any:
    """Return a key, or the bound of one, as text and lists where it has bytes and tuples."""
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return [key_text(part) for part in key] if isinstance(key, tuple) else key


SPLIT_EXAMPLES = examples("ebla split users g", 'ebla split users \'["t", "2026-01-01"]\'')


@guarded
def split(
    ctx: typer.Context,
    table: TableArgument,
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help=f"The second half begins here. {KEY_HELP}", show_default=False),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Split a tablet in two, without copying a row.

    Without a KEY, the largest tablet is divided evenly. Tablets that grow are split by themselves.
    """
    from ebla.cli.tables.schema_text import bound_from_text

    with open_store(ctx, store, write=True) as db:
        found = db.table(table)
        at = None if key is None else bound_from_text(key, found.schema)
        first, second = found.split(at)
        write_line(f"split {table}: {first} and {second}")


JOIN_EXAMPLES = examples("ebla join users a g")


@guarded
def join(
    ctx: typer.Context,
    table: TableArgument,
    first: Annotated[
        str, typer.Argument(metavar="FIRST", help=f"A key of the first tablet. {KEY_HELP}", show_default=False)
    ],
    last: Annotated[
        str, typer.Argument(metavar="LAST", help="A key of the one that follows it, likewise.", show_default=False)
    ],
    store: StoreOption = None,
) -> None:
    """Make one tablet of two neighbours, without copying a row."""
    from ebla.cli.tables.schema_text import bound_from_text

    with open_store(ctx, store, write=True) as db:
        found = db.table(table)
        whole = found.join(bound_from_text(first, found.schema), bound_from_text(last, found.schema))
        write_line(f"joined {table}: {whole}")
