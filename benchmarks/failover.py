"""How long clients wait when the server of a leader is killed: three servers, one master, a table with three replicas.

Each round kills the process that leads the table (`kill -9`), and times one put and one get, begun at once, as a client
makes them by default: they are tried again until another replica leads. Then the server is started again, and the next
round begins when all three replicas are in sync. A lease is 3 s, and another leader is chosen when it is over.
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
    rounds = 5 if options.quick else 20
    puts, gets = [], []
    with scratch(options) as root:
        directory = root / "cluster"
        cluster = local_cluster.start(directory, servers=3, masters=1, port=None, zookeeper=False)
        try:
            with ebla.connect(cluster.address, timeout_seconds=60.0) as db:
                table = db.create_table("t", SCHEMA, replicas=3)
                table.put(_row(0))
                for number in range(1, rounds + 1):
                    _kill_leader(cluster)
                    put, get = _both(table, number)
                    puts.append(put)
                    gets.append(get)
                    cluster = local_cluster.start(directory, servers=3, masters=1, port=None, zookeeper=False)
                    _wait_in_sync(cluster)
                check([row["a"] for row in table.scan()], list(range(rounds + 1)), "the rows that were acknowledged")
        finally:
            local_cluster.stop(directory)
    return Report(
        "failover",
        f"kill -9 of the leader's server, {rounds} times; three replicas, one host",
        [
            Comparison("put that was begun at the kill, median", _seconds(statistics.median(puts)), goal=under(5, "s")),
            Comparison("put that was begun at the kill, longest", _seconds(max(puts))),
            Comparison("get that was begun at the kill, median", _seconds(statistics.median(gets)), goal=under(5, "s")),
            Comparison("get that was begun at the kill, longest", _seconds(max(gets))),
        ],
    )


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


def _wait_in_sync(cluster: ClusterFile) -> None:
    ends_at = time.monotonic() + SETTLE_SECONDS
    while any(len(one["in_sync"]) < 3 or not one["is_served"] for one in _tablets(cluster)):
        if time.monotonic() > ends_at:
            raise TimeoutError("the replicas are not in sync again")
        time.sleep(0.2)


if __name__ == "__main__":
    raise SystemExit(f"python -m benchmarks {Path(__file__).stem}")
