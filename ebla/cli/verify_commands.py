"""The commands for a store that may be damaged: verify, repair."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

import ebla
from ebla.cli.context import Context, JsonOption, StoreOption, examples
from ebla.cli.failures import ExitCode, guarded
from ebla.cli.lines import write_json, write_line

VERIFY_EXAMPLES = examples("ebla verify")
REPAIR_EXAMPLES = examples("ebla repair", "ebla repair --apply")


@guarded
def verify(ctx: typer.Context, json: JsonOption = False, store: StoreOption = None) -> None:
    """Compare METADATA with itself and with every file that it names. Changes nothing.

    The store may be open elsewhere, or so damaged that it does not open. The exit code is 6 if something is wrong.
    """
    shared: Context = ctx.obj
    report = ebla.verify(store or shared.store)
    _tell(report, json)
    if not report.is_clean:
        raise typer.Exit(ExitCode.STORE)


@guarded
def repair(
    ctx: typer.Context,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without it, only say what would be done.")] = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Mend METADATA as far as nothing is lost by it: holes and overlaps of half a split, wrong references and names.

    Shows the plan; --apply carries it out, in one transaction for each table. Close the store first. What is told
    without a repair needs a backup; then the exit code is 6.
    """
    shared: Context = ctx.obj
    report = ebla.repair(store or shared.store, dry_run=not apply)
    _tell(report, json)
    if not json:
        write_line("repaired" if report.repaired else "nothing was changed")
    left = sum(not finding.repair for finding in report.findings)
    if left:
        if not json:
            write_line(f"{left} finding(s) without a repair: see `ebla restore --help`, or bring the files back")
        raise typer.Exit(ExitCode.STORE)


def _tell(report: ebla.VerifyReport, json: bool) -> None:
    if json:
        write_json(msgspec.to_builtins(report))
        return
    orphans = [finding for finding in report.findings if finding.kind == "orphan"]
    wrong = [finding for finding in report.findings if finding.kind != "orphan"]
    for finding in wrong:
        place = f"{finding.table}: " if finding.table else ""
        write_line(f"{finding.kind}: {place}{finding.text}" + (f" -> {finding.repair}" if finding.repair else ""))
    if orphans:
        count = f"{len(orphans)} file(s) that no table names"
        write_line(f"orphan: {count} -> `gc` removes them in its time; --json lists them")
    write_line(f"{report.tables} table(s), {report.files} file(s), {len(wrong)} finding(s)")
