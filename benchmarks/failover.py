"""How long clients wait when the server of a leader is killed: three servers, one master.

Each round kills the process that leads the table (`kill -9`), and times one put and one get, begun at once, as a client
makes them by default: they are tried again until another server leads. Then the server is started again, and the next
round begins when all replicas are in sync. A lease is 3 s, and another leader is chosen when it is over: of three
replicas one that has everything; where there is one, a server that has read the log which the dead one left.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import ebla
from benchmarks.harness import Options, check, in_threads, scratch, timed
from benchmarks.report import Comparison, Figure, Report, under
from benchmarks.rpc import SCHEMA
from ebla.local_cluster import local_cluster
from ebla.local_cluster.cluster_file import ClusterFile

SETTLE_SECONDS = 60.0


def run(options: Options) -> Report:
    """Measure."""
    lines = []
    for replicas, goal_seconds in ((3, 5), (1, 10)):
        rounds = 5 if options.quick else 20
        puts, gets = _waits(options, replicas, rounds if replicas == 3 else rounds // 2)
        of = "three replicas" if replicas == 3 else "one replica"
        for kind, seconds in (("put", puts), ("get", gets)):
            median, longest = _seconds(statistics.median(seconds)), _seconds(max(seconds))
            measure = f"{kind} that was begun at the kill, {of}"
            lines.append(Comparison(f"{measure}, median of {len(seconds)}", median, goal=under(goal_seconds, "s")))
            lines.append(Comparison(f"{measure}, longest", longest))
    return Report("failover", "kill -9 of the leader's server; three servers and a master on one host", lines)


def _waits(options: Options, replicas: int, rounds: int) -> tuple[list[float], list[float]]:
    puts, gets = [], []
    with scratch(options) as root:
        directory = root / "cluster"
        cluster = local_cluster.start(directory, servers=3, masters=1, port=None, zookeeper=False)
        try:
            with ebla.connect(cluster.address, timeout_seconds=60.0) as db:
                table = db.create_table("t", SCHEMA, replicas=replicas)
                table.put(_row(0))
                for number in range(1, rounds + 1):
                    _kill_leader(cluster)
                    put, get = _both(table, number)
                    puts.append(put)
                    gets.append(get)
                    cluster = local_cluster.start(directory, servers=3, masters=1, port=None, zookeeper=False)
                    _wait_in_sync(cluster, replicas)
                check([row["a"] for row in table.scan()], list(range(rounds + 1)), "the rows that were acknowledged")
        finally:
            local_cluster.stop(directory)
    return puts, gets


def _row(number: int) -> dict[str, Any]:
    return {"k": number, "a": number, "b": 0.5, "s": "value"}


def _seconds(seconds: float) -> Figure:
    return Figure(seconds, "s")


def _both(table: ebla.Table, number: int) -> tuple[float, float]:
    """Return how long a put and a get of the row before take, both begun now."""
    took: dict[str, float] = {}

    def one(kinds: Any) -> None:
        for kind in kinds:
            if kind == "put":
                took[kind], _ = timed(lambda: table.put(_row(number)))
            else:
                took[kind], found = timed(lambda: table.get(number - 1))
                check(found is not None and found["a"], number - 1, "the row of the round before")

    in_threads(one, [["put"], ["get"]])
    return took["put"], took["get"]


def _tablets(cluster: ClusterFile) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = local_cluster.describe(cluster)["tables"]["t"]["tablets"]
    return found


def _kill_leader(cluster: ClusterFile) -> None:
    leader = _tablets(cluster)[0]["leader"]
    (process,) = [one for one in cluster.processes if one.uuid == leader]
    os.kill(process.pid, signal.SIGKILL)


def _wait_in_sync(cluster: ClusterFile, replicas: int) -> None:
    ends_at = time.monotonic() + SETTLE_SECONDS
    while any((replicas > 1 and len(one["in_sync"]) < replicas) or not one["is_served"] for one in _tablets(cluster)):
        if time.monotonic() > ends_at:
            raise TimeoutError("the replicas are not in sync again")
        time.sleep(0.2)


if __name__ == "__main__":
    raise SystemExit(f"python -m benchmarks {Path(__file__).stem}")
