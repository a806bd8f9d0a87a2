"""The command that tells how a store is, whoever has it open: status."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import ebla
from ebla.cli.cluster.cluster_status import CLUSTER_FILE, tell_cluster, tell_connected
from ebla.cli.shared.command_failures import ExitCode, guarded
from ebla.cli.shared.context import Context, JsonOption, connected, examples, is_cluster
from ebla.cli.shared.lines import size_text, write_json, write_line

STATUS_EXAMPLES = examples("ebla status", "ebla status --json")


@guarded
def status(
    ctx: typer.Context,
    json: JsonOption = False,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            "--data",
            metavar="PATH",
            help="Directory of the store, also before the command; or that of a cluster.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tell who has the store open and since when, its tables and sizes, and whether anything is wrong.

    Takes no lock, and works while another process has the store open, or nobody. What that process keeps in memory is
    what it told last, a few seconds ago. Of a cluster that `ebla up` started, processes, tables and tablets are told;
    of one that is named by its masters, what the one that leads knows. The exit code is 6 if something is wrong.
    """
    shared: Context = ctx.obj
    place = store or shared.store
    if (place / CLUSTER_FILE).exists():
        tell_cluster(place, json=json)
        return
    if is_cluster(place):
        with connected(place) as db:
            tell_connected(db, str(place), json=json)
        return
    found = ebla.status(place)
    if json:
        write_json(msgspec.to_builtins(found))
    else:
        _tell(found)
    if found.problems:
        raise typer.Exit(ExitCode.STORE)


def _tell(found: ebla.StoreStatus) -> None:
    from ebla.cli.shared.drawing import print_facts, print_rows

    print_facts(found.path, list(_facts(found).items()))
    if found.tables:
        rows = [
            {
                "table": table.name,
                "tablets": table.tablets,
                "fragments": table.fragments,
                "in fragments": size_text(table.fragment_bytes),
                "state": "damaged" if table.damage else "offline" if table.is_offline else "online",
            }
            for table in found.tables
        ]
        print_rows(rows, f"{len(rows)} table(s)")
    for problem in found.problems:
        write_line(f"problem: {problem}")


def _facts(found: ebla.StoreStatus) -> dict[str, Any]:
    owner = found.owner
    facts: dict[str, Any] = {"state": _state(found)}
    if owner is not None and found.state != "closed":
        facts["process"] = f"{owner.pid} on {owner.host}, ebla {owner.version}, since {_shown(owner.opened)}"
    if owner is not None and found.state == "open":
        counters = owner.counters
        age = max(0.0, (datetime.now(UTC) - owner.told).total_seconds())
        facts["in memory"] = f"{size_text(counters.memory_bytes)} of {size_text(counters.memory_limit_bytes)}"
        facts["block cache"] = (
            f"{size_text(counters.block_cache_bytes)} of {size_text(counters.block_cache_limit_bytes)}"
        )
        facts["commits"] = f"{counters.commits_total:,}, the newest visible one at {_newest(counters)}"
        facts["told"] = f"{age:.0f} s ago"
    return facts | {
        "format": found.format_version,
        "in fragments": size_text(found.fragment_bytes),
        "log": f"{size_text(found.log_bytes)} in {found.log_segments} segment(s)",
        "METADATA": size_text(found.metadata_bytes),
        "health": f"{len(found.problems)} problem(s)" if found.problems else "nothing is known to be wrong",
    }


def _newest(counters: Any) -> str:
    moment = counters.commit_timestamp_seconds
    return _shown(datetime.fromtimestamp(moment, UTC)) if moment else "none yet"


def _state(found: ebla.StoreStatus) -> str:
    if found.state == "died":
        return "not open; its last process ended without closing it, and the next open replays the log"
    return "open for writing" if found.state == "open" else "not open for writing"


def _shown(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
