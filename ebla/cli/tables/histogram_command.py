"""The commands histogram and presplit: how the keys of a table are spread, and cutting it by that, on Spark."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import ebla
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, Source, StoreOption, TableArgument, examples, open_store, source_of
from ebla.cli.shared.lines import size_text, write_json, write_line
from ebla.cli.shared.spark_options import (
    MasterOption,
    ProgressOption,
    check_tables,
    needing_spark,
    progress_bar,
)
from ebla.cli.tables.tablet_commands import key_text

if TYPE_CHECKING:
    from ebla.model.schema import TableSchema
    from ebla.pipeline import PresplitSummary, TableStats

TabletsOption = Annotated[
    int | None, typer.Option("--tablets", metavar="N", help="Into so many tablets in all.", show_default=False)
]
BytesOption = Annotated[
    str | None,
    typer.Option("--bytes", metavar="SIZE", help="Into tablets of at most this size: 64MiB, 1GiB.", show_default=False),
]

_SIZE = re.compile(r"(\d+) *(|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_UNITS = {"": 0, "kib": 10, "mib": 20, "gib": 30, "tib": 40}
_BAR_WIDTH = 20

HISTOGRAM_EXAMPLES = examples("ebla histogram users --buckets 4", "ebla histogram users --tablets 3 --json")


@guarded
def histogram(
    ctx: typer.Context,
    table: TableArgument,
    buckets: Annotated[int, typer.Option("--buckets", metavar="N", help="Into how many ranges to divide.")] = 20,
    recent: Annotated[
        float, typer.Option("--recent", metavar="SECONDS", help="What was written so lately is counted apart.")
    ] = 3_600.0,
    tablets: TabletsOption = None,
    size: BytesOption = None,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Show how the records of a table are spread over its keys, with Spark: sizes, what is hot, where to cut.

    The ranges have about as many bytes each. Records are counted as they lie in files: versions that are not merged yet
    count too. A range is hot if it got more than twice its share of what was written lately; reads are not on record.
    --tablets or --bytes choose the cuts that are suggested; `ebla presplit` makes them. `ebla stats` has the counters
    of the store itself.
    """
    source = source_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
    wanted = size_of(size)
    _check(source, table, tablets, wanted)
    with progress_bar(f"histogram of {table}", force=progress) as report:
        found = pipeline.stats(
            source,
            table,
            tablets=tablets,
            tablet_bytes=wanted,
            buckets=buckets,
            recent_seconds=recent,
            spark=_session(master, f"ebla histogram {table}"),
            progress=report,
        )
    if json:
        write_json(_plain(asdict(found)))
    else:
        _show(found)


PRESPLIT_EXAMPLES = examples(
    "ebla presplit users --tablets 3 --dry-run",
    "ebla scan users --format csv > more.csv",
    "ebla presplit users --bytes 64MiB --from more.csv",
)


@guarded
def presplit(
    ctx: typer.Context,
    table: TableArgument,
    tablets: TabletsOption = None,
    size: BytesOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say where it would be cut.")] = False,
    paths: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="FILE", help="A file that is to be loaded: its keys count.", show_default=False),
    ] = None,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Cut a table into --tablets in all, or into tablets of at most --bytes, where its records are, with Spark.

    A table that is empty is cut by the keys of the files to be loaded, --from (CSV, JSON, Parquet, ORC; may be given
    several times). No row is copied, and tablets are never joined here. Close the store elsewhere first.
    """
    source = source_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
        from ebla.pipeline.inputs.source_files import check_files, format_of, read_files
    wanted = size_of(size)
    if tablets is None and wanted is None:
        raise ebla.RequestError("say into how many tablets to cut, --tablets, or of which size each, --bytes")
    schema = _check(source, table, tablets, wanted)
    if paths:
        check_files(paths)
    frame = None
    # Whether somebody else has the store open is found out before Spark is started.
    opened = nullcontext(source) if dry_run else open_store(ctx, store, write=True)
    with opened as cut, progress_bar(f"presplit {table}", force=progress) as report:
        if paths:
            frame = read_files(_session(master, f"ebla presplit {table}"), paths, format_of(paths), schema)
        done = pipeline.presplit(
            cut,
            table,
            tablets=tablets,
            tablet_bytes=wanted,
            frame=frame,
            dry_run=dry_run,
            spark=_session(master, f"ebla presplit {table}"),
            progress=report,
        )
    if json:
        write_json(_plain(asdict(done)))
    else:
        write_line(_told(done, tablets))


def _check(source: Source, table: str, tablets: int | None, tablet_bytes: int | None) -> TableSchema:
    """Find out what is wrong with a request before Spark is started; return the schema of the table."""
    from ebla.direct.place import Place
    from ebla.pipeline.statistics.key_survey import check_target

    check_target(tablets, tablet_bytes)
    check_tables(source, [table])
    known = Place.of(source).metadata(table)
    if known is None:
        raise ebla.UnknownTable(f"there is no table {table!r}: make it first, or let `ebla load` make it")
    return known.schema


def _session(master: str, title: str) -> Any:
    from ebla import pipeline

    return pipeline.session(master, title, log_level="OFF")


def size_of(text: str | None) -> int | None:
    """Return a number of bytes from text such as 64MiB; None stays None."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ebla.RequestError(f"--bytes is a size such as 64MiB or 1000000, not {text!r}")
    return int(found[1]) << _UNITS[found[2].lower()]


def _show(found: TableStats) -> None:
    from ebla.cli.shared.drawing import print_rows

    most = max((bucket.recent for bucket in found.buckets), default=0)
    rows = [
        {
            "from": key_text(bucket.first),
            "to": key_text(bucket.last),
            "records": bucket.records,
            "bytes": bucket.bytes,
            "recent": bucket.recent,
            "written lately": "#" * round(_BAR_WIDTH * bucket.recent / max(1, most)),
        }
        for bucket in found.buckets
    ]
    print_rows(_plain(rows), f"{found.records:,} record(s), {size_text(found.bytes)} in {found.files} file(s)")
    write_line(
        f"{found.recent:,} record(s) written in the last {found.recent_seconds:g} s, {found.unflushed:,} unflushed"
    )
    for bucket in found.hot:
        share = bucket.recent / max(1, found.recent)
        first, last = (msgspec.json.encode(_plain(key_text(key))).decode() for key in (bucket.first, bucket.last))
        write_line(f"hot: from {first} to {last}, {share:.0%} of what was written lately")
    write_line(f"{len(found.tablets)} tablet(s), {len(found.splits)} more cut(s) suggested" + _keys(found.splits))


def _told(done: PresplitSummary, tablets: int | None) -> str:
    verb = "would cut" if done.dry_run else "cut"
    if not done.splits:
        return f"{done.table} stays as it is, in {done.tablets} tablet(s): " + _why_not(done, tablets)
    return f"{verb} {done.table} into {done.tablets} tablet(s), from {done.tablets_before}" + _keys(done.splits)


def _why_not(done: PresplitSummary, tablets: int | None) -> str:
    if tablets is not None and done.tablets >= tablets:
        return "it has as many as asked for" if done.tablets == tablets else "it has more; `ebla join` makes one of two"
    return "it has too little to cut; --from FILE counts the keys of rows that are to be loaded"


def _keys(splits: tuple[Any, ...]) -> str:
    return ": " + " ".join(msgspec.json.encode(_plain(key_text(key))).decode() for key in splits) if splits else ""


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_text, str_keys=True)


def _text(value: Any) -> str:
    return str(value)
