"""The commands about rows: put, get, scan, erase."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import ebla
from ebla.cli.shared.command_failures import ExitCode, complain, guarded
from ebla.cli.shared.context import (
    ColumnsOption,
    JsonOption,
    StoreOption,
    TableArgument,
    column_names,
    examples,
    moment_of,
    open_store,
)
from ebla.cli.shared.formats import FileFormat, RowFormat
from ebla.cli.shared.lines import write_line

if TYPE_CHECKING:
    from ebla.cli.shared.sources import Portion, Source
    from ebla.model.schema import TableSchema

TABLE_ROWS_MAX = 100
PORTION_ROWS_DEFAULT = 8_192
ROWS_LEFT_OUT = "more rows are not shown: give --limit, or --format jsonl or csv for all"

# --- put -----------------------------------------------------------------------------------------

PUT_EXAMPLES = examples(
    """ebla put users '{"user": "ada", "day": "2026-01-01", "name": "Ada", "age": 36, "click:home": "1"}'""",
    """ebla put users '{"user": "bob", "day": "2026-01-01", "name": "Bob"}' \\
    '{"user": "zoe", "day": "2026-01-02"}'"""
    " --if-absent",
    "ebla scan users --format jsonl > rows.jsonl",
    "ebla put people --file rows.jsonl",
    "ebla scan users --format csv | ebla put people --file - --format csv",
)


@guarded
def put(
    ctx: typer.Context,
    table: TableArgument,
    rows: Annotated[
        list[str] | None, typer.Argument(metavar="JSON", help="Rows as JSON objects.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Rows from a .jsonl, .csv or .parquet file; - is standard input (JSON lines).",
            show_default=False,
        ),
    ] = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="What the file holds, if its name does not tell.", show_default=False),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace whole rows: columns not given are erased.")
    ] = False,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only new rows: one that exists is a conflict.")
    ] = False,
    batch_rows: Annotated[
        int, typer.Option("--batch-rows", min=1, max=1_000_000, metavar="N", help="Rows in one commit, from a file.")
    ] = PORTION_ROWS_DEFAULT,
    progress: Annotated[
        bool, typer.Option("--progress", help="Show a progress bar even if standard error is no terminal.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Put rows into a table: new ones, or changes to some columns of existing ones.

    A column that a JSON row does not name stays as it is; null sets null. Dates and times are ISO 8601 text,
    decimals text, bytes text or base64:... A cell is "family:qualifier": "value". When the command returns, the
    rows are on disk. A file is put in batches, each in full or not at all; if one fails, those before it stay.
    """
    from ebla.cli.shared.sources import open_rows, rows_from_arguments

    if bool(rows) == (file is not None):
        raise ebla.RequestError("give rows as JSON arguments or --file FILE (- for standard input), one of the two")
    with open_store(ctx, store, write=True) as db:
        target = db.table(table)
        if file is None:
            portion = rows_from_arguments(rows or [], target.schema)
            txn = target.put(portion.rows, replace=replace, if_absent=if_absent)
            write_line(f"put {portion.count} row(s), txn {txn}")
            return
        stored, last = 0, ""
        try:
            with open_rows(file, file_format, target.schema, batch_rows) as source:
                for portion in _with_progress(source, file, shown=progress or sys.stderr.isatty(), force=progress):
                    last = f", txn {_put_portion(target, portion, replace=replace, if_absent=if_absent)}"
                    stored += portion.count
        except (ebla.EblaError, KeyboardInterrupt) as error:
            if stored:
                error.add_note(f"the {stored:,} row(s) before are stored")
            raise
        write_line(f"put {stored:,} row(s){last}")


def _put_portion(target: ebla.Table, portion: Portion, *, replace: bool, if_absent: bool) -> int:
    try:
        return target.put(portion.rows, replace=replace, if_absent=if_absent)
    except (ebla.RequestError, ebla.Conflict) as error:
        raise type(error)(f"{portion.where}: {error}") from error


def _with_progress(source: Source, name: str, *, shown: bool, force: bool) -> Iterator[Portion]:
    if not shown:
        yield from source.portions
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, force_terminal=True if force else None)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[stored]:,} rows"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=source.total, stored=0)
        stored = 0
        for portion in source.portions:
            yield portion
            stored += portion.count  # resumed: the portion is durable now
            bar.update(task, completed=portion.done, stored=stored)


# --- get -----------------------------------------------------------------------------------------

GET_EXAMPLES = examples("ebla get users ada 2026-01-01", "ebla get users ada 2026-01-01 --columns name,click --json")

KeyArguments = Annotated[
    list[str] | None, typer.Argument(metavar="KEY", help="One value for each key column.", show_default=False)
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME|TXN|NAME",
        help="Read as of a transaction number, a snapshot's name, or a time: 2026-01-31T12:00:00, in UTC unless it has "
        "an offset.",
        show_default=False,
    ),
]


@guarded
def get(
    ctx: typer.Context,
    table: TableArgument,
    key: KeyArguments = None,
    columns: ColumnsOption = None,
    as_of: AsOfOption = None,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Print one row; leave with exit code 1 if there is none.

    A key value that begins with - goes after --, as in `ebla get points -- -5`.
    """
    from ebla.cli.shared.drawing import print_facts
    from ebla.cli.tables.schema_text import key_from_components

    with open_store(ctx, store) as db:
        target = db.table(table)
        row = target.get(
            key_from_components(key or [], target.schema), columns=column_names(columns), as_of=_as_of(db, as_of)
        )
        schema = target.schema
    if row is None:
        complain(f"no row {' '.join(key or [])} in {table}; `ebla scan {table}` shows what there is")
        raise typer.Exit(ExitCode.NOT_FOUND)
    shown = _json_row(row, schema)
    if json:
        write_line(msgspec.json.encode(shown).decode())
    else:
        print_facts(f"{table}, txn {row.txn}", shown.items())


def _as_of(db: ebla.Database, text: str | None) -> int | datetime | None:
    return None if text is None else moment_of(db, text, "--as-of")


def _json_row(row: dict[str, Any], schema: TableSchema) -> dict[str, Any]:
    import pyarrow as pa

    from ebla.cli.shared.sources import column_types
    from ebla.model.text_values import to_json

    types = column_types(row, schema)
    return {
        # A cell may have an empty qualifier; its name alone would mean the whole family.
        name: to_json(pa.array([value], pa.binary() if isinstance(value, bytes) else types[name]))[0]
        for name, value in row.items()
    }


# --- scan ----------------------------------------------------------------------------------------

SCAN_EXAMPLES = examples(
    "ebla scan users",
    "ebla scan users --start a --stop m --columns name,age --where 'age > 30 and name != \"Bob\"'",
    "ebla scan users --prefix ada --format jsonl",
    "ebla scan users --reverse --limit 1 --format csv",
    "ebla scan users --count --where \"name like 'A%' or age between 20 and 29 or name is null\"",
)


@guarded
def scan(
    ctx: typer.Context,
    table: TableArgument,
    start: Annotated[str | None, typer.Option("--start", metavar="KEY", help="First key.", show_default=False)] = None,
    stop: Annotated[
        str | None, typer.Option("--stop", metavar="KEY", help="Key to stop before.", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            metavar="KEY",
            help="Only keys whose first columns are these; a key of one text or binary column may be cut anywhere.",
            show_default=False,
        ),
    ] = None,
    columns: ColumnsOption = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="FILTER",
            help="Only rows for which this is true: column = value, !=, <, <=, >, >=, in (a, b), between a and b, like "
            "'A%', is null, is not null; joined by `and`, `or`, `not` and brackets.",
            show_default=False,
        ),
    ] = None,
    as_of: AsOfOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, metavar="N", help="At most so many rows.", show_default=False)
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Largest key first.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only how many rows there are.")] = False,
    row_format: Annotated[RowFormat, typer.Option("--format", help="How to print the rows.")] = RowFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, as --format jsonl does.")] = False,
    store: StoreOption = None,
) -> None:
    """Print the rows of a table, or of a part of it, in the order of the key.

    A KEY is the value of the first key column, or a JSON array of the first few, such as '["ada", "2026-01-01"]'.
    As a table at most 100 rows are shown unless there is a --limit. What jsonl and csv print, `ebla put` reads.
    """
    from ebla.cli.shared.drawing import print_rows
    from ebla.cli.shared.sinks import json_rows, write_csv, write_json_lines
    from ebla.cli.tables.schema_text import bound_from_text

    if as_json:
        row_format = RowFormat.jsonl
    with open_store(ctx, store) as db:
        target = db.table(table)
        schema = target.schema
        cut = row_format is RowFormat.table and limit is None and not count
        found = target.scan(
            None if start is None else bound_from_text(start, schema),
            None if stop is None else bound_from_text(stop, schema),
            prefix=None if prefix is None else bound_from_text(prefix, schema),
            columns=() if count and columns is None else column_names(columns),
            where=where,
            as_of=_as_of(db, as_of),
            limit=TABLE_ROWS_MAX + 1 if cut else limit,
            reverse=reverse,
        )
        if count:
            write_line(str(found.count()))
        elif row_format is RowFormat.jsonl:
            write_json_lines(found.to_batches())
        elif row_format is RowFormat.csv:
            write_csv(found.to_batches(), found.schema)
        else:
            rows = [row for batch in found.to_batches() for row in json_rows(batch)]
            shown = list(islice(rows, TABLE_ROWS_MAX)) if cut else rows
            print_rows(shown, f"{len(shown)} row(s), txn {found.txn}")
            if len(shown) < len(rows):
                sys.stderr.write(ROWS_LEFT_OUT + "\n")


# --- erase ---------------------------------------------------------------------------------------

ERASE_EXAMPLES = examples(
    "ebla erase users bob 2026-01-01",
    "ebla erase users ada 2026-01-01 --columns click:home",
    "ebla erase people --prefix zoe",
    "ebla erase people --range a c",
)


@guarded
def erase(
    ctx: typer.Context,
    table: TableArgument,
    key: KeyArguments = None,
    columns: ColumnsOption = None,
    key_range: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--range",
            metavar="START STOP",
            help="Erase all rows from START up to but not including STOP; '' leaves an end open.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="KEY", help="Erase all rows that scan --prefix shows.", show_default=False),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Erase a row, some columns of it, or a range of rows.

    To erase what is not there is fine. --as-of still shows erased rows while history is kept.
    """
    from ebla.cli.tables.schema_text import bound_from_text, key_from_components

    if bool(key) + (key_range is not None) + (prefix is not None) != 1:
        raise ebla.RequestError("give a KEY, --range START STOP or --prefix KEY, one of the three")
    if not key and columns is not None:
        raise ebla.RequestError("--range and --prefix erase whole rows: leave out --columns")
    with open_store(ctx, store, write=True) as db:
        target = db.table(table)
        if prefix is not None:
            txn = target.erase_range(prefix=bound_from_text(prefix, target.schema))
        elif key_range is not None:
            start, stop = (bound_from_text(text, target.schema) if text else None for text in key_range)
            txn = target.erase_range(start, stop)
        else:
            txn = target.erase(key_from_components(key or [], target.schema), columns=column_names(columns))
        write_line(f"erased, txn {txn}")
