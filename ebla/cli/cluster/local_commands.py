"""The commands for a whole cluster on one host: up, down, restart."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, examples
from ebla.cli.shared.lines import write_json, write_line

UP_EXAMPLES = examples(
    "ebla up --servers 3 --data cluster",
    "ebla up --servers 3 --masters 3 --data cluster --port 7070",
    "ebla up --data cluster --zookeeper --foreground",
    "ebla up --servers 2 --data guarded --auth --tls",
)
DOWN_EXAMPLES = examples("ebla down --data cluster")
RESTART_EXAMPLES = examples("ebla restart --rolling --data cluster", "ebla restart --data cluster")

DirectoryOption = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Directory of the cluster.", show_default=False)
]


@guarded
def up(
    ctx: typer.Context,
    data: DirectoryOption,
    servers: Annotated[
        int | None,
        typer.Option("--servers", min=1, help="Tablet servers; else as many as before, or 1.", show_default=False),
    ] = None,
    masters: Annotated[
        int | None,
        typer.Option(
            "--masters",
            min=1,
            help="Masters, of which three survive the loss of one; else as many as before, or 1.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="Port of the first master; else that it had, or 7070, or the next free one.",
            show_default=False,
        ),
    ] = None,
    zookeeper: Annotated[
        bool,
        typer.Option(
            "--zookeeper",
            help="Coordinate a new cluster with a ZooKeeper of its own, from PySpark's jars; it stays with that.",
        ),
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and stop the cluster on Ctrl-C or SIGTERM.")
    ] = False,
    auth: Annotated[
        bool,
        typer.Option(
            "--auth", help="Let in only whoever shows a token: `ebla user` makes users. DIR/admin.token has one."
        ),
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt all connections, by certificates that are made in DIR/certs.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start a cluster on this host, with what the directory has, and return when it serves.

    Of a cluster of which some processes run, the others are started again.

    Prints the address to connect to, as by `ebla.connect("127.0.0.1:7070")`. DIR/cluster.json names every process;
    `ebla status --store DIR` tells how they are, and `ebla down --data DIR` stops them.
    """
    from ebla.local_cluster import local_cluster

    stopping = threading.Event()
    if foreground:

        def stop(number: int, frame: Any) -> None:
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
    before = {process.pid for process in local_cluster.running(data)}
    cluster = local_cluster.start(
        data,
        servers=servers,
        masters=masters,
        port=port,
        zookeeper=zookeeper,
        auth=auth,
        tls=tls,
        log_format=ctx.obj.log_format,
    )
    if json:
        write_json(msgspec.to_builtins(cluster))
    else:
        for process in cluster.processes if before else ():
            if process.pid not in before:
                write_line(f"started again: {process.role} {process.uuid} in {process.data}, pid {process.pid}")
        counts = f"{len(cluster.of('master'))} master(s), {len(cluster.of('tablet-server'))} tablet server(s)"
        write_line(f"up: {counts}, connect to {cluster.address}")
    if foreground:
        stopping.wait()
        _tell_killed(local_cluster.stop(data))


@guarded
def down(ctx: typer.Context, data: DirectoryOption) -> None:
    """Stop the cluster of a directory: servers flush and hand over first. All is there at the next `ebla up`."""
    from ebla.local_cluster import local_cluster

    _tell_killed(local_cluster.stop(data))
    write_line("down")


@guarded
def restart(
    ctx: typer.Context,
    data: DirectoryOption,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="One process after the other, while clients are served.")
    ] = False,
    accept_pauses: Annotated[
        bool,
        typer.Option("--accept-pauses", help="With --rolling: also if tablets wait while their server is away."),
    ] = False,
) -> None:
    """Restart the processes of the cluster of a directory.

    With --rolling one after the other: a tablet server flushes and hands over first, and the next one follows when all
    tablets are served and in sync again; then the masters, the leading one last. What clients ask is answered
    throughout. It is refused where tablets would be unavailable meanwhile, and ends where something does not come back.
    Without, the cluster is stopped as a whole and started again.
    """
    from ebla.local_cluster import local_cluster
    from ebla.local_cluster.cluster_file import read_cluster

    if rolling:
        from ebla.local_cluster.rolling import restart_rolling

        restart_rolling(data, tell=write_line, accept_pauses=accept_pauses, log_format=ctx.obj.log_format)
        write_line("restarted")
        return
    there = read_cluster(data)
    _tell_killed(local_cluster.stop(data))
    local_cluster.start(
        data,
        servers=len(there.of("tablet-server")),
        masters=len(there.of("master")),
        port=None,
        zookeeper=bool(there.of("zookeeper")),
        log_format=ctx.obj.log_format,
    )
    write_line(f"restarted, connect to {read_cluster(data).address}")


def _tell_killed(killed: list[Any]) -> None:
    for process in killed:
        write_line(f"killed: {process.role} {process.uuid} in {process.data} did not stop in time")
