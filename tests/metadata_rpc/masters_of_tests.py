"""Several masters' METADATA in one process, each behind an RPC server of its own, with a disk of its own."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import TracebackType

from ebla.clock import SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.metadata_rpc.calls import METADATA_METHODS, AskMetadata, KeepTransaction, Tell
from ebla.metadata_rpc.kept_metadata import KeptMetadata
from ebla.metadata_rpc.remote_metadata import RemoteMetadata
from ebla.retry import Retries
from ebla.rpc.server import RpcServer
from ebla.storage.files.local_files import LocalFiles

RETRIES = Retries(40, 0.05)


def new_id() -> str:
    return str(uuid.uuid4())


class MastersOfTests:
    """`count` masters; any of them can be stopped and started again."""

    def __init__(self, directory: Path, count: int) -> None:
        self.store = MemoryStore()
        self.clock = SystemClock()
        self.names = [f"m{number}" for number in range(count)]
        self.addresses: dict[str, str] = {}
        self.kept: dict[str, KeptMetadata] = {}
        self.servers: dict[str, RpcServer] = {}
        self.remotes: list[RemoteMetadata] = []
        self._directory = directory
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        kept = KeptMetadata(
            MemoryCoordination(self.store, self.clock),
            LocalFiles(self._directory / name),
            self.clock,
            own=name,
            masters=lambda: tuple(self.names),
            address_of=self.addresses.get,
            new_id=new_id,
            retries=RETRIES,
        )
        handlers = {
            Tell: lambda request, caller: kept.told(request),
            KeepTransaction: lambda request, caller: kept.keep(request),
            AskMetadata: lambda request, caller: kept.asked(request),
        }
        server = RpcServer(METADATA_METHODS, handlers, name=name)
        self.addresses[name] = server.address
        self.kept[name], self.servers[name] = kept, server
        kept.start()

    def stop(self, name: str) -> None:
        self.servers.pop(name).close(grace_seconds=0.2)
        self.kept.pop(name).close()

    def remote(self, server: str = "A", through: str | None = None) -> RemoteMetadata:
        """METADATA as a tablet server sees it, through all masters, or through one."""
        remote = RemoteMetadata(
            MemoryCoordination(self.store, self.clock),
            self.clock,
            server=server,
            masters=lambda: [*self.addresses.values()] if through is None else [self.addresses[through]],
            new_id=new_id,
            retries=RETRIES,
        )
        self.remotes.append(remote)
        return remote

    def __enter__(self) -> MastersOfTests:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for remote in self.remotes:
            remote.close()
        for name in [*self.servers]:
            self.stop(name)
