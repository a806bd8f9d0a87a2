"""Masters and tablet servers on threads of this process, with their real addresses."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import ebla
from ebla.clock import SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.errors import EblaError, Unavailable
from ebla.master.calls import HEARTBEAT_METHODS, SendHeartbeat
from ebla.master.messages import Heartbeat, HeartbeatReply
from ebla.master_server.process import MasterProcess
from ebla.metadata_rpc.master_list import MasterList
from ebla.metadata_rpc.remote_metadata import RemoteMetadata
from ebla.rpc.channel import Channel
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet_server.server import TabletServer


def new_id() -> str:
    return str(uuid.uuid4())


def wait_until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.02)


class SmallCluster:
    """Some masters and servers; each can be closed, and started again with what it has."""

    def __init__(self, directory: Path, masters: int, servers: int) -> None:
        self.directory = directory
        self.nodes = MemoryStore()
        self.clock = SystemClock()
        self.masters: dict[str, MasterProcess] = {}
        self.servers: dict[str, TabletServer] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._channels: dict[str, Channel] = {}
        self._list = MasterList(self.coordination(), self.clock)
        (directory / "root").mkdir()
        for number in range(masters):
            self.start_master(f"master-{number + 1}")
        for number in range(servers):
            self.start_server(f"server-{number + 1}")

    def coordination(self) -> MemoryCoordination:
        return MemoryCoordination(self.nodes, self.clock)

    def start_master(self, name: str) -> None:
        self.masters[name] = MasterProcess(self.coordination(), self.directory / name, self.directory / "root")

    def start_server(self, name: str) -> None:
        coordination = self.coordination()

        def metadata(server: str) -> RemoteMetadata:
            return RemoteMetadata(coordination, self.clock, server=server, masters=self._list.addresses, new_id=new_id)

        server = self.servers[name] = TabletServer(
            files=LocalFiles(self.directory / "root"),
            coordination=coordination,
            metadata=metadata,
            send=self._send,
            clock=self.clock,
            settings=Settings(),
            cluster=next(iter(self.masters.values())).cluster,
            directory=self.directory / name,
            new_id=new_id,
        )
        thread = self._threads[name] = threading.Thread(target=server.serve, daemon=True)
        thread.start()

    def _send(self, heartbeat: Heartbeat) -> HeartbeatReply:
        for address in self._list.addresses():
            channel = self._channels.setdefault(address, Channel(HEARTBEAT_METHODS, address))
            try:
                return channel.call(SendHeartbeat(heartbeat), timeout_seconds=2.0)
            except EblaError:
                continue
        raise Unavailable("no master leads")

    def stop_server(self, name: str) -> None:
        self.servers.pop(name).stop()
        self._threads.pop(name).join(20)

    @property
    def leader(self) -> str:
        """The name of the master that leads."""
        wait_until(lambda: any(master.is_leading for master in self.masters.values()))
        return next(name for name, master in self.masters.items() if master.is_leading)

    def connect(self) -> ebla.Database:
        return ebla.connect([master.address for master in self.masters.values()], timeout_seconds=20.0)

    def __enter__(self) -> SmallCluster:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in [*self.servers]:
            self.stop_server(name)
        for master in self.masters.values():
            master.close()
        for channel in self._channels.values():
            channel.close()
