"""A tablet server as a process: where the cluster is, and how its parts are wired.

coordination --> cluster id, masters, leases        root --> fragments and logs, which all servers see
masters      <-- heartbeats, changes of METADATA    data --> who this server is
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from ebla.access.process_access import ProcessAccess, kept_for_a_while
from ebla.access.tls import Tls, TlsFiles, server_tls
from ebla.clock import Clock, SystemClock
from ebla.coordination.address import open_coordination
from ebla.coordination.service import CoordinationService
from ebla.errors import StoreError
from ebla.metadata_rpc.master_list import MasterList
from ebla.metadata_rpc.remote_metadata import RemoteMetadata
from ebla.rpc.metrics_port import told_to_prometheus
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.recovery.identity import own_identity
from ebla.tablet_server.master_link import MasterLink
from ebla.tablet_server.server import TabletServer

__all__ = ["TabletServerProcess", "open_process"]


@contextmanager
def open_process(
    coordination: str,
    root: Path,
    data: Path,
    *,
    host: str,
    port: int,
    load_first: tuple[str, ...] = (),
    auth: bool = False,
    tls: TlsFiles | None = None,
    peer_port: int = 0,
    metrics: tuple[str, int] | None = None,
    log_directory: Path | None = None,
) -> Iterator[TabletServerProcess]:
    """Make a tablet server of what a command is told; what it uses is let go of in the end.

    `metrics` is the host and the port at which it tells its metrics.
    """
    clock = SystemClock()
    checked = None if tls is None else server_tls(tls)
    with open_coordination(coordination, clock) as service:
        process = TabletServerProcess(
            service,
            data,
            root,
            host=host,
            port=port,
            settings=Settings(load_first=load_first),
            clock=clock,
            auth=auth,
            tls=checked,
            peer_port=peer_port,
            log_directory=log_directory,
        )
        with told_to_prometheus(metrics, process.metrics, data) as address:
            process.metrics_address = address
            yield process


class TabletServerProcess:
    """A tablet server with everything that it uses. `serve` runs it until `stop` is called."""

    def __init__(
        self,
        coordination: CoordinationService,
        data: Path,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: Settings | None = None,
        clock: Clock | None = None,
        auth: bool = False,
        tls: Tls | None = None,
        peer_port: int = 0,
        log_directory: Path | None = None,
    ) -> None:
        """`data` is its own directory; `root` that of the cluster's fragments and logs, which all servers see.

        With `auth`, everybody who asks for something shows a token. `tls` has the certificate that it shows itself;
        `peer_port` is then where other processes of the cluster ask.
        """
        clock = clock or SystemClock()
        try:
            root.mkdir(parents=True, exist_ok=True)
            if log_directory is not None:
                log_directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the root {root} cannot be used: {error}: mend that, or name the right one") from error
        # Set once.
        self._masters = MasterList(coordination, clock)
        self._access = ProcessAccess(coordination, data, auth=auth, tls=tls)
        credentials = self._access.credentials(lambda: self._server.uuid)
        self._link = MasterLink(str(data), self._masters.addresses, credentials)
        self._metadata: list[RemoteMetadata] = []

        def metadata(server: str) -> RemoteMetadata:
            made = RemoteMetadata(
                coordination,
                clock,
                server=server,
                masters=self._masters.addresses,
                new_id=_new_id,
                credentials=credentials,
            )
            self._metadata.append(made)
            return made

        self._server = TabletServer(
            files=LocalFiles(root),
            coordination=coordination,
            metadata=metadata,
            send=self._link.send,
            clock=clock,
            settings=settings or Settings(),
            cluster=own_identity(coordination, _new_id, read_only=False).cluster,
            directory=data,
            new_id=_new_id,
            host=host,
            port=port,
            guard=self._access.guard(kept_for_a_while(lambda table_id: self._metadata[0].name_of(table_id))),
            tls=tls,
            peer_port=peer_port,
            credentials=credentials,
        )
        self.metrics_address = ""
        self.uuid = self._server.uuid
        self.address = self._server.address

    def metrics(self) -> str:
        """Return what Prometheus is told."""
        return "\n".join([*self._server.metric_lines(), *self._access.metric_lines()]) + "\n"

    @property
    def server(self) -> TabletServer:
        """The server itself."""
        return self._server

    def serve(self) -> None:
        """Serve until `stop` is called; then flush, hand over, and leave."""
        try:
            self._server.serve()
        finally:
            self._link.close()
            for one in self._metadata:
                one.close()
            self._access.close()

    def stop(self) -> None:
        """Have `serve` end. Called from any thread, or from a signal's handler."""
        self._server.stop()


def _new_id() -> str:
    return str(uuid4())
