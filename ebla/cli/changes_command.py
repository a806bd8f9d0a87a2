"""The command changes: what changed between two moments, on Spark."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from pathlib import Path
from typing import Annotated

import typer

import ebla
from ebla.cli.context import ColumnsOption, StoreOption, TableArgument, column_names, examples, moment_of, open_store
from ebla.cli.failures import guarded
from ebla.cli.lines import write_line
from ebla.cli.spark_options import MasterOption, ProgressOption, check_tables, needing_spark, progress_bar, root_of

CHANGES_EXAMPLES = examples(
    "ebla changes users --since 2026-01-01T00:00:00Z --before",
    "ebla changes users --since snapshot --checkpoint seen-users",
)


@guarded
def changes(
    ctx: typer.Context,
    table: TableArgument,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME|TXN|NAME",
            help="Changes after this moment. With --checkpoint or --follow also `snapshot`, for all rows, or `now`.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME|TXN|NAME", help="Changes up to this.", show_default="now"),
    ] = None,
    before: Annotated[bool, typer.Option("--before", help="Also show each row as it was.")] = False,
    columns: ColumnsOption = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Go on where it ended last time.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until it is interrupted.")] = False,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    store: StoreOption = None,
) -> None:
    """Print the rows that changed between two moments, with Spark, as JSON lines in no order.

    _change is insert, update or erase. A row that came and went between the two is not shown. History reaches back as
    far as history_seconds, or a snapshot that is held, allows.

    With --checkpoint, each call prints what changed since the one before, and the history that the next one needs is
    held for a week; the first begins at --since, with all rows if that is `snapshot`. With --follow, changes are
    printed as they come. If it is killed, the next call may print some lines again.
    """
    if until is not None and (follow or checkpoint is not None):
        raise ebla.RequestError("--until ends what --follow and --checkpoint would go on with: give one of them")
    if since is None and checkpoint is None:
        raise ebla.RequestError("since when? Give --since a txn or a time, or go on from a --checkpoint")
    if since in ("snapshot", "now") and checkpoint is None and not follow:
        raise ebla.RequestError(f"--since {since} is where --checkpoint DIR or --follow begins: give one of them")
    root = root_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
        from ebla.pipeline.changes import json_lines
        from ebla.pipeline.printing import print_changes
        from ebla.pipeline.progress import watched
    check_tables(root, [table])
    named = column_names(columns)
    with contextlib.ExitStack() as stack:
        if follow or checkpoint is not None:
            report = stack.enter_context(progress_bar(f"changes of {table}", force=progress))
            directory = checkpoint or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ebla-changes-")))
            spark = pipeline.session(master, f"ebla changes {table}", log_level="OFF")
            print_changes(
                root,
                table,
                write_line,
                since=since,
                before=before,
                columns=named,
                checkpoint=directory,
                follow=follow,
                spark=spark,
                progress=report,
            )
            return
        assert since is not None
        with open_store(ctx, store) as db:
            ends = moment_of(db, since, "--since"), None if until is None else moment_of(db, until, "--until")
        report = stack.enter_context(progress_bar(f"changes of {table}", force=progress))
        spark = pipeline.session(master, f"ebla changes {table}", log_level="OFF")
        frame = pipeline.changes(root, table, *ends, before=before, columns=named, spark=spark)
        with watched(spark, f"ebla-changes-{uuid.uuid4()}", "comparing", report):
            for line in json_lines(frame):
                write_line(line)
