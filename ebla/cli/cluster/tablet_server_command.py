"""The command that runs a tablet server: tablet-server."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import examples
from ebla.cli.shared.lines import write_line

TABLET_SERVER_EXAMPLES = examples(
    "ebla tablet-server --coordination cluster/coordination.sqlite --root cluster/root --data cluster/server-1",
    "ebla tablet-server --coordination zk://one:2181,two:2181/ebla --root /shared/ebla --data /var/lib/ebla",
)

CoordinationOption = Annotated[
    str,
    typer.Option(
        "--coordination",
        metavar="PLACE",
        help="Where the cluster is coordinated: a SQLite file, on one host, or zk://host:port,host:port/znode.",
        show_default=False,
    ),
]
RootOption = Annotated[
    Path,
    typer.Option(
        "--root", metavar="DIR", help="Directory of fragments and logs, which all servers see.", show_default=False
    ),
]
DataOption = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Directory of this process alone.", show_default=False)
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortOption = Annotated[int, typer.Option("--port", help="Port to listen on; 0: any that is free.", min=0, max=65535)]


@guarded
def tablet_server(
    ctx: typer.Context,
    coordination: CoordinationOption,
    root: RootOption,
    data: DataOption,
    host: HostOption = "127.0.0.1",
    port: PortOption = 0,
    load: Annotated[
        list[str] | None,
        typer.Option("--load", metavar="TABLE", help="Load this table first; may be repeated.", show_default=False),
    ] = None,
) -> None:
    """Run a tablet server in the foreground, until it is told to stop.

    It prints its uuid and its address when it can be reached. SIGTERM and Ctrl-C stop it cleanly: it flushes, and hands
    over what it leads. After a kill, others take over what it led within seconds; started again with the same --data,
    it is the same server.
    """
    from ebla.tablet_server.process import open_process

    with open_process(coordination, root, data, host=host, port=port, load_first=tuple(load or ())) as process:

        def stop(number: int, frame: Any) -> None:
            process.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        write_line(f"tablet server {process.uuid} at {process.address}")
        process.serve()
