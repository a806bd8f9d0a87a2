"""The command inspect: every file read and checked, on Spark."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from ebla.cli.context import JsonOption, StoreOption, examples
from ebla.cli.failures import ExitCode, guarded
from ebla.cli.lines import write_json, write_line
from ebla.cli.spark_options import MasterOption, ProgressOption, check_tables, needing_spark, progress_bar, root_of

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
    `ebla verify` compares METADATA with itself, names files that belong to no table, and is much quicker. Nothing is
    changed; every finding names what would put it right. With findings, the exit code is 6.
    """
    root = root_of(ctx, store)
    with needing_spark():
        from ebla import pipeline
    check_tables(root, tables or ())
    with progress_bar("inspect", force=progress) as report:
        spark = pipeline.session(master, "ebla inspect", log_level="OFF")
        found = pipeline.verify(root, tables or None, spark=spark, progress=report)
    if as_json:
        write_json(msgspec.to_builtins(found))
    else:
        for finding in found.findings:
            place = f"{finding.table}: {finding.file}" if finding.file else finding.table
            write_line(f"{place}: {finding.kind}: {finding.problem}; {finding.repair}")
        write_line(
            f"{len(found.findings)} finding(s) in {found.files:,} file(s) of {found.bytes / 1e6:,.1f} MB, "
            f"{found.rows:,} record(s), in {found.seconds:.1f} s"
        )
    if found.findings:
        raise typer.Exit(ExitCode.STORE)
