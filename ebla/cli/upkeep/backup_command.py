"""The command backup: tables copied file by file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, examples, source_of
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

BACKUP_EXAMPLES = examples(
    "ebla backup backups users",
    "ebla backup backups users --since last",
)

DirectoryArgument = Annotated[
    str, typer.Argument(metavar="DIR", help="Directory in which backups lie.", show_default=False)
]


@guarded
def backup(
    ctx: typer.Context,
    path: DirectoryArgument,
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables to back up.", show_default="all"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="last|ID|TXN",
            help="Copy only what this backup does not have.",
            show_default="a full one",
        ),
    ] = None,
    no_checksum: Annotated[
        bool, typer.Option("--no-checksum", help="Do not count rows: restores compare files only.")
    ] = False,
    spark: SparkOption = None,
    master: MasterOption = LOCAL,
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Back up tables: all of them at one moment, into a new directory below DIR.

    Files are copied as they are, so versions, erasures and history come along. With --since, files that an earlier
    backup in DIR has are not copied again; to restore, its directory must still be there. The store may be in use. A
    directory is a backup when _ebla_backup.json is in it, which is written last and has the checksums of everything.
    Much data is copied by many tasks on Spark, if that is installed; the result is the same.
    """
    source = source_of(ctx, store)
    from ebla.direct.place import Place
    from ebla.pipeline.backups.backup import backup as back_up
    from ebla.pipeline.backups.backup import check_backup_path

    check_tables(source, tables or ())
    check_backup_path(path, Path(Place.of(source).root))
    with progress_bar("backup", force=progress) as report:
        start = spark_start(spark, master, "ebla backup")
        summary = back_up(
            source, tables or None, path, since=since, checksum=not no_checksum, spark=start, progress=report
        )
    if as_json:
        write_json(asdict(summary))
        return
    rows = "" if summary.rows is None else f", {summary.rows:,} row(s)"
    write_line(
        f"backed up {', '.join(summary.tables)}{rows} as {summary.id} ({summary.kind}) in {summary.seconds:.1f} s, "
        f"txn {summary.txn}; {summary.new_files:,} new file(s) of {size_text(summary.new_bytes)}, "
        f"{summary.files:,} of {size_text(summary.bytes)} in all"
    )
