"""``DIR/cluster.json``: the processes of a cluster on one host, for `status`, `down`, `ebla.connect` and scripts.

    {"address": "127.0.0.1:7070", "root": ..., "coordination": ...,
     "processes": [{"role": "master", "uuid": ..., "address": ..., "data": ..., "pid": 4711}, ...]}

It is replaced as a whole. A process is that of the file only if its command line names its data directory: the number
of one that ended may be another's by now.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ebla.errors import RequestError, StoreNotFound

__all__ = ["FILE", "ClusterFile", "ClusterProcess", "is_running", "read_cluster", "remove_cluster", "write_cluster"]

FILE = "cluster.json"


class ClusterProcess(msgspec.Struct, frozen=True):
    """One process: what it is, who, where, with which directory, and its number."""

    role: str  # "master", "tablet-server" or "zookeeper"
    uuid: str
    address: str
    data: str
    pid: int


class ClusterFile(msgspec.Struct, frozen=True):
    """The cluster: where to connect to, where its data is, and its processes in the order of their start."""

    address: str
    root: str
    coordination: str
    processes: tuple[ClusterProcess, ...]

    def of(self, role: str) -> list[ClusterProcess]:
        """Return the processes of a role."""
        return [process for process in self.processes if process.role == role]

    @property
    def masters(self) -> list[str]:
        """Where the masters are."""
        return [process.address for process in self.of("master")]


def read_cluster(directory: Path) -> ClusterFile:
    """Return what the file of a directory says; `StoreNotFound` if there is none."""
    file = directory / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=ClusterFile)
    except FileNotFoundError:
        raise StoreNotFound(
            f"there is no cluster up in {directory}: start one with `ebla up --data {directory}`"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise RequestError(f"{file} cannot be read: {error}: remove it if no process of the cluster runs") from None


def write_cluster(directory: Path, cluster: ClusterFile) -> None:
    """Replace the file."""
    new = directory / f"{FILE}.new"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(cluster), indent=2) + b"\n")
    new.replace(directory / FILE)


def remove_cluster(directory: Path) -> None:
    """Take the file away: nothing of it runs any more."""
    (directory / FILE).unlink(missing_ok=True)


def is_running(process: ClusterProcess) -> bool:
    """Tell whether a process runs, and is the one of the file."""
    try:
        os.kill(process.pid, 0)
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        state = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return not Path("/proc/self").exists() and _answers(process.pid)
    except OSError:
        return False
    return state != b"Z" and process.data.encode() in command


def _answers(pid: int) -> bool:
    """Tell whether there is a process of that number, where nothing more can be asked of it."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
