"""Masters and tablet servers on threads of this process, with their real addresses."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import ebla
from ebla.clock import SystemClock
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.errors import EblaError, Unavailable
from ebla.master.calls import HEARTBEAT_METHODS, SendHeartbeat
from ebla.master.messages import Heartbeat, HeartbeatReply
from ebla.master.settings import MasterSettings
from ebla.master_server.process import MasterProcess
from ebla.metadata_rpc.master_list import MasterList
from ebla.metadata_rpc.remote_metadata import RemoteMetadata
from ebla.rpc.channel import Channel
from ebla.settings import Settings
from ebla.storage.files.files import WritableFile
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet_server.server import TabletServer


def new_id() -> str:
    return str(uuid.uuid4())


def wait_until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.02)


class WrongClock(SystemClock):
    """A clock that is ahead of the others."""

    def __init__(self, hours_ahead: float) -> None:
        self._ahead = round(hours_ahead * 3_600e6)

    def microseconds(self) -> int:
        return super().microseconds() + self._ahead


class FullFiles(LocalFiles):
    """Files of which logs find no room while a test says so."""

    def __init__(self, root: Path, is_full: Callable[[], bool]) -> None:
        super().__init__(root)
        self._is_full = is_full

    def create(self, path: str) -> WritableFile:
        self._check(path)
        return self._guarded(super().create(path), path)

    def write_on(self, path: str) -> WritableFile:
        self._check(path)
        return self._guarded(super().write_on(path), path)

    def _check(self, path: str) -> None:
        if path.startswith("log/") and self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _guarded(self, file: WritableFile, path: str) -> WritableFile:
        plain: Any = file
        write, sync = plain.write, plain.sync

        def guarded(*given: Any, call: Callable[..., Any]) -> Any:
            self._check(path)
            return call(*given)

        return cast(WritableFile, _Guarded(plain, partial(guarded, call=write), partial(guarded, call=sync)))


class _Guarded:
    """A file whose writes are looked at first."""

    def __init__(self, file: Any, write: Callable[..., Any], sync: Callable[..., Any]) -> None:
        self._file, self.write, self.sync = file, write, sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)


class SmallCluster:
    """Some masters and servers; each can be closed, and started again with what it has."""

    def __init__(
        self,
        directory: Path,
        masters: int,
        servers: int,
        settings: Settings | None = None,
        master_settings: MasterSettings | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings or Settings()
        self.master_settings = master_settings
        self.nodes = MemoryStore()
        self.clock = SystemClock()
        self.masters: dict[str, MasterProcess] = {}
        self.servers: dict[str, TabletServer] = {}
        self.full: set[str] = set()  # servers whose log finds no room
        self.hours_ahead: dict[str, float] = {}  # by how much the clocks of servers go wrong
        self.is_coordination_away = False
        self._threads: dict[str, threading.Thread] = {}
        self._channels: dict[str, Channel] = {}
        self._list = MasterList(self.coordination(), self.clock)
        (directory / "root").mkdir()
        for number in range(masters):
            self.start_master(f"master-{number + 1}")
        for number in range(servers):
            self.start_server(f"server-{number + 1}")

    def coordination(self) -> MemoryCoordination:
        def lost(name: str, paths: tuple[str, ...]) -> Fault | None:
            return Fault.FAIL_BEFORE if self.is_coordination_away else None

        return MemoryCoordination(self.nodes, self.clock, faults=lost)

    def start_master(self, name: str) -> None:
        self.masters[name] = MasterProcess(
            self.coordination(),
            self.directory / name,
            self.directory / "root",
            settings=self.settings,
            master_settings=self.master_settings,
        )

    def start_server(self, name: str) -> None:
        coordination = self.coordination()
        clock = WrongClock(self.hours_ahead.get(name, 0.0))

        def metadata(server: str) -> RemoteMetadata:
            return RemoteMetadata(coordination, clock, server=server, masters=self._list.addresses, new_id=new_id)

        server = self.servers[name] = TabletServer(
            files=FullFiles(self.directory / "root", lambda: name in self.full),
            coordination=coordination,
            metadata=metadata,
            send=self._send,
            clock=clock,
            settings=self.settings,
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

    @property
    def addresses(self) -> list[str]:
        return [master.address for master in self.masters.values()]

    def connect(self) -> ebla.Database:
        return ebla.connect(self.addresses, timeout_seconds=20.0)

    def __enter__(self) -> SmallCluster:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in [*self.servers]:
            self.stop_server(name)
        for master in self.masters.values():
            master.close()
        for channel in self._channels.values():
            channel.close()
