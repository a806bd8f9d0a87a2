"""The command changes: what changed between two moments, in this process or on Spark."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from pathlib import Path
from typing import Annotated

import typer

import ebla
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import (
    ColumnsOption,
    StoreOption,
    TableArgument,
    column_names,
    examples,
    moment_of,
    open_store,
    source_of,
)
from ebla.cli.shared.lines import write_line
from ebla.cli.shared.spark_options import (
    LOCAL,
    MasterOption,
    ProgressOption,
    SparkOption,
    check_tables,
    progress_bar,
    spark_start,
)

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
    spark: SparkOption = None,
    master: MasterOption = LOCAL,
    progress: ProgressOption = False,
    store: StoreOption = None,
) -> None:
    """Print the rows that changed between two moments, as JSON lines in no order.

    _change is insert, update or erase. A row that came and went between the two is not shown. History reaches back as
    far as history_seconds, or a snapshot that is held, allows. Where there is much to look through, Spark does it if it
    is installed.

    With --checkpoint, each call prints what changed since the one before, and the history that the next one needs is
    held for a week; the first begins at --since, with all rows if that is `snapshot`. With --follow, changes are
    printed as they come. If it is killed, the next call may print some lines again. What was begun on Spark goes on
    there, and what was begun without goes on without.
    """
    if until is not None and (follow or checkpoint is not None):
        raise ebla.RequestError("--until ends what --follow and --checkpoint would go on with: give one of them")
    if since is None and checkpoint is None:
        raise ebla.RequestError("since when? Give --since a txn or a time, or go on from a --checkpoint")
    if since in ("snapshot", "now") and checkpoint is None and not follow:
        raise ebla.RequestError(f"--since {since} is where --checkpoint DIR or --follow begins: give one of them")
    source = source_of(ctx, store)
    chosen = spark_start(spark, master, f"ebla changes {table}")
    check_tables(source, [table])
    from ebla.client.moments import txn_of
    from ebla.direct.place import Place
    from ebla.pipeline.change_feed.changes import changes as compare
    from ebla.pipeline.change_feed.changes import json_lines
    from ebla.pipeline.scanning.size import bytes_asked
    from ebla.pipeline.spark.engine import is_in_process, session_for
    from ebla.pipeline.spark.progress import JobProgress, watched

    named = column_names(columns)
    with contextlib.ExitStack() as stack:
        if follow or checkpoint is not None:
            report = stack.enter_context(progress_bar(f"changes of {table}", force=progress))
            from ebla.pipeline.streaming.printing import print_changes

            directory = checkpoint or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ebla-changes-")))
            print_changes(
                source,
                table,
                write_line,
                since=since,
                before=before,
                columns=named,
                checkpoint=directory,
                follow=follow,
                bytes_=bytes_asked(Place.of(source), table, columns=named),
                spark=chosen,
                progress=report,
            )
            return
        assert since is not None
        with open_store(ctx, store) as db:
            ends = moment_of(db, since, "--since"), None if until is None else moment_of(db, until, "--until")
        report = stack.enter_context(progress_bar(f"changes of {table}", force=progress))
        bytes_ = bytes_asked(Place.of(source), table, columns=named, since=txn_of(ends[0]))
        if is_in_process(chosen, bytes_):
            if report is not None:
                report(JobProgress("comparing"))
            for line in json_lines(compare(source, table, *ends, before=before, columns=named, spark=False)):
                write_line(line)
            return
        session = session_for(chosen, "changes --spark")
        frame = compare(source, table, *ends, before=before, columns=named, spark=session)
        with watched(session, f"ebla-changes-{uuid.uuid4()}", "comparing", report):
            for line in json_lines(frame):
                write_line(line)
