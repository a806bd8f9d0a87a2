"""The command export: a snapshot of a table as plain files, in this process or on Spark."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.rows.row_commands import AsOfOption
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import (
    ColumnsOption,
    JsonOption,
    StoreOption,
    TableArgument,
    column_names,
    examples,
    moment_of,
    open_store,
    source_of,
)
from ebla.cli.shared.lines import write_json, write_line
from ebla.cli.shared.spark_options import (
    LOCAL,
    MasterOption,
    ProgressOption,
    SparkOption,
    check_tables,
    progress_bar,
    spark_start,
)

EXPORT_EXAMPLES = examples(
    "ebla export users users-exported",
    "ebla export users users-exported --overwrite",
    "ebla export users ada.csv --format csv --prefix ada --columns name,age --where 'age > 30'",
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
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="FILTER", help="Only rows for which it holds, as for `ebla scan`.", show_default=False
        ),
    ] = None,
    as_of: AsOfOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    spark: SparkOption = None,
    master: MasterOption = LOCAL,
    progress: ProgressOption = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Export a table, or a part of it: one snapshot, as plain files in a new directory.

    The directory is there when it is complete: _ebla_export.json in it says which snapshot it holds and has the
    checksums of all files. In CSV, lists, structs and families of cells are JSON, and bytes base64; in JSON, bytes are
    base64. A KEY is the value of the first key column, or a JSON array of the first few. Much data is written by Spark,
    if it is installed.
    """
    from ebla.cli.tables.schema_text import bound_from_text
    from ebla.direct.place import Place
    from ebla.model.where import to_expression
    from ebla.pipeline.scanning.export import check_target
    from ebla.pipeline.scanning.export import export as write_files

    source = source_of(ctx, store)
    chosen = spark_start(spark, master, f"ebla export {table}")
    check_tables(source, [table])
    with open_store(ctx, store) as db:
        schema = db.table(table).schema
        at = None if as_of is None else moment_of(db, as_of, "--as-of")
    filter_ = None if where is None else to_expression(where, schema)
    bounds = [None if text is None else bound_from_text(text, schema) for text in (start, stop, prefix)]
    names = column_names(columns)
    check_target(path, Path(Place.of(source).root), overwrite=overwrite)
    with progress_bar(f"export {table}", force=progress) as report:
        summary = write_files(
            source,
            table,
            path,
            format=file_format.value,
            as_of=at,
            where=filter_,
            columns=names,
            start=bounds[0],
            stop=bounds[1],
            prefix=bounds[2],
            overwrite=overwrite,
            spark=chosen,
            progress=report,
        )
    if as_json:
        write_json(asdict(summary))
    else:
        write_line(
            f"exported {summary.rows:,} row(s) of {summary.table} to {summary.path} in {summary.seconds:.1f} s, "
            f"txn {summary.txn}; {summary.files:,} file(s) of {summary.bytes / 1e6:,.1f} MB"
        )
