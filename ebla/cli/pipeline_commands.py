"""The commands that run on Spark: load, export, inspect, changes.

Spark is imported, and started, only when such a command has looked at everything that can be wrong without it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

import ebla
from ebla.cli.context import (
    ColumnsOption,
    Context,
    JsonOption,
    StoreOption,
    TableArgument,
    column_names,
    examples,
    open_store,
)
from ebla.cli.failures import ExitCode, guarded
from ebla.cli.row_commands import AsOfOption
from ebla.cli.schema_text import bound_from_text
from ebla.cli.sinks import write_json, write_line

if TYPE_CHECKING:
    from pathlib import Path

    from ebla.pipeline import LoadSummary
    from ebla.pipeline.progress import Report

NO_SPARK = "this command runs on Spark, which is not installed: pip install 'ebla[spark]'"


class InputFormat(StrEnum):
    """What the files of a load hold."""

    csv = "csv"
    json = "json"
    parquet = "parquet"
    orc = "orc"


class LoadMode(StrEnum):
    """What a load does to rows that are there."""

    upsert = "upsert"
    replace = "replace"  # type: ignore[assignment]
    overwrite = "overwrite"


class OnDuplicate(StrEnum):
    """What happens to several rows with one key."""

    last = "last"
    error = "error"


MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="The Spark to run on: local[*], spark://host:7077, yarn, ...")
]
ProgressOption = Annotated[
    bool, typer.Option("--progress", help="Show a progress bar even if standard error is no terminal.")
]

LOAD_EXAMPLES = examples(
    "ebla scan users --columns name,age --format csv > ages.csv",
    "ebla load ages ages.csv --key user --key day",
    "ebla load ages ages.csv --job ages-of-monday --rejects ages-rejected",
)


@guarded
def load(
    ctx: typer.Context,
    table: TableArgument,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Files, directories of files, or patterns.", show_default=False),
    ],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN", help="A key column; the table is made if missing.", show_default=False),
    ] = None,
    file_format: Annotated[
        InputFormat | None,
        typer.Option("--format", help="What the files hold, if their names do not tell.", show_default=False),
    ] = None,
    mode: Annotated[
        LoadMode,
        typer.Option("--mode", help="Set the columns given, replace whole rows, or overwrite the whole table."),
    ] = LoadMode.upsert,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="ID", help="Load once under this id, however often it is run.", show_default=False
        ),
    ] = None,
    rejects: Annotated[
        str | None,
        typer.Option(
            "--rejects", metavar="DIR", help="Write rows that do not fit here, and load the rest.", show_default=False
        ),
    ] = None,
    on_duplicate: Annotated[
        OnDuplicate, typer.Option("--on-duplicate", help="Of rows with one key, take the last, or fail.")
    ] = OnDuplicate.last,
    header: Annotated[bool, typer.Option("--header/--no-header", help="CSV: the first line names the columns.")] = True,
    delimiter: Annotated[
        str | None,
        typer.Option("--delimiter", metavar="CHAR", help="CSV: what is between values.", show_default="comma"),
    ] = None,
    multiline: Annotated[
        bool, typer.Option("--multiline", help="CSV, JSON: values or rows go over several lines.")
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, metavar="N", help="Into how many key ranges to divide.", show_default="auto"
        ),
    ] = None,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Load files into a table with Spark: all rows in one commit, or none.

    A table that is not there is made from the columns of the files, with the key columns named. Values are text until
    the type of their column is known: dates and times are ISO 8601, in UTC unless they have an offset. A column that
    the files do not have stays as it is, unless --mode says otherwise; an empty value sets null. Rows that do not fit
    fail the load and are shown, or go to --rejects as JSON lines.
    """
    root = store or _root(ctx)
    try:
        from ebla import pipeline
        from ebla.pipeline.files import check_files, format_of, read_files
        from ebla.pipeline.place import Place
    except ModuleNotFoundError as error:
        raise ebla.RequestError(NO_SPARK) from error
    check_files(paths)
    format_ = file_format.value if file_format is not None else format_of(paths)
    known = Place.of(root).metadata(table)
    if known is None and not key:
        raise ebla.UnknownTable(f"there is no table {table!r}; to make it, name its key columns with --key")
    with _progress_bar(f"load {table}", force=progress) as report:
        spark = pipeline.session(master, f"ebla load {table}", log_level="OFF")
        frame = read_files(
            spark,
            paths,
            format_,
            None if known is None else known.schema,
            header=header,
            delimiter=delimiter,
            multiline=multiline,
        )
        summary = pipeline.load(
            root,
            table,
            frame,
            key,
            mode=mode.value,
            job=job,
            rejects=rejects,
            on_duplicate=on_duplicate.value,
            partitions=partitions,
            progress=report,
        )
    if as_json:
        write_json(asdict(summary))
    else:
        write_line(_told(summary))


# --- export --------------------------------------------------------------------------------------

EXPORT_EXAMPLES = examples(
    "ebla export users users-exported",
    "ebla export users users-exported --overwrite",
    "ebla export users ada.csv --format csv --prefix ada --columns name,age",
)


class OutputFormat(StrEnum):
    """What the files of an export hold."""

    parquet = "parquet"
    csv = "csv"
    json = "json"


@guarded
def export(
    ctx: typer.Context,
    table: TableArgument,
    path: Annotated[str, typer.Argument(metavar="DIR", help="Directory to make.", show_default=False)],
    file_format: Annotated[OutputFormat, typer.Option("--format", help="What to write.")] = OutputFormat.parquet,
    columns: ColumnsOption = None,
    start: Annotated[str | None, typer.Option("--start", metavar="KEY", help="First key.", show_default=False)] = None,
    stop: Annotated[
        str | None, typer.Option("--stop", metavar="KEY", help="Key to stop before.", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="KEY", help="Only keys that begin so.", show_default=False)
    ] = None,
    as_of: AsOfOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Export a table, or a part of it, with Spark: one snapshot, as plain files in a new directory.

    The directory is there when it is complete: _ebla_export.json in it says which snapshot it holds and has the
    checksums of all files. In CSV, lists, structs and families of cells are JSON, and bytes base64; in JSON, bytes are
    base64. A KEY is the value of the first key column, or a JSON array of the first few.
    """
    root = store or _root(ctx)
    try:
        from ebla import pipeline
        from ebla.pipeline.datasource_options import moment
        from ebla.pipeline.export import check_target
    except ModuleNotFoundError as error:
        raise ebla.RequestError(NO_SPARK) from error
    at = None if as_of is None else moment(as_of)
    with open_store(ctx, store) as db:
        schema = db.table(table).schema
    bounds = [None if text is None else bound_from_text(text, schema) for text in (start, stop, prefix)]
    names = column_names(columns)
    check_target(path, root, overwrite=overwrite)
    with _progress_bar(f"export {table}", force=progress) as report:
        spark = pipeline.session(master, f"ebla export {table}", log_level="OFF")
        summary = pipeline.export(
            root,
            table,
            path,
            format=file_format.value,
            as_of=at,
            columns=names,
            start=bounds[0],
            stop=bounds[1],
            prefix=bounds[2],
            overwrite=overwrite,
            spark=spark,
            progress=report,
        )
    if as_json:
        write_json(asdict(summary))
    else:
        write_line(
            f"exported {summary.rows:,} row(s) of {summary.table} to {summary.path} in {summary.seconds:.1f} s, "
            f"txn {summary.txn}; {summary.files:,} file(s) of {summary.bytes / 1e6:,.1f} MB"
        )


# --- inspect -------------------------------------------------------------------------------------

INSPECT_EXAMPLES = examples("ebla inspect", "ebla inspect users --json")


@guarded
def inspect(
    ctx: typer.Context,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Only these tables.", show_default=False)
    ] = None,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Read every file of some tables, or of all, with Spark, and say what is not as it should be.

    Checksums, sort order, keys, and the ranges of keys and txns are held against what each file and METADATA say.
    `ebla verify` compares METADATA with itself and is much quicker. Nothing is changed; every finding names what would
    put it right. With findings, the exit code is 6.
    """
    root = store or _root(ctx)
    try:
        from ebla import pipeline
    except ModuleNotFoundError as error:
        raise ebla.RequestError(NO_SPARK) from error
    with _progress_bar("inspect", force=progress) as report:
        spark = pipeline.session(master, "ebla inspect", log_level="OFF")
        found = pipeline.verify(root, tables or None, spark=spark, progress=report)
    if as_json:
        write_json(msgspec.to_builtins(found))
    else:
        for finding in found.findings:
            write_line(f"{finding.table}: {finding.file}: {finding.kind}: {finding.problem}; {finding.repair}")
        write_line(
            f"{len(found.findings)} finding(s) in {found.files:,} file(s) of {found.bytes / 1e6:,.1f} MB, "
            f"{found.rows:,} record(s), in {found.seconds:.1f} s"
        )
    if found.findings:
        raise typer.Exit(ExitCode.STORE)


# --- changes -------------------------------------------------------------------------------------

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
    root = store or _root(ctx)
    try:
        from ebla import pipeline
        from ebla.pipeline.changes import json_lines
        from ebla.pipeline.datasource_options import moment
    except ModuleNotFoundError as error:
        raise ebla.RequestError(NO_SPARK) from error
    ends = moment(since), None if until is None else moment(until)
    with _progress_bar(f"changes of {table}", force=progress):
        spark = pipeline.session(master, f"ebla changes {table}", log_level="OFF")
        frame = pipeline.changes(root, table, *ends, before=before, columns=column_names(columns), spark=spark)
        for line in json_lines(frame):
            write_line(line)


# --- common --------------------------------------------------------------------------------------


def _root(ctx: typer.Context) -> Path:
    shared: Context = ctx.obj
    return shared.store


def _told(summary: LoadSummary) -> str:
    """Return what a load did, in a line or two."""
    if summary.repeated:
        return f"job {summary.job} was loaded before, txn {summary.txn}: nothing was done"
    parts = [
        f"loaded {summary.rows:,} row(s) into {'the new table ' if summary.created else ''}{summary.table}"
        f" in {summary.seconds:.1f} s, txn {summary.txn}",
        f"{summary.files:,} file(s) of {summary.bytes / 1e6:,.1f} MB",
    ]
    if summary.duplicates:
        parts.append(f"{summary.duplicates:,} row(s) gave way to later ones of the same key")
    if summary.rejected:
        parts.append(f"{summary.rejected:,} row(s) rejected, in {', '.join(summary.rejects_files)}")
    return "; ".join(parts)


@contextmanager
def _progress_bar(title: str, *, force: bool) -> Iterator[Report | None]:
    """Give what draws a bar of the tasks that are done, or None where nobody would see it."""
    if not (force or sys.stderr.isatty()):
        yield None
        return
    console = Console(stderr=True, force_terminal=True if force else None)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{title}: starting Spark", total=None)
        # Tasks are known stage by stage: the bar starts anew with every phase.
        yield lambda now: bar.update(
            task, description=f"{title}: {now.phase}", completed=now.tasks_done, total=now.tasks or None
        )
