"""The command that runs a tablet server: tablet-server."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import examples
from ebla.cli.shared.lines import write_line

if TYPE_CHECKING:
    from ebla.access.tls import TlsFiles

TABLET_SERVER_EXAMPLES = examples(
    "ebla tablet-server --coordination cluster/root/coordination.sqlite --root cluster/root --data cluster/server-1",
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

AuthOption = Annotated[
    bool, typer.Option("--auth", help="Let in only whoever shows a token: see `ebla user`. For all processes, or none.")
]

TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate of this process: see `ebla certs`. Needed wherever other machines can connect.",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.", show_default=False)
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Certificate of the authority of the cluster.", show_default=False),
]
PeerPortOption = Annotated[
    int,
    typer.Option(
        "--peer-port",
        help="With TLS: port for other processes of the cluster, who show certificates; 0: any that is free.",
        min=0,
        max=65535,
    ),
]

MetricsHostOption = Annotated[
    str, typer.Option("--metrics-host", help="Address to tell metrics at, to everybody who reaches it.")
]
MetricsPortOption = Annotated[
    int,
    typer.Option(
        "--metrics-port",
        help="Port of http://HOST:PORT/metrics, for Prometheus; 0: any that is free.",
        min=0,
        max=65535,
    ),
]


def tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """Return the files of the three options; `RequestError` if some are missing."""
    from ebla.access.tls import TlsFiles
    from ebla.errors import RequestError

    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise RequestError("TLS takes all three of --tls-cert, --tls-key and --tls-ca")
    return TlsFiles(ca, cert, key)


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
    auth: AuthOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    peer_port: PeerPortOption = 0,
    metrics_host: MetricsHostOption = "127.0.0.1",
    metrics_port: MetricsPortOption = 0,
    log_directory: Annotated[
        Path | None,
        typer.Option(
            "--log-directory",
            metavar="DIR",
            help="Directory of its logs, on a disk of its own, for tables with several replicas; without it they are "
            "below --root, and others take over tables with one replica when it is gone.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a tablet server in the foreground, until it is told to stop.

    It prints its uuid and its address when it can be reached. SIGTERM and Ctrl-C stop it cleanly: it flushes, and hands
    over what it leads. After a kill, others take over what it led within seconds; started again with the same --data,
    it is the same server.
    """
    from ebla.tablet_server.process import open_process

    with open_process(
        coordination,
        root,
        data,
        host=host,
        port=port,
        load_first=tuple(load or ()),
        auth=auth,
        tls=tls_files(tls_cert, tls_key, tls_ca),
        peer_port=peer_port,
        metrics=(metrics_host, metrics_port),
        log_directory=log_directory,
    ) as process:

        def stop(number: int, frame: Any) -> None:
            process.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        write_line(f"tablet server {process.uuid} at {process.address}")
        write_line(f"metrics at http://{process.metrics_address}/metrics")
        process.serve()
