"""How many calls a server has answered, of which kind, how fast, and how large they were: for metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

from ebla.service.prometheus import Sample, family

__all__ = ["BUCKETS_SECONDS", "CallCounts"]

BUCKETS_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class _OfMethod:
    """The numbers of one method."""

    __slots__ = ("asked_bytes", "buckets", "failed", "seconds", "told_bytes")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_SECONDS) + 1)
        self.seconds = 0.0
        self.failed = 0
        self.asked_bytes = 0
        self.told_bytes = 0

    def copy(self) -> _OfMethod:
        made = _OfMethod()
        made.buckets, made.seconds, made.failed = list(self.buckets), self.seconds, self.failed
        made.asked_bytes, made.told_bytes = self.asked_bytes, self.told_bytes
        return made


class CallCounts:
    """The numbers of a server. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._methods: dict[str, _OfMethod] = {}  # guarded by _lock

    def note(self, method: str, seconds: float, asked_bytes: int, told_bytes: int, *, is_failed: bool) -> None:
        """Count a call that was answered; `seconds` are from its arrival to the answer."""
        with self._lock:
            counts = self._methods.get(method)
            if counts is None:
                counts = self._methods[method] = _OfMethod()
            counts.buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1
            counts.seconds += seconds
            counts.failed += is_failed
            counts.asked_bytes += asked_bytes
            counts.told_bytes += told_bytes

    def lines(self, streams_open: int) -> Iterator[str]:
        """Yield what Prometheus is told."""
        with self._lock:
            found = {name: one.copy() for name, one in sorted(self._methods.items())}
        samples: list[Sample] = []
        for name, one in found.items():
            total = 0
            for edge, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), one.buckets, strict=True):
                total += count
                samples.append(({"_suffix": "_bucket", "method": name, "le": edge}, total))
            samples.append(({"_suffix": "_sum", "method": name}, round(one.seconds, 6)))
            samples.append(({"_suffix": "_count", "method": name}, total))
        meaning = "Calls by method, and how long from their arrival to their answer."
        yield from family("rpc_seconds", meaning, samples, kind="histogram")
        for metric, field, meaning in (
            ("rpc_failed_total", "failed", "Calls that were answered with an error."),
            ("rpc_asked_bytes_total", "asked_bytes", "Bytes of calls."),
            ("rpc_told_bytes_total", "told_bytes", "Bytes of answers."),
        ):
            yield from family(metric, meaning, (({"method": name}, getattr(one, field)) for name, one in found.items()))
        yield from family("rpc_streams_open", "Clients and processes that are connected.", [({}, streams_open)])
