"""The commands that keep a store in shape: compact, clone, snapshots, gc."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

import ebla
from ebla.cli.context import JsonOption, StoreOption, examples, open_store, whole_tables
from ebla.cli.failures import guarded
from ebla.cli.sinks import flatten, print_facts, print_rows, size_text, write_json, write_line

COMPACT_EXAMPLES = examples("ebla compact users", "ebla compact")


@guarded
def compact(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Only this table.", show_default=False)] = None,
    store: StoreOption = None,
) -> None:
    """Merge the files of a table, or of all, and leave out what nobody can see any more.

    Never needed: a store that is open for writing does it by itself when it is due. After it, every tablet has one
    sorted run of files per group, and erased rows and old versions that no snapshot or history needs are gone from
    them. Files that were merged are removed later, see `ebla gc`.
    """
    with open_store(ctx, store, write=True) as db:
        for name in [table] if table is not None else whole_tables(db):
            before = _size(db, name)
            db.table(name).compact()
            after = _size(db, name)
            write_line(
                f"compacted {name}: {before[0]} to {after[0]} file(s), {size_text(before[1])} to {size_text(after[1])}"
            )


def _size(db: ebla.Database, name: str) -> tuple[int, int]:
    db.table(name).flush()
    groups = db.table(name).stats()["groups"].values()
    return sum(group["fragments"] for group in groups), sum(group["fragment_bytes"] for group in groups)


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

    What a snapshot shows is kept until it is released, however old it grows: read it with `as_of` its txn.
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
                print_rows(held, "what they show is kept")
            else:
                write_line("no snapshots are held")


def _time(txn: int) -> str:
    return datetime.fromtimestamp((txn >> 10) / 1e6, UTC).isoformat(timespec="seconds")


GC_EXAMPLES = examples("ebla gc", "ebla gc --delete", "ebla gc --json")


@guarded
def gc(
    ctx: typer.Context,
    delete: Annotated[bool, typer.Option("--delete", help="Remove what may go. Without it, only look.")] = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Look for files that no table names any more, and remove them with --delete.

    A file goes when two rounds, `garbage_age_seconds` apart, have found it unused: the first one only takes note. A
    store that is open for writing does it by itself.
    """
    with open_store(ctx, store, write=True) as db:
        report = db.gc(dry_run=not delete)
    facts: dict[str, Any] = msgspec.to_builtins(report)
    if json:
        write_json(facts)
        return
    shown = {name: value for name, value in facts.items() if name not in ("doomed", "removed", "unknown_tables")}
    shown |= {"may go now": len(report.doomed), "removed": len(report.removed)}
    print_facts("files of the store", flatten(shown))
    if report.unknown_tables:
        write_line(f"METADATA of unknown tables, left alone: {', '.join(report.unknown_tables)}")
