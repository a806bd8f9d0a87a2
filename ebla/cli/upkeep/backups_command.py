"""The command backups: what lies in a directory of backups, whether it is whole, and what of it may go."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ebla
from ebla.cli.shared.command_failures import ExitCode, guarded
from ebla.cli.shared.context import JsonOption, examples
from ebla.cli.shared.lines import size_text, write_json, write_line
from ebla.cli.shared.spark_options import LOCAL, MasterOption, ProgressOption, SparkOption, progress_bar, spark_start
from ebla.cli.upkeep.backup_command import DirectoryArgument

if TYPE_CHECKING:
    from ebla.pipeline.backups.manifest import Backups

BACKUPS_EXAMPLES = examples(
    "ebla backups backups",
    "ebla backups backups --check last",
    "ebla backups backups --clean",
    "ebla backups backups --prune --keep 3",
    "ebla backups backups --prune --older-than 30d --delete",
)


@guarded
def backups(
    ctx: typer.Context,
    path: DirectoryArgument,
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="last|ID|TXN", help="Read all of this one, and compare.", show_default=False),
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what failed backups have left.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Say which backups are not wanted any more; --delete removes them.")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            help="Prune: so many full backups of each table stay, with increments.",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE|TIME", help="Prune: what is younger stays.", show_default=False),
    ] = None,
    even_last: Annotated[
        bool, typer.Option("--even-last", help="Prune: also the only backups that a table has.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Prune: do it. Without it, only say what would go.")] = False,
    spark: SparkOption = None,
    master: MasterOption = LOCAL,
    progress: ProgressOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the backups in a directory, oldest first, and what is no backup: one being made, or that failed.

    Of every backup it is looked whether all files are there that a restore needs, by name and size. With --check, one
    is read in full, and its checksums and rows compared with what they were. The exit code is 6 if something is missing
    or damaged.

    With --prune, backups go that neither --keep nor --older-than keeps, and that no other needs. The newest backup of
    a table stays in any case, unless --even-last is given: then a table that only old backups have does not keep them.
    """
    del ctx  # for `guarded`, which looks into it when something fails
    given = {"--keep": keep, "--older-than": older_than, "--even-last": even_last, "--delete": delete}
    if not prune and (alone := [name for name, value in given.items() if value not in (None, False)]):
        raise ebla.RequestError(f"{alone[0]} says what --prune removes: add --prune")
    if prune and (check is not None or clean):
        raise ebla.RequestError("--prune goes without --check and --clean: one after the other")
    if prune:
        _prune(path, keep, older_than, even_last=even_last, delete=delete, as_json=as_json)
        return
    from ebla.pipeline.backups.manifest import list_backups, remove_unfinished

    found = list_backups(path)
    if check is not None:
        found.find(check, Path(path))  # what is wrong with it is said before Spark starts
        with progress_bar("check", force=progress) as report:
            from ebla.pipeline.backups.checking import check_backup

            whole = check_backup(path, check, spark=spark_start(spark, master, "ebla backups"), progress=report)
        rows = "not counted" if whole.rows is None else f"{whole.rows:,}"
        if as_json:
            write_json(asdict(whole))
        else:
            write_line(
                f"{whole.id} is whole: {whole.files:,} file(s) of {size_text(whole.bytes)}, rows: {rows}; read in "
                f"{whole.seconds:.1f} s"
            )
        return
    removed = remove_unfinished(path, found.unfinished) if clean else []
    unfinished = [name for name in found.unfinished if name not in removed]
    problems = {**found.damaged, **_problems(Path(path), found)}
    listed: list[dict[str, Any]] = [
        {
            "id": one.id,
            "kind": one.kind,
            "time": one.time,
            "txn": one.txn,
            "tables": [table.name for table in one.tables],
            "rows": [table.rows for table in one.tables],
            "files": len(one.files),
            "bytes": sum(file.bytes for file in one.files),
            "new_bytes": sum(file.bytes for file in one.own_files()),
            "builds_on": one.chain,
        }
        for one in found.complete
    ]
    if as_json:
        write_json({"backups": listed, "unfinished": unfinished, "removed": removed, "problems": problems})
    else:
        from ebla.cli.shared.drawing import print_rows

        shown = [{**one, "bytes": size_text(one["bytes"]), "new_bytes": size_text(one["new_bytes"])} for one in listed]
        print_rows([_in_line(one) for one in shown], f"{len(listed)} backup(s)")
        for name in unfinished:
            write_line(f"{name} is not complete: it is being made, or has failed; --clean removes it then")
        for name in removed:
            write_line(f"{name} was not complete, and was removed")
        for name, problem in sorted(problems.items()):
            write_line(f"{name}: {problem}")
    if problems:
        raise typer.Exit(ExitCode.STORE)


def _prune(
    path: str, keep: int | None, older_than: str | None, *, even_last: bool, delete: bool, as_json: bool
) -> None:
    from ebla.pipeline.backups.pruning import prune_backups

    report = prune_backups(path, keep=keep, older_than=older_than, even_last=even_last, dry_run=not delete)
    if as_json:
        write_json(asdict(report))
        return
    done = "removed" if delete else "would remove"
    for one in report.doomed:
        tables = ", ".join(one.tables)
        inside = f"{one.files:,} file(s) of {size_text(one.bytes)}"
        write_line(f"{done} {one.id} ({one.kind}, {one.time[:19]}, {tables}): {inside}")
    for name in report.needed:
        write_line(f"{name} stays, for others build on it")
    write_line(
        f"{len(report.doomed)} of {len(report.doomed) + len(report.kept)} backup(s) "
        f"{'removed' if delete else 'would go'}, {report.files:,} file(s) of {size_text(report.bytes)}"
        + ("" if delete or not report.doomed else "; --delete removes them")
    )


def _in_line(listed: dict[str, Any]) -> dict[str, Any]:
    """Return what a table for people shows: lists as words."""
    return {
        name: ", ".join("?" if item is None else str(item) for item in value) if isinstance(value, list) else value
        for name, value in listed.items()
    }


def _problems(path: Path, found: Backups) -> dict[str, str]:
    from ebla.errors import EblaError
    from ebla.pipeline.backups.manifest import check_chain

    problems = {}
    for manifest in found.complete:
        try:
            check_chain(path, manifest)
        except EblaError as error:
            problems[manifest.id] = str(error)
    return problems
