"""The command gc: files that no table names any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, directory_of, examples, open_store
from ebla.cli.shared.lines import flatten, write_json, write_line
from ebla.cli.shared.spark_options import (
    MasterOption,
    ProgressOption,
    check_tables,
    needing_spark,
    plain_bar,
    progress_bar,
)
from ebla.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from ebla.service.reports import GarbageReport

_LISTS = ("doomed", "removed", "unknown_tables", "lost_tables")
GC_EXAMPLES = examples("ebla gc", "ebla gc --delete", "ebla gc --json", "ebla gc --spark --delete")


@guarded
def gc(
    ctx: typer.Context,
    delete: Annotated[bool, typer.Option("--delete", help="Remove what may go. Without it, only look.")] = False,
    on_spark: Annotated[
        bool, typer.Option("--spark", help="Let Spark look, beside whoever has the store open.")
    ] = False,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Look for files that no table names any more, and remove them with --delete.

    A file goes when two rounds, `garbage_age_seconds` apart, have found it unused: the first one only takes note. A
    store that is open for writing does it by itself. If a table or a directory cannot be read, nothing is removed.

    With --spark, many tasks list files and read METADATA, also while another process has the store open; that process
    looks again at every file before it removes it.
    """
    if on_spark:
        report = _on_spark(
            directory_of(ctx, store, "its master collects garbage; leave out --spark"),
            delete=delete,
            master=master,
            progress=progress,
        )
    else:
        with open_store(ctx, store, write=True) as db, plain_bar("gc: looking", force=progress):
            report = db.gc(dry_run=not delete)
    facts: dict[str, Any] = msgspec.to_builtins(report)
    if json:
        write_json(facts)
        return
    shown = {name: value for name, value in facts.items() if name not in _LISTS}
    shown |= {"may go now": len(report.doomed), "removed": len(report.removed)}
    from ebla.cli.shared.drawing import print_facts

    print_facts("files of the store", flatten(shown))
    if report.candidates:
        wait = f"{Settings().garbage_age_seconds:g} s"
        write_line(f"a candidate goes when two rounds of `ebla gc --delete`, {wait} apart, have found it unused")
    if report.unknown_tables:
        write_line(f"METADATA of unknown tables, left alone: {', '.join(report.unknown_tables)}")
    if report.lost_tables:
        from ebla.direct.unused_files import lost

        write_line(f"nothing can be removed: {lost(report.lost_tables)}")


def _on_spark(root: Path, *, delete: bool, master: str, progress: bool) -> GarbageReport:
    with needing_spark():
        from ebla import pipeline
    check_tables(root)
    with progress_bar("gc", force=progress) as shown:
        spark = pipeline.session(master, "ebla gc", log_level="OFF")
        return pipeline.gc(root, dry_run=not delete, spark=spark, progress=shown)
