"""The commands for a store that may be damaged: verify, repair."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

import ebla
from ebla.cli.shared.command_failures import ExitCode, guarded
from ebla.cli.shared.context import JsonOption, StoreOption, directory_of, examples, source_of
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

if TYPE_CHECKING:
    from ebla.pipeline.care.verify import VerifyReport as FullReport

VERIFY_EXAMPLES = examples("ebla verify", "ebla verify --full", "ebla verify --full users --json")
REPAIR_EXAMPLES = examples("ebla repair", "ebla repair --apply", "ebla repair --accept-lost-log")


@guarded
def verify(
    ctx: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="With --full: read files of these tables only.", show_default=False),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Read every byte of every file, too.")] = False,
    spark: SparkOption = None,
    master: MasterOption = LOCAL,
    progress: ProgressOption = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Compare METADATA with itself and with every file that it names, and the log with its record. Changes nothing.

    The store may be open elsewhere, or so damaged that it does not open. The exit code is 6 if something is wrong.

    That looks at the end of every file. With --full, all of them are read: checksums, sort order, keys, and the ranges
    of keys and txns are held against what each file and METADATA say, and every finding names what would put it right.
    """
    source = source_of(ctx, store)
    if not full and (tables or spark is not None or master != LOCAL):
        raise ebla.RequestError("tables, --spark and --master are for reading every file: add --full")
    report = source.verify() if isinstance(source, ebla.Database) else ebla.verify(source)
    whole = None
    if full:
        from ebla.pipeline.care.verify import verify as read_all

        check_tables(source, tables or ())
        with progress_bar("verify", force=progress) as shown:
            whole = read_all(source, tables or None, spark=spark_start(spark, master, "ebla verify"), progress=shown)
        told = {finding.file for finding in whole.findings}
        # What is said of a file after all of it was read says more.
        left = tuple(finding for finding in report.findings if not finding.file or finding.file not in told)
        report = dataclasses.replace(report, findings=left)
    _tell(report, json, whole)
    if not report.is_clean or (whole is not None and whole.findings):
        raise typer.Exit(ExitCode.STORE)


@guarded
def repair(
    ctx: typer.Context,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without it, only say what would be done.")] = False,
    accept_lost_log: Annotated[
        bool,
        typer.Option(
            "--accept-lost-log", help="Go on without what is missing from the log; tells what is lost by that."
        ),
    ] = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Mend METADATA as far as nothing is lost by it: holes and overlaps of half a split, wrong references and names.

    Shows the plan; --apply carries it out, in one transaction for each table. Close the store first. What is told
    without a repair needs a backup; then the exit code is 6. A log of which files are missing or cut is better brought
    back from a copy; if there is none, --accept-lost-log gives up what it lost, and that alone.
    """
    place = directory_of(ctx, store, "its masters agree on METADATA; restore the table from a backup")
    report = ebla.repair(place, dry_run=not apply, accept_lost_log=accept_lost_log)
    _tell(report, json)
    if not json:
        write_line("repaired" if report.repaired else "nothing was changed")
    left = sum(not finding.repair for finding in report.findings)
    if left:
        if not json:
            write_line(
                f"{left} finding(s) without a repair: bring the files back, or see `ebla restore` and `ebla salvage`"
            )
        raise typer.Exit(ExitCode.STORE)


def _tell(report: ebla.VerifyReport, json: bool, whole: FullReport | None = None) -> None:
    if json:
        write_json(msgspec.to_builtins(report) | ({} if whole is None else {"full": msgspec.to_builtins(whole)}))
        return
    orphans = [finding for finding in report.findings if finding.kind == "orphan"]
    wrong = [finding for finding in report.findings if finding.kind != "orphan"]
    for finding in wrong:
        place = f"{finding.table}: " if finding.table else ""
        write_line(f"{finding.kind}: {place}{finding.text}" + (f" -> {finding.repair}" if finding.repair else ""))
    for one in () if whole is None else whole.findings:
        place = f"{one.table}: {one.file}" if one.file else one.table
        write_line(f"{one.kind}: {place}: {one.problem} -> {one.repair}")
    if orphans:
        count = f"{len(orphans)} file(s) that no table names"
        write_line(f"orphan: {count} -> `gc` removes them in its time; --json lists them")
    write_line(f"{report.tables} table(s), {report.files} file(s), {len(wrong)} finding(s)")
    if whole is not None:
        write_line(
            f"read {whole.files:,} file(s) of {size_text(whole.bytes)}, {whole.rows:,} record(s), in "
            f"{whole.seconds:.1f} s: {len(whole.findings)} finding(s)"
        )
