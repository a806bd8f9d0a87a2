"""The data directory of a tablet server: who it is, which cluster it belongs to, how often it was started.

    DIR/server.json   {"server": "7c9e...", "cluster": "51bb...", "starts": 7}     replaced as a whole, and synced
    DIR/LOCK          held by the process that runs with this directory

The number of starts goes up, durably, before anything is done with it: so no log directory, and no report, is ever
mistaken for one of another run. Two directories with one uuid, as a copy makes them, are told apart by `owner`, which
names the lock file itself.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from ebla.errors import Corruption, RequestError, StoreError
from ebla.storage.files.files import FileLock
from ebla.storage.files.local_files import LocalFiles

__all__ = ["DataDirectory"]

_FILE = "server.json"
_LOCK = "LOCK"


class _Server(msgspec.Struct, frozen=True):
    server: str
    cluster: str
    starts: int


class DataDirectory:
    """The directory, locked. Made with the first start."""

    def __init__(self, path: Path, cluster: str, new_id: str) -> None:
        """Lock it, and become `new_id` if it is new; `RequestError` if it belongs to another cluster."""
        # Set once.
        self.path = path
        self._files = LocalFiles(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: FileLock = self._files.lock(_LOCK)
        except OSError as error:
            raise StoreError(
                f"the data directory {path} cannot be used: {error}: mend that, or choose another"
            ) from error
        try:
            self._server = self._read() or _Server(new_id, cluster, 0)
            if self._server.cluster != cluster:
                raise RequestError(
                    f"{path} belongs to the cluster {self._server.cluster}, and this is {cluster}: start the server "
                    "with the right one, or with an empty directory"
                )
        except BaseException:
            self._lock.release()
            raise

    @property
    def server(self) -> str:
        """The uuid of the server."""
        return self._server.server

    @property
    def owner(self) -> str:
        """What tells this directory from a copy of it, and its processes from those of another host."""
        status = os.stat(self.path / _LOCK)
        return f"{self.server}@{socket.gethostname()}:{status.st_dev}:{status.st_ino}"

    def next_start(self) -> int:
        """Count a start, durably, and return its number: none before had it."""
        self._server = msgspec.structs.replace(self._server, starts=self._server.starts + 1)
        try:
            self._write(msgspec.json.encode(self._server))
        except OSError as error:
            raise StoreError(f"{self.path / _FILE} cannot be written: {error}: mend that, then start again") from error
        return self._server.starts

    def _write(self, value: bytes) -> None:
        new = f"{_FILE}.new"
        if self._files.exists(new):
            self._files.delete(new)
        with self._files.create(new) as file:
            file.write(value)
            file.sync()
        self._files.replace(new, _FILE)
        self._files.sync_directory("")

    def release(self) -> None:
        """Let another process run with it."""
        self._lock.release()

    def _read(self) -> _Server | None:
        try:
            return msgspec.json.decode(self._files.read(_FILE), type=_Server)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise Corruption(str(self.path / _FILE), f"it does not say who the server is: {error}") from error
