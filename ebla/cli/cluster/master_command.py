"""The command that runs a master: master."""

from __future__ import annotations

import signal
import threading
from typing import Any

import typer

from ebla.cli.cluster.tablet_server_command import (
    AuthOption,
    CoordinationOption,
    DataOption,
    HostOption,
    MetricsHostOption,
    MetricsPortOption,
    PeerPortOption,
    PortOption,
    RootOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    tls_files,
)
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import examples
from ebla.cli.shared.lines import write_line

MASTER_EXAMPLES = examples(
    "ebla master --coordination cluster/root/coordination.sqlite --root cluster/root --data cluster/master-1",
    "ebla master --coordination zk://one:2181,two:2181/ebla --root /shared/ebla --data /var/lib/ebla-master",
)


@guarded
def master(
    ctx: typer.Context,
    coordination: CoordinationOption,
    root: RootOption,
    data: DataOption,
    host: HostOption = "127.0.0.1",
    port: PortOption = 0,
    auth: AuthOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    peer_port: PeerPortOption = 0,
    metrics_host: MetricsHostOption = "127.0.0.1",
    metrics_port: MetricsPortOption = 0,
) -> None:
    """Run a master in the foreground, until it is told to stop.

    It prints its uuid and its address when it can be reached. All masters of a cluster keep METADATA together, and one
    of them leads. Started again with the same --data, it is the same master.
    """
    from ebla.master_server.process import open_process

    stopping = threading.Event()

    def stop(number: int, frame: Any) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    tls = tls_files(tls_cert, tls_key, tls_ca)
    with open_process(
        coordination,
        root,
        data,
        host=host,
        port=port,
        auth=auth,
        tls=tls,
        peer_port=peer_port,
        metrics=(metrics_host, metrics_port),
    ) as process:
        write_line(f"master {process.uuid} at {process.address}")
        write_line(f"metrics at http://{process.metrics_address}/metrics")
        stopping.wait()
