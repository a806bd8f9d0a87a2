"""The command load: files into a table, in this process or on Spark."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

import ebla
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, TableArgument, examples, source_of
from ebla.cli.shared.lines import write_json, write_line
from ebla.cli.shared.spark_options import (
    LOCAL,
    MasterOption,
    ProgressOption,
    SparkOption,
    progress_bar,
    spark_start,
)

if TYPE_CHECKING:
    from ebla.pipeline.loading.load import LoadSummary


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
    spark: SparkOption = None,
    master: MasterOption = LOCAL,
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Load files into a table: all rows in one commit, or none.

    A table that is not there is made from the columns of the files, with the key columns named. Values are text until
    the type of their column is known: dates and times are ISO 8601, in UTC unless they have an offset. A column that
    the files do not have stays as it is, unless --mode says otherwise; an empty value sets null. Rows that do not fit
    fail the load and are shown, or go to --rejects as JSON lines. Large files are loaded by Spark, if it is installed.
    """
    source = source_of(ctx, store)
    from ebla.direct.place import Place
    from ebla.pipeline.inputs.input_files import FileFormat, InputFiles, check_files
    from ebla.pipeline.loading.load import check_key
    from ebla.pipeline.loading.load import load as load_rows

    chosen = spark_start(spark, master, f"ebla load {table}")
    check_files(paths)
    format_: FileFormat | None = None if file_format is None else file_format.value
    files = InputFiles(paths, format_, header, delimiter, multiline)
    files = replace(files, format=files.kind)
    known = Place.of(source).metadata(table)
    if known is None and not key:
        raise ebla.UnknownTable(f"there is no table {table!r}; to make it, name its key columns with --key")
    if known is not None:
        check_key(table, known.schema, key or [])
    with progress_bar(f"load {table}", force=progress) as report:
        summary = load_rows(
            source,
            table,
            files,
            key,
            mode=mode.value,
            job=job,
            rejects=rejects,
            on_duplicate=on_duplicate.value,
            partitions=partitions,
            spark=chosen,
            progress=report,
        )
    if as_json:
        write_json(asdict(summary))
    else:
        write_line(_told(summary))


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
