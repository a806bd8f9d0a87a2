"""The command restore: a table from a backup."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, TableArgument, examples, source_of
from ebla.cli.shared.lines import size_text, write_json, write_line
from ebla.cli.shared.spark_options import (
    LOCAL,
    MasterOption,
    ProgressOption,
    SparkOption,
    check_tables,
    progress_bar,
    spark_start,
)
from ebla.cli.upkeep.backup_command import DirectoryArgument

RESTORE_EXAMPLES = examples(
    "ebla restore backups users_of_monday --of users",
    "ebla restore backups users_of_monday --of users --in-place",
)


@guarded
def restore(
    ctx: typer.Context,
    path: DirectoryArgument,
    table: TableArgument,
    of: Annotated[
        str | None,
        typer.Option("--of", metavar="NAME", help="Its name in the backup.", show_default="the same"),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="ID|TXN", help="Which backup; see ebla backups.", show_default="the newest"),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace the table that is there. What it holds is lost.")
    ] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Compare files with the manifest, but not rows.")
    ] = False,
    spark: SparkOption = None,
    master: MasterOption = LOCAL,
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Restore a table from a backup, as a new table, or in the place of one.

    The store need not be the one that was backed up, and may be in use. All files are compared with the checksums of
    the backup, and the rows with those that were counted when it was made, before the table appears, in one step.
    """
    source = source_of(ctx, store)
    from ebla.direct.place import Place
    from ebla.pipeline.backups.manifest import list_backups
    from ebla.pipeline.backups.restore import former_table
    from ebla.pipeline.backups.restore import restore as bring_back

    where = Path(path)
    check_tables(source)
    # What is wrong is said before Spark starts.
    former_table(Place.of(source), table, in_place)
    list_backups(where).find(at, where).table(of or table)
    with progress_bar(f"restore {table}", force=progress) as report:
        start = spark_start(spark, master, f"ebla restore {table}")
        summary = bring_back(
            where, source, table, of=of, at=at, in_place=in_place, check=not no_check, spark=start, progress=report
        )
    if as_json:
        write_json(asdict(summary))
        return
    rows = "" if summary.rows is None else f", {summary.rows:,} row(s)"
    write_line(
        f"restored {summary.table}{rows} from {summary.backup} in {summary.seconds:.1f} s, txn {summary.txn}; "
        f"{summary.files:,} file(s) of {size_text(summary.bytes)}"
    )
