"""The command compact: files merged, by this process or on Spark."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import ebla
from ebla.cli.shared.command_failures import ExitCode, guarded
from ebla.cli.shared.context import JsonOption, StoreOption, examples, open_store, source_of, whole_tables
from ebla.cli.shared.lines import size_text, write_json, write_line
from ebla.cli.shared.spark_options import (
    MasterOption,
    ProgressOption,
    check_tables,
    needing_spark,
    plain_bar,
    progress_bar,
)

COMPACT_EXAMPLES = examples(
    "ebla compact users",
    "ebla compact",
    "ebla compact users --spark",
    "ebla compact users --spark --prefix ada --due --json",
)


@guarded
def compact(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Only this table.", show_default=False)] = None,
    on_spark: Annotated[
        bool, typer.Option("--spark", help="Let Spark do it, beside whoever has the store open.")
    ] = False,
    start: Annotated[
        str | None, typer.Option("--start", metavar="KEY", help="On Spark: first key.", show_default=False)
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--stop", metavar="KEY", help="On Spark: key to stop before.", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="KEY", help="On Spark: keys that begin so.", show_default=False)
    ] = None,
    due: Annotated[bool, typer.Option("--due", help="On Spark: only what the store would merge by itself.")] = False,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Merge the files of a table, or of all, and leave out what nobody can see any more.

    Never needed: a store that is open for writing does it by itself when it is due. After it, every tablet has one
    sorted run of files per group, and erased rows and old versions that no snapshot or history needs are gone from
    them. Files that were merged are removed later, see `ebla gc`.

    With --spark, many tasks merge, also while another process has the store open: reads and writes go on, and tablets
    that somebody changes meanwhile go first. With --start and --stop, or --prefix, the tablets that have such keys are
    merged, each as a whole. A KEY is the value of the first key column, or a JSON array of the first few. If a tablet
    was changed again and again, and was left as it is, the exit code is 4.
    """
    if on_spark:
        bounds = {"start": start, "stop": stop, "prefix": prefix}
        _on_spark(ctx, store, table, bounds, due=due, master=master, progress=progress, as_json=as_json)
        return
    if start is not None or stop is not None or prefix is not None or due:
        raise ebla.RequestError("--start, --stop, --prefix and --due go with --spark: add it, or leave them out")
    done = []
    with open_store(ctx, store, write=True) as db, plain_bar("compact", force=progress) as bar:
        for name in [table] if table is not None else whole_tables(db, as_json=as_json):
            before = _size(db, name)
            bar(f"compact {name}", 0, db.table(name).stats()["tablets"])
            db.table(name).compact(progress=partial(bar, f"compact {name}"))
            after = _size(db, name)
            done.append(
                {
                    "table": name,
                    "files_before": before[0],
                    "files_after": after[0],
                    "bytes_before": before[1],
                    "bytes_after": after[1],
                    "history_files_after": after[2],
                }
            )
            if not as_json:
                sizes = f"{size_text(before[1])} to {size_text(after[1])}"
                history = f", {after[2]} of them history" if after[2] else ""
                write_line(f"compacted {name}: {before[0]} to {after[0]} file(s){history}, {sizes}")
    if as_json:
        write_json(done)


def _size(db: ebla.Database, name: str) -> tuple[int, int, int]:
    """Return the number of files, their bytes, and how many of them hold history alone."""
    db.table(name).flush()
    stats = db.table(name).stats()
    history = sum(group["history_fragments"] for group in stats["groups"].values())
    return stats["fragments"], stats["fragment_bytes"], history


def _on_spark(
    ctx: typer.Context,
    store: Path | None,
    table: str | None,
    texts: dict[str, str | None],
    *,
    due: bool,
    master: str,
    progress: bool,
    as_json: bool,
) -> None:
    from ebla.cli.tables.schema_text import bound_from_text

    source = source_of(ctx, store)
    if table is None and any(text is not None for text in texts.values()):
        raise ebla.RequestError("keys belong to a table: name it, or leave out --start, --stop and --prefix")
    with needing_spark():
        from ebla import pipeline
    check_tables(source, [] if table is None else [table])
    with open_store(ctx, store) as db:
        names = [table] if table is not None else whole_tables(db, as_json=as_json)
        schema = db.table(names[0]).schema if table is not None else None
    bounds = {
        name: bound_from_text(text, schema) for name, text in texts.items() if text is not None and schema is not None
    }
    with progress_bar("compact", force=progress) as report:
        spark = pipeline.session(master, "ebla compact", log_level="OFF")
        done = [pipeline.compact(source, name, only_due=due, spark=spark, progress=report, **bounds) for name in names]
    if as_json:
        write_json([asdict(one) for one in done])
    else:
        for one in done:
            if not one.files_read and not one.given_up:
                write_line(f"nothing {'is due' if due else 'to compact'} in {one.table}")
                continue
            sizes = f"{size_text(one.bytes_read)} to {size_text(one.bytes_written)}"
            write_line(
                f"compacted {one.table}: {one.files_read} to {one.files_written} file(s) in {one.tablets} tablet(s), "
                f"{sizes}, in {one.seconds:.1f} s"
            )
            for left in one.given_up:
                write_line(f"left as it is: group {left.group} of tablet {left.tablet}: {left.reason}")
    if any(one.given_up for one in done):
        raise typer.Exit(ExitCode.UNAVAILABLE)
