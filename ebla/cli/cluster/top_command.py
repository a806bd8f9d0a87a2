"""The command that shows what a cluster is doing: top."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, examples
from ebla.cli.shared.lines import write_json, write_line

if TYPE_CHECKING:
    from ebla.local_cluster.activity import Activity

TOP_EXAMPLES = examples(
    "ebla top --data cluster",
    "ebla top --data cluster --once --json",
    "ebla top --at 10.0.0.7:9100 --at 10.0.0.8:9100 --seconds 5",
)

_CLEAR = "\x1b[H\x1b[2J"


@guarded
def top(
    ctx: typer.Context,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Directory of `ebla up`.", show_default=False)
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="HOST:PORT",
            help="Else: where a process tells its metrics (--metrics-port); may be repeated.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Between two looks.", min=0.05)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and leave.")] = False,
    json: JsonOption = False,
) -> None:
    """Show what the processes of a cluster do: requests, failures, slow ones (over 0.1 s), bytes, sizes of tables.

    Numbers are those of the time between two looks, by second. Looks again until Ctrl-C, unless --once is given.
    """
    from ebla.errors import RequestError
    from ebla.local_cluster.activity import activity, read_all
    from ebla.local_cluster.cluster_file import read_cluster

    if (data is None) == (not at):
        raise RequestError("say which cluster: --data DIR of `ebla up`, or --at HOST:PORT for each process")
    addresses = at or []
    if data is not None:
        addresses = [process.metrics for process in read_cluster(data).processes if process.metrics]
    for address in addresses:
        if not address.rpartition(":")[0] or not address.rpartition(":")[2].isdecimal():
            raise RequestError(f"--at is HOST:PORT, as `ebla status` tells it under metrics, not {address!r}")
    before = read_all(addresses)
    try:
        while True:
            time.sleep(seconds)
            after = read_all(addresses)
            _tell(activity(before, after), as_json=json, is_clearing=not once and sys.stdout.isatty())
            if once:
                return
            before = after
    except KeyboardInterrupt:
        return


def _tell(found: Activity, *, as_json: bool, is_clearing: bool) -> None:
    from ebla.cli.shared.drawing import print_rows

    if as_json:
        write_json({"processes": found.processes, "methods": found.methods, "tables": found.tables})
        return
    if is_clearing:
        sys.stdout.write(_CLEAR)
    # What a kind of process has nothing of is left blank.
    rows = [{name: value for name, value in row.items() if value is not None} for row in found.processes]
    print_rows(rows, f"{len(found.processes)} process(es) at {time.strftime('%H:%M:%S')}")
    if found.methods:
        print_rows(found.methods, "the methods that were asked for most")
    if found.tables:
        print_rows(found.tables, f"{len(found.tables)} table(s)")
    write_line("")
