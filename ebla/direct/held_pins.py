"""Keeping what jobs hold of stores that other processes may have open: pins by name, renewed until they are let go.

    begin   a pin of its own, with the files that are read by their names      until `end`
    share   one pin for all loads of a minute, which nobody ends               until no task has used it for a while
    kept    a task that reads renews the pin of its load
    renew   a pin that a stream finds again by its name                        until nobody has renewed it for long

A pin expires `HOLD_SECONDS` after it was last renewed. So one whose process was killed is gone soon, and nobody has to
look for it. One thread of each process renews what the process holds of stores, and one what it holds of clusters,
which may have to be waited for; they are not there before something is held.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ebla.client.database import service_of
from ebla.client.embedded.coordination_place import connect_at
from ebla.client.moments import time_of
from ebla.clock import COUNTER_BITS, SystemClock, microseconds_of
from ebla.direct.clusters import connected, remote_of
from ebla.errors import EblaError
from ebla.service.job_reads import HoldForJob
from ebla.tablet.garbage.pins import Pins

__all__ = ["Held", "begin", "end", "end_later", "kept", "new_name", "renew", "share"]

HOLD_SECONDS = 600.0
# A pin is renewed when this part of its time is over, and if that fails, after so many seconds again.
RENEW_SHARE = 4
RETRY_SECONDS = 10.0
# A process that ends waits so long for a cluster to let go of what it held: if nobody hears it, that expires.
END_SECONDS = 2.0
# All loads at txns of so many seconds share a pin.
SHARED_SECONDS = 60
# So much of the name of a table is in that of a pin.
NAME_LENGTH = 64

_log = logging.getLogger(__name__)
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Held:
    """A pin of a store, and until when it was held when this was made. A plain value that goes to other processes."""

    root: str
    name: str
    until_microseconds: int
    cluster: tuple[str, ...] = ()  # of a cluster: who is asked to hold it
    horizon_txn: int = 0  # of a cluster: how far compaction had been told to go when it was held

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew it, if nobody did."""
        return _clock.microseconds() >= _due(self.until_microseconds)


@contextlib.contextmanager
def _pins(root: str, *, is_lasting: bool = False) -> Iterator[Pins]:
    # Should the machine fail, most jobs are over, too.
    with connect_at(Path(root), _clock, is_lasting=is_lasting) as coordination:
        yield Pins(coordination, _clock)


def new_name(what: str, table: str) -> str:
    """Return a name for a pin of a job on a table, one that was never given out before."""
    return f"{what}-{table[:NAME_LENGTH]}-{uuid.uuid4().hex[:12]}"


def renew(root: str, name: str, txn: int, seconds: float, cluster: tuple[str, ...] = ()) -> None:
    """Hold a txn for so long by a pin that others may find again by its name, after a power failure as well."""
    if cluster:
        _hold_in(cluster, root, HoldForJob("renew", name, txn, seconds))
        return
    with _pins(root, is_lasting=True) as pins:
        pins.renew(name, txn, seconds)


def begin(
    root: str, what: str, table: str, txn: int, files: Collection[str] = (), cluster: tuple[str, ...] = ()
) -> Held:
    """Hold a txn, and files, for a job on a table; this process renews it until `end`, or its own end."""
    name = new_name(what, table)
    reader = f"{what} of {table} by process {os.getpid()} on {socket.gethostname()}"
    if cluster:
        held = _hold_in(cluster, root, HoldForJob("begin", name, txn, HOLD_SECONDS, reader, tuple(sorted(files))))
    else:
        with _pins(root) as pins:
            pin = pins.begin(name, txn, HOLD_SECONDS, reader, files)
        held = Held(root, name, pin.expires_microseconds or 0)
    _keeper_of(held).own(held)
    return held


def share(root: str, txn: int, cluster: tuple[str, ...] = ()) -> Held:
    """Hold a txn for a load that nobody sees the end of: until no task of it has run for a while."""
    span = SHARED_SECONDS * 1_000_000
    first = microseconds_of(txn) // span * span << COUNTER_BITS
    name = f"loads-{time_of(first):%Y%m%dT%H%M}"
    reader = "loads by Spark, renewed by their tasks"
    if cluster:
        return _hold_in(cluster, root, HoldForJob("renew", name, first, HOLD_SECONDS, reader))
    with _pins(root) as pins:
        pin = pins.renew(name, first, HOLD_SECONDS, reader)
    return Held(root, name, pin.expires_microseconds or 0)


def _hold_in(cluster: tuple[str, ...], root: str, request: HoldForJob) -> Held:
    told = service_of(connected(cluster)).carry_out(request)
    return Held(root, request.name, told.until_microseconds, cluster, told.horizon_txn)


def end(held: Held) -> None:
    """Let go of what this process began to hold. Doing it twice is fine."""
    if _keeper_of(held).disown(held):
        _release(held)


def end_later(held: Held) -> None:
    """Let go of it soon, without any wait or lock: for whoever is called while memory is being cleared."""
    _keeper_of(held).tell("end", held)


@contextlib.contextmanager
def kept(held: Held | None) -> Iterator[None]:
    """Renew a pin for as long as the block runs, if there is one and nobody lets go of it."""
    if held is None:
        yield
        return
    _keeper_of(held).keep(held)
    try:
        yield
    finally:
        _keeper_of(held).tell("drop", held)


def _due(until_microseconds: int) -> int:
    return until_microseconds - round(HOLD_SECONDS * 1e6 * (1 - 1 / RENEW_SHARE))


def _hurry(cluster: tuple[str, ...]) -> None:
    """Wait no longer than a process that ends should for the answers of a cluster."""
    with contextlib.suppress(EblaError):
        remote = remote_of(connected(cluster)) if cluster else None
        if remote is not None:
            remote.timeout_seconds = END_SECONDS


def _release(held: Held) -> bool:
    try:
        if held.cluster:
            service_of(connected(held.cluster)).carry_out(HoldForJob("release", held.name))
        else:
            with _pins(held.root) as pins:
                pins.release(held.name)
    except EblaError as error:
        _log.warning("the snapshot %s could not be released and stays until it expires: %s", held.name, error)
        return False
    return True


_Told: TypeAlias = tuple[Literal["keep", "drop", "end"], Held]


class _Keeper:
    """What this process holds of stores, or of clusters, and the thread that renews it."""

    def __init__(self) -> None:
        # The one queue that may be put to from anywhere, also by whoever is called in the middle of a `put`.
        self._told: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._own: set[Held] = set()
        self._thread: threading.Thread | None = None
        # Used by the thread alone.
        self._kept: Counter[Held] = Counter()
        self._due: dict[tuple[str, str], int] = {}
        self._unheard: set[tuple[str, ...]] = set()  # clusters that did not answer in this round

    def own(self, held: Held) -> None:
        """Renew a pin that this process has made until it is disowned."""
        with self._lock:
            self._own.add(held)
        self.keep(held)

    def disown(self, held: Held) -> bool:
        """Renew it no more; False if this process did not make it, or has disowned it."""
        with self._lock:
            if held not in self._own:
                return False
            self._own.discard(held)
        self.tell("drop", held)
        return True

    def keep(self, held: Held) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ebla-keep", daemon=True)
                self._thread.start()
        self.tell("keep", held)

    def tell(self, what: Literal["keep", "drop", "end"], held: Held) -> None:
        self._told.put((what, held))

    def end_all(self) -> None:
        """Let go of everything: the process ends."""
        unheard: set[tuple[str, ...]] = set()  # clusters that did not answer: they are not asked again
        for held in list(self._own):
            if not self.disown(held) or held.cluster in unheard:
                continue
            _hurry(held.cluster)
            if not _release(held) and held.cluster:
                unheard.add(held.cluster)

    def _run(self) -> None:
        while True:
            pause_seconds = self._renew()
            with contextlib.suppress(queue.Empty):
                what, held = self._told.get(timeout=pause_seconds)
                if what == "keep":
                    self._kept[held] += 1
                elif what == "drop":
                    self._drop(held)
                else:
                    end(held)

    def _drop(self, held: Held) -> None:
        self._kept[held] -= 1
        if self._kept[held] <= 0:
            del self._kept[held]

    def _renew(self) -> float | None:
        """Renew what is due; return after how many seconds something is due next, None if nothing is kept."""
        now = _clock.microseconds()
        # What nobody keeps just now is remembered while it is young: the next task may keep it again.
        self._due = {at: due for at, due in self._due.items() if due > now or any(at == _at(one) for one in self._kept)}
        soonest: int | None = None
        self._unheard.clear()
        for held in list(self._kept):
            due = max(self._due.get(_at(held), 0), _due(held.until_microseconds))
            if due <= now:
                due = self._renewed(held, now)
                self._due[_at(held)] = due
            soonest = due if soonest is None else min(soonest, due)
        return None if soonest is None else max(0.0, (soonest - _clock.microseconds()) / 1e6)

    def _renewed(self, held: Held, now: int) -> int:
        """Renew a pin; return when it is due again."""
        if held.cluster in self._unheard:
            return now + round(RETRY_SECONDS * 1e6)
        try:
            if not _extend(held):
                _log.warning("the snapshot %s was released: what its job reads may be gone soon", held.name)
        except Exception as error:  # whatever it is, the others are to be renewed
            _log.warning("the snapshot %s could not be renewed, will try again: %s", held.name, error)
            if held.cluster:
                self._unheard.add(held.cluster)
            return now + round(RETRY_SECONDS * 1e6)
        return _due(now + round(HOLD_SECONDS * 1e6))


def _extend(held: Held) -> bool:
    if held.cluster:
        told = service_of(connected(held.cluster)).carry_out(HoldForJob("extend", held.name, seconds=HOLD_SECONDS))
        return told.until_microseconds > 0
    with _pins(held.root) as pins:
        return pins.extend(held.name, HOLD_SECONDS)


def _at(held: Held) -> tuple[str, str]:
    return held.root, held.name


_keepers = {"stores": _Keeper(), "clusters": _Keeper()}


def _keeper_of(held: Held) -> _Keeper:
    return _keepers["clusters" if held.cluster else "stores"]


def _start_over() -> None:
    """Forget everything in a process that was forked: what the parent holds is for the parent to let go."""
    for kind in _keepers:
        _keepers[kind] = _Keeper()


def _end_all() -> None:
    for keeper in _keepers.values():
        keeper.end_all()


os.register_at_fork(after_in_child=_start_over)
atexit.register(_end_all)
