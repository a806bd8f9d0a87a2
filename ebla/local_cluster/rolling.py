"""A rolling restart: the processes of a cluster one after the other, while its clients are served.

    obstacles? --none--> tablet servers, one by one --> masters that follow --> the master that leads
                          |
                          asked to stop: flushes, others lead --> ended --> started again --> settled, then the next

*Settled*: every tablet is served, none is on its way, and every replica that was in sync before is so again. What does
not settle in time ends the restart there; what was restarted by then stays as it is. ZooKeeper is left alone: of one
server there is nothing to roll.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ebla.clock import SystemClock
from ebla.coordination.address import open_coordination
from ebla.coordination.lease import decode_lease
from ebla.errors import EblaError, RequestError, TimedOut
from ebla.local_cluster.administrator import kept_token
from ebla.local_cluster.cluster_file import ClusterFile, ClusterProcess, as_it_runs, is_running, read_cluster
from ebla.local_cluster.local_cluster import describe, start
from ebla.local_cluster.stopping import stop_processes
from ebla.master_server.leadership import LEASE
from ebla.metadata.values.serving import UNLOADED

__all__ = ["pauses", "restart_rolling", "unsettled"]

SETTLE_SECONDS = 120.0
# So long it is waited before the first one for tablets that are on their way.
REST_SECONDS = 20.0
_POLL_SECONDS = 0.1


def restart_rolling(
    directory: Path, *, tell: Callable[[str], None], accept_pauses: bool = False, log_format: str = "text"
) -> None:
    """Restart all processes of the cluster in a directory, one at a time; `tell` is told of each step.

    `RequestError` if something is not as it should be before it begins or, unless `accept_pauses`, if tablets could not
    be read or written while one of the servers is away.
    """
    directory = directory.absolute()
    cluster, token = read_cluster(directory), kept_token(directory)
    for process in map(as_it_runs, cluster.processes):
        if not is_running(process):
            raise RequestError(
                f"the {process.role} in {process.data} does not run: `ebla up --data {directory}` starts it again; "
                "then restart"
            )
    try:
        _wait_until_settled(cluster, token, {}, REST_SECONDS)
    except TimedOut as error:
        raise RequestError(f"nothing was restarted: {error}") from None
    before = describe(cluster, token=token)
    for obstacle in [] if accept_pauses else pauses(before):
        raise RequestError(f"nothing was restarted: {obstacle}")
    counts = in_sync_counts(before)
    servers, masters = cluster.of("tablet-server"), _leader_last(cluster)
    for number, process in enumerate([*servers, *masters], 1):
        step = f"{number} of {len(servers) + len(masters)}: {process.role} {process.uuid}"
        tell(f"{step} stops")
        for killed in stop_processes([as_it_runs(process)]):
            tell(f"killed: {killed.role} {killed.uuid} did not stop in time")
        cluster = start(
            directory,
            servers=len(servers),
            masters=len(masters),
            port=None,
            zookeeper=False,
            log_format=log_format,
        )
        _wait_until_settled(cluster, token, counts, SETTLE_SECONDS)
        pid = next(one.pid for one in cluster.processes if one.uuid == process.uuid)
        tell(f"{step} runs again, pid {pid}; all tablets are served and in sync")


def in_sync_counts(found: Mapping[str, Any]) -> dict[str, int]:
    """Return how many replicas of every tablet are in sync."""
    return {tablet["id"]: len(tablet["in_sync"]) for _, tablet in _tablets(found)}


def pauses(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what could not be read or written while one of the tablet servers is away, a sentence each."""
    if len(found["servers"]) == 1:
        yield "the cluster has one tablet server, and nothing can be read or written while that is away"
    tight = {
        name: tablet
        for name, tablet in _tablets(found)
        if tablet["wanted"] > 1 and len(tablet["in_sync"]) <= tablet["needed"]
    }
    for name, tablet in tight.items():
        yield (
            f"table {name} cannot be written while a server is away, for its tablets need {tablet['needed']} replicas "
            f"in sync and have {len(tablet['in_sync'])}: start more servers, or have more replicas (`ebla alter {name} "
            "--replicas 3`), or accept that writers wait (--accept-pauses)"
        )


def unsettled(found: Mapping[str, Any], counts: Mapping[str, int]) -> Iterator[str]:
    """Yield what is not as it should be; `counts` says how many replicas were in sync before, by tablet."""
    for uuid, server in found["servers"].items():
        if not server["is_alive"]:
            yield f"server {uuid} at {server['address']} was not heard for {server['silent_seconds']:.0f} s"
    for name, tablet in _tablets(found):
        if not tablet["is_served"] and tablet["state"] != UNLOADED:
            yield f"tablet {tablet['id']} of table {name} is not served"
        elif tablet["target"] is not None:
            yield f"tablet {tablet['id']} of table {name} is on its way to another server"
        elif tablet["wanted"] > 1 and len(tablet["in_sync"]) < max(
            counts.get(tablet["id"], 0), len(tablet["replicas"])
        ):
            yield f"tablet {tablet['id']} of table {name} has replicas that are not in sync"


def _tablets(found: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, table in found["tables"].items():
        for tablet in table["tablets"]:
            yield name, tablet


def _wait_until_settled(
    cluster: ClusterFile, token: str | None, counts: Mapping[str, int], timeout_seconds: float
) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            told = next(unsettled(describe(cluster, token=token), counts), None)
        except EblaError as error:
            told = str(error)
        if told is None:
            return
        if time.monotonic() > deadline:
            raise TimedOut(f"{told}, after {timeout_seconds:.0f} s: see `ebla status`; then restart again")
        time.sleep(_POLL_SECONDS)


def _leader_last(cluster: ClusterFile) -> list[ClusterProcess]:
    """Return the masters, the one that leads behind the others: so leadership passes once or twice, not each time."""
    with open_coordination(cluster.coordination, SystemClock()) as coordination:
        node = coordination.read(LEASE)
    leader = "" if node is None else decode_lease(LEASE, node.value).owner
    return sorted(cluster.of("master"), key=lambda process: process.uuid == leader)
