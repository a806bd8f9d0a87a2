"""``DIR/cluster.json``: the processes of a cluster on one host, for `status`, `down`, `ebla.connect` and scripts.

    {"address": "127.0.0.1:7070", "root": ..., "coordination": ...,
     "processes": [{"role": "master", "uuid": ..., "address": ..., "data": ..., "pid": 4711}, ...]}

It is replaced as a whole, and kept as ``cluster.last.json`` when the cluster is stopped. A process is that of the file
only if its command line names its data directory: the number of one that ended may be another's by now.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import msgspec

from ebla.errors import RequestError, StoreNotFound
from ebla.rpc.metrics_port import ADDRESS_FILE
from ebla.service.cluster_place import is_cluster_directory, is_down

__all__ = [
    "COORDINATION",
    "FILE",
    "ZOOKEEPER",
    "ClusterFile",
    "ClusterProcess",
    "as_it_runs",
    "had_zookeeper",
    "is_running",
    "read_cluster",
    "read_last",
    "remove_cluster",
    "write_cluster",
]

FILE = "cluster.json"
LAST = "cluster.last.json"
ZOOKEEPER = "zookeeper"  # the directory of one of its own
COORDINATION = "coordination.sqlite"  # of the root, if there is no ZooKeeper
LOCK = "LOCK"  # of a process's own directory: its number is in it


class ClusterProcess(msgspec.Struct, frozen=True):
    """One process: what it is, who, where, with which directory, and its number."""

    role: str  # "master", "tablet-server" or "zookeeper"
    uuid: str
    address: str
    data: str
    pid: int
    metrics: str = ""  # where it tells them to Prometheus: host:port


class ClusterFile(msgspec.Struct, frozen=True):
    """The cluster: where to connect to, where its data is, and its processes in the order of their start."""

    address: str
    root: str
    coordination: str
    processes: tuple[ClusterProcess, ...]
    auth: bool = False  # whether tokens are wanted
    tls_ca: str | None = None  # the certificate of its authority, if connections are encrypted

    def of(self, role: str) -> list[ClusterProcess]:
        """Return the processes of a role."""
        return [process for process in self.processes if process.role == role]

    @property
    def masters(self) -> list[str]:
        """Where the masters are."""
        return [process.address for process in self.of("master")]


def read_cluster(directory: Path) -> ClusterFile:
    """Return what the file of a directory says; `Unavailable` if it is down, `StoreNotFound` if there is no cluster."""
    file = directory / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=ClusterFile)
    except FileNotFoundError:
        if is_cluster_directory(directory):
            raise is_down(directory) from None
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
    """Take the file away: nothing of it runs any more. What it said is kept for the next start."""
    (directory / FILE).replace(directory / LAST)


def read_last(directory: Path) -> ClusterFile | None:
    """Return what the file said when the cluster was up last; None if nothing is known."""
    for name in (FILE, LAST):
        try:
            return msgspec.json.decode((directory / name).read_bytes(), type=ClusterFile)
        except (OSError, msgspec.MsgspecError):
            continue
    return None


def had_zookeeper(directory: Path) -> bool | None:
    """Tell whether the cluster of a directory is coordinated by a ZooKeeper of its own; None if there was none yet.

    Where it never came to be up, what is there tells.
    """
    last = read_last(directory)
    if last is not None:
        return bool(last.of("zookeeper"))
    if (directory / "root" / COORDINATION).exists():
        return False
    return True if (directory / ZOOKEEPER / "data").is_dir() else None


def as_it_runs(process: ClusterProcess) -> ClusterProcess:
    """Return a process of the file with the number that it has now, if somebody else started it again."""
    if is_running(process):
        return process
    data = Path(process.data)
    try:
        again = msgspec.structs.replace(process, pid=int((data / LOCK).read_text()))
        if not is_running(again):
            return process
        return msgspec.structs.replace(again, metrics=(data / ADDRESS_FILE).read_text().strip())
    except (OSError, ValueError):
        return process


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
    return state != b"Z" and (process.data.encode() in command or _is_given(process, command))


def _is_given(process: ClusterProcess, command: bytes) -> bool:
    """Tell whether the directory of a process is the one that a command line names, from where it was started."""
    words = command.split(b"\0")
    given = [after for before, after in pairwise(words) if before == b"--data"]
    try:
        place = Path(f"/proc/{process.pid}/cwd").readlink()
        return any((place / os.fsdecode(one)).resolve() == Path(process.data).resolve() for one in given)
    except OSError:
        return False


def _answers(pid: int) -> bool:
    """Tell whether there is a process of that number, where nothing more can be asked of it."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
