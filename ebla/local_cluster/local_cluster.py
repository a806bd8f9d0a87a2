"""Up and down: all processes of a cluster on one host.

    DIR/root            fragments and logs, which all servers see; coordination.sqlite
    DIR/master-1 ...    a master's own files: who it is, its METADATA        DIR/master-1.log   what it says
    DIR/server-1 ...    a tablet server's own                                DIR/server-1.log
    DIR/cluster.json    the processes; cluster.last.json when it is down     cluster_file.py
    DIR/certs           certificates, with TLS                               own_certificates.py

`start` returns when the cluster serves: a master leads, and all tablet servers have reported to it. If that fails, what
was started is stopped again. Where some processes of a cluster run, it starts the others. `stop` has tablet servers
flush and hand over first, then stops masters, then ZooKeeper; what does not end in time is killed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

import ebla
from ebla.client.database import service_of
from ebla.errors import EblaError, RequestError, StoreNotFound, TimedOut, Unavailable
from ebla.local_cluster.administrator import kept_token, make_administrator
from ebla.local_cluster.cluster_file import (
    COORDINATION,
    ZOOKEEPER,
    ClusterFile,
    ClusterProcess,
    as_it_runs,
    had_zookeeper,
    is_running,
    read_cluster,
    read_last,
    remove_cluster,
    write_cluster,
)
from ebla.local_cluster.launching import Launched, PortTaken, launch
from ebla.local_cluster.own_certificates import authority_of, certificate_options
from ebla.local_cluster.stopping import stop_processes
from ebla.local_cluster.zookeeper import start_zookeeper
from ebla.service.requests import DescribeStore

__all__ = ["PORT", "describe", "running", "start", "stop"]

PORT = 7070
HOST = "127.0.0.1"
SERVING_SECONDS = 60.0
_POLL_SECONDS = 0.05


def start(
    directory: Path,
    *,
    servers: int | None,
    masters: int | None,
    port: int | None,
    zookeeper: bool,
    auth: bool = False,
    tls: bool = False,
    log_format: str = "text",
) -> ClusterFile:
    """Start a cluster in a directory, with what is there already, and return it when it serves.

    Without numbers there are as many masters and servers as there were before, or one of each. `port` is that of the
    first master; without it, the one that it had before, or 7070, or the next one that is free. Of a cluster of which
    some processes run, the others are started again as they were.
    With `auth` there are users: the token of one who may do everything is kept in the directory. With `tls`,
    connections are encrypted, by certificates that are made there. Both stay as they were before, and so does the
    ZooKeeper, which no cluster gets later: it would know nothing of what there is. Processes write their logs as text
    or, with `log_format` json, as a line of JSON for each event.
    """
    directory = directory.absolute()
    known = _count(directory, "master")
    masters = max(1, known) if masters is None else masters
    servers = max(1, _count(directory, "server")) if servers is None else servers
    if servers < 1 or masters < 1:
        raise RequestError("a cluster has at least one master and one tablet server")
    if masters * 2 <= known:
        raise RequestError(
            f"the cluster in {directory} has {known} masters, and changes nothing without a majority of them: start at "
            f"least {known // 2 + 1}"
        )
    zookeeper = _has_zookeeper(directory, zookeeper)
    if running(directory):
        return _start_missing(directory, masters, servers, log_format)
    directory.mkdir(parents=True, exist_ok=True)
    root = directory / "root"
    root.mkdir(exist_ok=True)
    started: list[ClusterProcess] = []
    try:
        coordination = str(root / COORDINATION)
        if zookeeper:
            started.append(start_zookeeper(directory / ZOOKEEPER, _free_port()))
            coordination = f"zk://{started[0].address}/ebla"
        common = ["--root", str(root), "--coordination", coordination, "--host", HOST]
        auth = auth or kept_token(directory) is not None  # as it was before
        if auth:
            make_administrator(coordination, directory)
            common.append("--auth")
        tls = tls or authority_of(directory) is not None  # as it was before
        ports = _free_ports(_port_before(directory)) if port is None else iter([port])
        for role, name, count in (("master", "master", masters), ("tablet-server", "server", servers)):
            launched = []
            for number in range(count):
                own = ["--port", str(next(ports) if role == "master" and not number else 0)]
                data = directory / f"{name}-{number + 1}"
                secured = certificate_options(directory, data) if tls else []
                launched.append(launch(role, data, [*common, *secured, *own], log_format=log_format))
            problem: EblaError | None = None
            for one in launched:
                try:
                    secured = certificate_options(directory, one.data) if tls else []
                    started.append(_waited_for(one, [*common, *secured], ports, log_format))
                except EblaError as error:
                    problem = problem or error
                    started.append(ClusterProcess(role, "", "", str(one.data), one.process.pid))
            if problem is not None:
                raise problem
        address = next(process.address for process in started if process.role == "master")
        tls_ca = authority_of(directory)
        cluster = ClusterFile(
            address, str(root), coordination, tuple(started), auth, None if tls_ca is None else str(tls_ca)
        )
        _wait_until_served(cluster, servers, kept_token(directory))
    except BaseException:
        stop_processes(started)
        raise
    write_cluster(directory, cluster)
    return cluster


def stop(directory: Path) -> list[ClusterProcess]:
    """Stop the cluster of a directory, and return the processes that had to be killed."""
    directory = directory.absolute()
    cluster = read_cluster(directory)
    killed = stop_processes([as_it_runs(process) for process in cluster.processes])
    remove_cluster(directory)
    return killed


def describe(cluster: ClusterFile, timeout_seconds: float = 10.0, token: str | None = None) -> dict[str, Any]:
    """Return what the leading master knows of the cluster."""
    with ebla.connect(cluster.masters, timeout_seconds=timeout_seconds, token=token, tls_ca=cluster.tls_ca) as db:
        return service_of(db).carry_out(DescribeStore())


def _has_zookeeper(directory: Path, is_wanted: bool) -> bool:
    """Return whether a cluster is coordinated by ZooKeeper: as it was before, else as is wanted."""
    before = had_zookeeper(directory)
    if is_wanted and before is False:
        raise RequestError(
            f"the cluster in {directory} is coordinated by {directory / 'root' / COORDINATION}, and ZooKeeper would "
            "know nothing of its tables: start it without --zookeeper, or a new one in another directory"
        )
    return is_wanted if before is None else before


def _count(directory: Path, name: str) -> int:
    """Return how many processes of a kind were started in a directory before."""
    return sum(path.is_dir() for path in directory.glob(f"{name}-[0-9]*"))


def running(directory: Path) -> list[ClusterProcess]:
    """Return the processes of the cluster of a directory that run, as they run now."""
    try:
        there = read_cluster(directory.absolute())
    except (StoreNotFound, Unavailable):
        return []
    return [process for process in map(as_it_runs, there.processes) if is_running(process)]


def _start_missing(directory: Path, masters: int, servers: int, log_format: str) -> ClusterFile:
    """Start the processes on record that do not run, as they were started before."""
    there = read_cluster(directory)
    processes = [as_it_runs(process) for process in there.processes]
    missing = [number for number, process in enumerate(processes) if not is_running(process)]
    if not missing or (masters, servers) != (len(there.of("master")), len(there.of("tablet-server"))):
        raise RequestError(
            f"{len(processes) - len(missing)} processes of the cluster in {directory} run already: connect to "
            f"{there.address}, or stop them with `ebla down --data {directory}`"
        )
    common = ["--root", there.root, "--coordination", there.coordination, "--host", HOST]
    common += ["--auth"] if there.auth else []
    started: list[ClusterProcess] = []
    try:
        for role in ("zookeeper", "master", "tablet-server"):
            launched: list[tuple[int, Launched, list[str]]] = []
            for number in missing:
                process = processes[number]
                data, port = Path(process.data), int(process.address.rpartition(":")[2])
                if process.role != role:
                    continue
                if role == "zookeeper":
                    processes[number] = start_zookeeper(data, port)
                    started.append(processes[number])
                    continue
                own = [*common, *(certificate_options(directory, data) if there.tls_ca is not None else [])]
                one = launch(role, data, [*own, "--port", str(port)], log_format=log_format)
                launched.append((number, one, own))
                started.append(msgspec.structs.replace(process, pid=one.process.pid))
            for number, one, own in launched:
                processes[number] = _waited_for(one, own, iter([0]), log_format)  # any port, if another has its own
                started.append(processes[number])
        address = next(process.address for process in processes if process.role == "master")
        cluster = msgspec.structs.replace(there, address=address, processes=tuple(processes))
        _wait_until_served(cluster, servers, kept_token(directory))
    except BaseException:
        stop_processes(started)
        raise
    write_cluster(directory, cluster)
    return cluster


def _port_before(directory: Path) -> int:
    """Return the port that the first master had when the cluster was up last."""
    last = read_last(directory)
    try:
        return PORT if last is None else int(last.address.rpartition(":")[2])
    except ValueError:
        return PORT


def _wait_until_served(cluster: ClusterFile, servers: int, token: str | None) -> None:
    deadline = time.monotonic() + SERVING_SECONDS
    wanted = {process.uuid for process in cluster.of("tablet-server")}
    told: object = "no master leads"
    while time.monotonic() < deadline:
        for process in cluster.processes:
            if not is_running(process):
                raise Unavailable(f"the {process.role} in {process.data} ended: see {process.data}.log")
        try:
            found = describe(cluster, timeout_seconds=5.0, token=token)
        except EblaError as error:
            told = error
        else:
            alive = {uuid for uuid, server in found["servers"].items() if server["is_alive"]}
            away = [
                tablet
                for table in found["tables"].values()
                for tablet in table["tablets"]
                if not tablet["is_served"] and tablet["state"] != "unloaded"
            ]
            if wanted <= alive and not away:
                return
            told = (
                f"{len(alive & wanted)} of {servers} tablet servers have reported, {len(away)} tablets are not served"
            )
        time.sleep(_POLL_SECONDS)
    raise TimedOut(f"the cluster does not serve after {SERVING_SECONDS:.0f} s: {told}")


def _waited_for(
    launched: Launched, common: Sequence[str], ports: Iterator[int], log_format: str = "text"
) -> ClusterProcess:
    """Return a process that serves; one whose port was taken while it started is started on the next one."""
    while True:
        try:
            return launched.wait()
        except PortTaken:
            port = next(ports, None)
            if port is None:
                raise
            launched = launch(launched.role, launched.data, [*common, "--port", str(port)], log_format=log_format)


def _free_ports(first: int = PORT) -> Iterator[int]:
    """Yield those that are free of a port, 7070 and the next ones."""
    for port in dict.fromkeys((first, *range(PORT, PORT + 100))):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((HOST, port))
            except OSError:
                continue
        yield port
    raise Unavailable(f"no port from {PORT} to {PORT + 99} is free: choose one with --port")


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
