"""The command mirror: a table kept as another one is, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, TableArgument, examples, place_of, source_of
from ebla.cli.shared.lines import write_json, write_line
from ebla.cli.shared.spark_options import (
    MasterOption,
    ProgressOption,
    check_tables,
    needing_spark,
    progress_bar,
)

MIRROR_EXAMPLES = examples(
    "ebla mirror users reflection --checkpoint reflected --max-rows 100000 --json",
)


@guarded
def mirror(
    ctx: typer.Context,
    table: TableArgument,
    checkpoint: Annotated[
        Path, typer.Option("--checkpoint", metavar="DIR", help="Remembers how far it has come.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[MIRROR]", help="The table that becomes like it.", show_default="TABLE")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="PATH", help="The store of the mirror.", show_default="the same")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until it is interrupted.")] = False,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", metavar="N", help="Rows of a batch at most.", show_default="all")
    ] = None,
    json: JsonOption = False,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    store: StoreOption = None,
) -> None:
    """Keep a table as another one is, in the same store or another, with Spark.

    The first call copies all rows, each later one with the same checkpoint what changed since; with --follow it goes
    on. It can be killed at any moment and called again: every batch is applied once. A mirror that is not there yet is
    made.
    """
    source = source_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
    check_tables(source, [table])
    with progress_bar(f"mirror of {table}", force=progress) as report:
        spark = pipeline.session(master, f"ebla mirror {table}", log_level="OFF")
        done = pipeline.mirror(
            source,
            table,
            to or source,
            name,
            checkpoint=checkpoint,
            follow=follow,
            max_rows=max_rows,
            spark=spark,
            progress=report,
        )
    if json:
        write_json({"table": table, "mirror": name or table, "batches": done.batches, "rows": done.rows})
    else:
        mirror = f"{name or table} in {to or place_of(ctx, store)}"
        write_line(f"{mirror} is as {table} was: {done.rows:,} row(s) in {done.batches:,} batch(es)")
