"""The command salvage: a damaged file given up, and the rest kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import ebla
from ebla.cli.shared.command_failures import ExitCode, guarded
from ebla.cli.shared.context import JsonOption, StoreOption, directory_of, examples
from ebla.cli.shared.lines import write_json, write_line
from ebla.cli.shared.spark_options import ProgressOption, check_tables, progress_bar

if TYPE_CHECKING:
    from pathlib import Path

    from ebla.client.embedded.salvaging import SalvageReport

SALVAGE_EXAMPLES = examples("ebla salvage")


@guarded
def salvage(
    ctx: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="The file, as `ebla verify --full` names it.", show_default=False),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it. Without it, only say what would be lost.")
    ] = False,
    progress: ProgressOption = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Give up a damaged or missing file: keep all that can be read of it, and say exactly what is lost.

    Without FILE, every file is read, and of each that is damaged it is said what would be lost with it. With
    --accept-loss, FILE is replaced by what can be read of it, in one transaction for each table that refers to it, and
    moved to salvaged/ in the store, where nothing removes it. Close the store first. If a backup has the file, bring it
    back instead: then nothing is lost. The exit code is 6 as long as something is damaged.
    """
    root = directory_of(ctx, store, "bring the file back from a backup, or restore the table from one")
    if file is None and accept_loss:
        raise ebla.RequestError("--accept-loss is for one file: name it, as `ebla salvage` does")
    reports = [ebla.salvage(root, file, accept_loss=accept_loss)] if file else _look(root, progress=progress)
    if json:
        write_json([asdict(report) for report in reports])
    else:
        for report in reports:
            _tell(report)
        if not reports:
            write_line("no file is damaged")
    if reports and not accept_loss:
        raise typer.Exit(ExitCode.STORE)


def _look(root: Path, *, progress: bool) -> list[SalvageReport]:
    from ebla.pipeline.care.verify import verify

    check_tables(root)
    with progress_bar("salvage", force=progress) as shown:
        found = verify(root, spark=False, progress=shown)
    files = dict.fromkeys(one.file for one in found.findings if one.kind in ("missing", "damaged"))
    return [ebla.salvage(root, file) for file in files]


def _tell(report: SalvageReport) -> None:
    from ebla.client.embedded.salvaging import told

    write_line(f"{report.file}: {report.problem}")
    for loss in report.losses:
        write_line(f"  {'lost' if report.is_applied else 'would lose'} {told(loss)}")
    if not report.losses:
        write_line("  no record that counts is lost")
    kept = f"{report.records_kept:,} of {report.records:,} record(s)"
    for name in report.unread:
        write_line(f"  METADATA of {name} cannot be read: it may refer to the file, too")
    if not report.is_applied:
        write_line(f"  {kept} can be kept; nothing was changed: `ebla salvage {report.file} --accept-loss` does it")
        return
    write_line(f"  {kept} kept" + (f" in {report.new_file}" if report.new_file else ""))
    if report.aside is not None:
        write_line(f"  the damaged file is {report.aside} now: remove it when you do not need it any more")
