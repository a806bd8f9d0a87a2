"""A tablet server as a process: where the cluster is, and how its parts are wired.

coordination --> cluster id, masters, leases        root --> fragments and logs, which all servers see
masters      <-- heartbeats, changes of METADATA    data --> who this server is
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from ebla.clock import Clock, SystemClock
from ebla.coordination.address import open_coordination
from ebla.coordination.service import CoordinationService
from ebla.errors import StoreError
from ebla.metadata_rpc.master_list import MasterList
from ebla.metadata_rpc.remote_metadata import RemoteMetadata
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.recovery.identity import own_identity
from ebla.tablet_server.master_link import MasterLink
from ebla.tablet_server.server import TabletServer

__all__ = ["TabletServerProcess", "open_process"]


@contextmanager
def open_process(
    coordination: str, root: Path, data: Path, *, host: str, port: int, load_first: tuple[str, ...] = ()
) -> Iterator[TabletServerProcess]:
    """Make a tablet server of what a command is told; what it uses is let go of in the end."""
    clock = SystemClock()
    with open_coordination(coordination, clock) as service:
        yield TabletServerProcess(
            service, data, root, host=host, port=port, settings=Settings(load_first=load_first), clock=clock
        )


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
    ) -> None:
        """`data` is its own directory; `root` that of the cluster's fragments and logs, which all servers see."""
        clock = clock or SystemClock()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the root {root} cannot be used: {error}: mend that, or name the right one") from error
        # Set once.
        self._masters = MasterList(coordination, clock)
        self._link = MasterLink(str(data), self._masters.addresses)
        self._metadata: list[RemoteMetadata] = []

        def metadata(server: str) -> RemoteMetadata:
            made = RemoteMetadata(coordination, clock, server=server, masters=self._masters.addresses, new_id=_new_id)
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
        )
        self.uuid = self._server.uuid
        self.address = self._server.address

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

    def stop(self) -> None:
        """Have `serve` end. Called from any thread, or from a signal's handler."""
        self._server.stop()


def _new_id() -> str:
    return str(uuid4())
