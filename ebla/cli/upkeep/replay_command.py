"""The command replay: a log that is too long to open the store with, sorted into fragments, on Spark."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, directory_of, examples
from ebla.cli.shared.lines import write_json, write_line
from ebla.cli.shared.spark_options import MasterOption, ProgressOption, needing_spark, progress_bar

if TYPE_CHECKING:
    from ebla.pipeline import ReplaySummary

REPLAY_EXAMPLES = examples("ebla replay", "ebla replay --json")


@guarded
def replay(
    ctx: typer.Context,
    portions: Annotated[
        int | None,
        typer.Option("--portions", min=1, metavar="N", help="Into how many parts to divide.", show_default="auto"),
    ] = None,
    master: MasterOption = "local[*]",
    progress: ProgressOption = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Sort the log of a store that died into fragments, with Spark, so that opening it takes no time.

    Opening a store replays its log by itself, in one process. This is for a log of gigabytes. Nobody may have the
    store open for writing. All of the log is replayed, or nothing is changed: run it again if it was interrupted. A
    log that is damaged is refused with the file and the place in it.
    """
    root = directory_of(ctx, store, "its servers replay their logs themselves")
    with needing_spark():
        from ebla import pipeline
        from ebla.pipeline.replaying.replay import OnSpark, replay_with
    with progress_bar("replay", force=progress) as report:
        # Spark is started only when the store is ours, and has a log.
        done = replay_with(
            root,
            lambda: OnSpark(pipeline.session(master, "ebla replay", log_level="OFF"), report),
            portions=portions,
            progress=report,
        )
    if json:
        write_json(asdict(done))
    else:
        write_line(_told(done))


def _told(done: ReplaySummary) -> str:
    """Return what a replay did, in a line or two."""
    parts = [
        f"replayed {done.log_bytes / 1e6:,.1f} MB of log in {done.seconds:.1f} s: {done.records:,} record(s) of "
        f"{len(done.tables)} table(s) into {done.files:,} file(s) of {done.bytes / 1e6:,.1f} MB"
    ]
    if not done.tables:
        parts = [f"nothing to replay: all of {done.log_bytes / 1e6:,.1f} MB of log is in fragments"]
    if done.torn_bytes:
        parts.append(f"{done.torn_bytes:,} byte(s) at its end were half written, and are gone")
    parts += [
        f"{name} is damaged, and its part of the log is kept: {why}; see `ebla verify`"
        for name, why in done.refused.items()
    ]
    return "; ".join(parts)
