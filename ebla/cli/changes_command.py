"""The command changes: what changed between two moments, on Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from ebla.cli.context import ColumnsOption, StoreOption, TableArgument, column_names, examples
from ebla.cli.failures import guarded
from ebla.cli.sinks import write_line
from ebla.cli.spark_options import MasterOption, ProgressOption, needing_spark, progress_bar, root_of

CHANGES_EXAMPLES = examples(
    "ebla changes users --since 2026-01-01T00:00:00Z --before",
)


@guarded
def changes(
    ctx: typer.Context,
    table: TableArgument,
    since: Annotated[str, typer.Option("--since", metavar="TXN|TIME", help="Changes after this.", show_default=False)],
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TXN|TIME", help="Changes up to this.", show_default="now"),
    ] = None,
    before: Annotated[bool, typer.Option("--before", help="Also show each row as it was.")] = False,
    columns: ColumnsOption = None,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    store: StoreOption = None,
) -> None:
    """Print the rows that changed between two moments, with Spark, as JSON lines in no order.

    _change is insert, update or erase. A row that came and went between the two is not shown. History reaches back as
    far as history_seconds, or a snapshot that is held, allows.
    """
    root = root_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
        from ebla.pipeline.changes import json_lines
        from ebla.pipeline.datasource_options import moment
    ends = moment(since), None if until is None else moment(until)
    with progress_bar(f"changes of {table}", force=progress):
        spark = pipeline.session(master, f"ebla changes {table}", log_level="OFF")
        frame = pipeline.changes(root, table, *ends, before=before, columns=column_names(columns), spark=spark)
        for line in json_lines(frame):
            write_line(line)
