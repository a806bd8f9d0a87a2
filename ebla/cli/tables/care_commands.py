"""The commands about what is kept, and what is served: rename, clone, snapshots, offline, online."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

import ebla
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, TableArgument, examples, open_store
from ebla.cli.shared.lines import write_json, write_line
from ebla.clock import microseconds_of

RENAME_EXAMPLES = examples("ebla rename users_test trial", "ebla rename trial users_test")


@guarded
def rename(
    ctx: typer.Context,
    table: TableArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called.", show_default=False)],
    store: StoreOption = None,
) -> None:
    """Give a table another name. The old one is free at once."""
    with open_store(ctx, store, write=True) as db:
        db.rename_table(table, name)
        write_line(f"renamed {table} to {name}")


CLONE_EXAMPLES = examples("ebla clone users users_test", "ebla scan users_test --limit 3")


@guarded
def clone(
    ctx: typer.Context,
    origin: Annotated[str, typer.Argument(metavar="TABLE", help="The table to clone.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the clone.", show_default=False)],
    store: StoreOption = None,
) -> None:
    """Make a table of all that is in another, at once and without copying: the two share files and nothing else."""
    with open_store(ctx, store, write=True) as db:
        db.clone_table(origin, name)
        write_line(f"cloned {origin} as {name}")


SNAPSHOTS_EXAMPLES = examples(
    "ebla snapshots --take monday", "ebla snapshots", "ebla snapshots --json", "ebla snapshots --release monday"
)


@guarded
def snapshots(
    ctx: typer.Context,
    take: Annotated[
        str | None, typer.Option("--take", metavar="NAME", help="Hold the store as it is now.", show_default=False)
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", metavar="NAME", help="Let go of a snapshot.", show_default=False)
    ] = None,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """List the snapshots that are held by name, take one, or let go of one.

    What a snapshot shows is kept until it is released, however old it grows: read it with
    --as-of NAME.
    """
    if take is not None and release is not None:
        raise ebla.RequestError("--take and --release are two commands: give one of them")
    with open_store(ctx, store, write=take is not None or release is not None) as db:
        if take is not None:
            if take in db.snapshots():
                raise ebla.RequestError(f"there is a snapshot {take!r} already: choose another name, or release it")
            write_line(f"holding {take} at txn {db.snapshot(take).txn}")
        elif release is not None:
            if release not in db.snapshots():
                raise ebla.RequestError(f"there is no snapshot {release!r}: see `ebla snapshots`")
            db.snapshot(release).release()
            write_line(f"released {release}")
        else:
            held = [{"snapshot": name, "txn": txn, "at": _time(txn)} for name, txn in sorted(db.snapshots().items())]
            if json:
                write_json(held)
            elif held:
                from ebla.cli.shared.drawing import print_rows

                print_rows(held, "what they show is kept")
            else:
                write_line("no snapshots are held")


def _time(txn: int) -> str:
    return datetime.fromtimestamp(microseconds_of(txn) / 1e6, UTC).isoformat(timespec="seconds")


OFFLINE_EXAMPLES = examples("ebla offline users_test")


@guarded
def offline(ctx: typer.Context, table: TableArgument, store: StoreOption = None) -> None:
    """Take a table offline: all of it goes to its files, and it is neither read nor written until `ebla online`.

    It stays so whoever opens the store. To do so twice is fine.
    """
    with open_store(ctx, store, write=True) as db:
        db.unload_table(table)
        write_line(f"{table} is offline")


ONLINE_EXAMPLES = examples("ebla online users_test")


@guarded
def online(ctx: typer.Context, table: TableArgument, store: StoreOption = None) -> None:
    """Bring a table back that was taken offline, once its files have been checked."""
    with open_store(ctx, store, write=True) as db:
        db.load_table(table)
        write_line(f"{table} is online")
