"""What the processes of a cluster are doing: their metrics read twice, and compared. For `ebla top`.

read_metrics(address) --> Reading      activity(before, after) --> Activity: processes, methods, tables, as rows
"""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ebla.service.prometheus import Labels, parsed

__all__ = ["Activity", "Reading", "activity", "read_all"]

READ_SECONDS = 5.0
METHODS_MAX = 10
# A call that took longer is slow; from here on it is a bucket of its own.
SLOW_SECONDS = "0.1"
# Calls that are answered when something happens: that they take long says nothing.
WAITING = ("NextEvents", "CarryOut")


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of a process at a moment of the steady clock; nothing, if it did not answer."""

    address: str
    at_seconds: float
    metrics: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """Return the sum of a metric."""
        return sum(self.metrics.get(name, {}).values())

    def of_methods(self, name: str) -> Counter[str]:
        """Return a metric by method; of a histogram, of all calls or of those that were quick enough."""
        found: Counter[str] = Counter()
        for labels, value in self.metrics.get(name, {}).items():
            named = dict(labels)
            if named.get("le", SLOW_SECONDS) == SLOW_SECONDS:
                found[named.get("method", "")] += int(value)
        return found


@dataclass(frozen=True, slots=True)
class Activity:
    """Rows for people: one for each process, each of the busiest methods, each table."""

    processes: list[dict[str, Any]]
    methods: list[dict[str, Any]]
    tables: list[dict[str, Any]]


def read_all(addresses: Sequence[str]) -> list[Reading]:
    """Read the metrics of processes, all at the same time; one that does not answer has none."""
    with ThreadPoolExecutor(max(1, len(addresses)), thread_name_prefix="ebla-top") as pool:
        return list(pool.map(_read, addresses))


def _read(address: str) -> Reading:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=READ_SECONDS) as reply:
            text = reply.read().decode("utf-8", errors="replace")
    except OSError:
        return Reading(address, time.monotonic())
    return Reading(address, time.monotonic(), parsed(text))


def activity(before: Sequence[Reading], after: Sequence[Reading]) -> Activity:
    """Return what was done between two readings of the same processes, by second, and what they have now."""
    calls: Counter[str] = Counter()
    slow: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    processes = []
    elapsed = 0.001
    for first, second in zip(before, after, strict=True):
        between = max(0.001, second.at_seconds - first.at_seconds)
        elapsed = max(elapsed, between)
        own = _difference(first, second, "ebla_rpc_seconds_count")
        own_slow = own - _difference(first, second, "ebla_rpc_seconds_bucket")
        for method in WAITING:
            own_slow.pop(method, None)
        calls, slow = calls + own, slow + own_slow
        seconds.update(_microseconds(first, second))
        processes.append(_row(first, second, between, sum(own.values()), sum(own_slow.values())))
    methods = [
        {
            "method": name,
            "requests/s": round(count / elapsed, 1),
            "slow/s": round(slow[name] / elapsed, 1),
            "mean ms": round(seconds[name] / count / 1_000, 2),
        }
        for name, count in calls.most_common(METHODS_MAX)
    ]
    return Activity(processes, methods, _tables(after))


def _row(first: Reading, second: Reading, between: float, calls: int, slow: int) -> dict[str, Any]:
    info = dict(next(iter(second.metrics.get("ebla_info", {})), ()))

    def rate(name: str) -> float:
        return max(0.0, second.value(name) - first.value(name)) / between

    is_server = info.get("role") == "tablet-server"
    return {
        "process": info.get("role", "does not answer"),
        "uuid": info.get("uuid", "")[:8],
        "metrics": second.address,
        "requests/s": round(calls / between, 1),
        "failed/s": round(rate("ebla_rpc_failed_total"), 1),
        "slow/s": round(slow / between, 1),
        "in KiB/s": round(rate("ebla_rpc_asked_bytes_total") / 1_024, 1),
        "out KiB/s": round(rate("ebla_rpc_told_bytes_total") / 1_024, 1),
        "commits/s": round(rate("ebla_commits_total"), 1) if is_server else None,
        "leads": int(second.value("ebla_tablets_led")) if is_server else None,
        "memory MiB": round(second.value("ebla_memory_bytes") / 2**20, 1) if is_server else None,
        "log MiB": round(second.value("ebla_log_bytes") / 2**20, 1) if is_server else None,
    }


def _tables(after: Sequence[Reading]) -> list[dict[str, Any]]:
    columns = {
        "tablets": "ebla_table_tablets",
        "memory MiB": "ebla_table_memory_bytes",
        "files": "ebla_table_fragments",
        "files MiB": "ebla_table_fragment_bytes",
    }
    found: dict[str, Counter[str]] = {}
    for reading in after:
        for column, metric in columns.items():
            for labels, value in reading.metrics.get(metric, {}).items():
                found.setdefault(dict(labels).get("table", ""), Counter())[column] += int(value)
    return [
        {"table": name, **{c: round(of[c] / 2**20, 1) if c.endswith("MiB") else of[c] for c in columns}}
        for name, of in sorted(found.items())
    ]


def _difference(first: Reading, second: Reading, name: str) -> Counter[str]:
    """Return by how much a metric of methods has grown; a process that was started again begins at 0."""
    before = first.of_methods(name) if _is_same(first, second) else Counter[str]()
    return second.of_methods(name) - before


def _microseconds(first: Reading, second: Reading) -> Counter[str]:
    found: Counter[str] = Counter()
    before = first.metrics.get("ebla_rpc_seconds_sum", {}) if _is_same(first, second) else {}
    for labels, value in second.metrics.get("ebla_rpc_seconds_sum", {}).items():
        found[dict(labels).get("method", "")] += int((value - before.get(labels, 0.0)) * 1e6)
    return found


def _is_same(first: Reading, second: Reading) -> bool:
    return sum(first.of_methods("ebla_rpc_seconds_count").values()) <= sum(
        second.of_methods("ebla_rpc_seconds_count").values()
    )
