"""The commands backup, restore and backups: tables copied file by file and brought back, on Spark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebla.cli.context import JsonOption, StoreOption, TableArgument, examples
from ebla.cli.failures import ExitCode, guarded
from ebla.cli.sinks import print_rows, size_text, write_json, write_line
from ebla.cli.spark_options import MasterOption, ProgressOption, needing_spark, progress_bar, root_of

if TYPE_CHECKING:
    from ebla.pipeline import Backups

BACKUP_EXAMPLES = examples(
    "ebla backup backups users",
    "ebla backup backups users --since last",
)
RESTORE_EXAMPLES = examples(
    "ebla restore backups users_of_monday --of users",
    "ebla restore backups users_of_monday --of users --in-place",
)
BACKUPS_EXAMPLES = examples("ebla backups backups", "ebla backups backups --check last", "ebla backups backups --clean")

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
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Back up tables with Spark: all of them at one moment, into a new directory below DIR.

    Files are copied as they are, so versions, erasures and history come along. With --since, files that an earlier
    backup in DIR has are not copied again; to restore, its directory must still be there. The store may be in use. A
    directory is a backup when _ebla_backup.json is in it, which is written last and has the checksums of everything.
    """
    root = root_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
        from ebla.pipeline.backup import check_backup_path
    check_backup_path(path, root)
    with progress_bar("backup", force=progress) as report:
        spark = pipeline.session(master, "ebla backup", log_level="OFF")
        summary = pipeline.backup(
            root, tables or None, path, since=since, checksum=not no_checksum, spark=spark, progress=report
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
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Restore a table from a backup with Spark, as a new table, or in the place of one.

    The store need not be the one that was backed up, and may be in use. All files are compared with the checksums of
    the backup, and the rows with those that were counted when it was made, before the table appears, in one step.
    """
    root = root_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
    where = Path(path)
    pipeline.list_backups(where).find(at, where)  # what is wrong with it is said before Spark starts
    with progress_bar(f"restore {table}", force=progress) as report:
        spark = pipeline.session(master, f"ebla restore {table}", log_level="OFF")
        summary = pipeline.restore(
            where, root, table, of=of, at=at, in_place=in_place, check=not no_check, spark=spark, progress=report
        )
    if as_json:
        write_json(asdict(summary))
        return
    rows = "" if summary.rows is None else f", {summary.rows:,} row(s)"
    write_line(
        f"restored {summary.table}{rows} from {summary.backup} in {summary.seconds:.1f} s, txn {summary.txn}; "
        f"{summary.files:,} file(s) of {size_text(summary.bytes)}"
    )


@guarded
def backups(
    ctx: typer.Context,
    path: DirectoryArgument,
    check: Annotated[
        str | None,
        typer.Option(
            "--check", metavar="last|ID|TXN", help="Read all of this one, with Spark, and compare.", show_default=False
        ),
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what failed backups have left.")] = False,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the backups in a directory, oldest first, and what is no backup: one being made, or that failed.

    Of every backup it is looked whether all files are there that a restore needs, by name and size. With --check, one
    is read in full, and its checksums and rows compared with what they were. The exit code is 6 if something is missing
    or damaged.
    """
    del ctx  # for `guarded`, which looks into it when something fails
    with needing_spark():
        from ebla import pipeline
    found = pipeline.list_backups(path)
    if check is not None:
        found.find(check, Path(path))  # what is wrong with it is said before Spark starts
        with progress_bar("check", force=progress) as report:
            spark = pipeline.session(master, "ebla backups", log_level="OFF")
            whole = pipeline.check_backup(path, check, spark=spark, progress=report)
        rows = "not counted" if whole.rows is None else f"{whole.rows:,}"
        if as_json:
            write_json(asdict(whole))
        else:
            write_line(
                f"{whole.id} is whole: {whole.files:,} file(s) of {size_text(whole.bytes)}, rows: {rows}; read in "
                f"{whole.seconds:.1f} s"
            )
        return
    removed = pipeline.remove_unfinished(path, found.unfinished) if clean else []
    unfinished = [name for name in found.unfinished if name not in removed]
    problems = {**found.damaged, **_problems(Path(path), found)}
    listed: list[dict[str, Any]] = [
        {
            "id": one.id,
            "kind": one.kind,
            "time": one.time,
            "txn": one.txn,
            "tables": [table.name for table in one.tables],
            "rows": [table.rows for table in one.tables],
            "files": len(one.files),
            "bytes": sum(file.bytes for file in one.files),
            "new_bytes": sum(file.bytes for file in one.own_files()),
            "builds_on": one.chain,
        }
        for one in found.complete
    ]
    if as_json:
        write_json({"backups": listed, "unfinished": unfinished, "removed": removed, "problems": problems})
    else:
        shown = [{**one, "bytes": size_text(one["bytes"]), "new_bytes": size_text(one["new_bytes"])} for one in listed]
        print_rows([_in_line(one) for one in shown], f"{len(listed)} backup(s)")
        for name in unfinished:
            write_line(f"{name} is not complete: it is being made, or has failed; --clean removes it then")
        for name in removed:
            write_line(f"{name} was not complete, and was removed")
        for name, problem in sorted(problems.items()):
            write_line(f"{name}: {problem}")
    if problems:
        raise typer.Exit(ExitCode.STORE)


def _in_line(listed: dict[str, Any]) -> dict[str, Any]:
    """Return what a table for people shows: lists as words."""
    return {
        name: ", ".join("?" if item is None else str(item) for item in value) if isinstance(value, list) else value
        for name, value in listed.items()
    }


def _problems(path: Path, found: Backups) -> dict[str, str]:
    from ebla.errors import EblaError
    from ebla.pipeline.backup_manifest import check_chain

    problems = {}
    for manifest in found.complete:
        try:
            check_chain(path, manifest)
        except EblaError as error:
            problems[manifest.id] = str(error)
    return problems
