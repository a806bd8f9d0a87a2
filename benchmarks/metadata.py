"""METADATA changes: one after the other, from many threads, and many together, against the calls that they need.

A change of METADATA cannot be cheaper than what makes it last: one file written and synced, its directory synced, and
one compare-and-set in the coordination service; with three servers, three such files. And as only the last of them are
kept, for each that comes one has to go. These calls alone, with values of the same sizes, are the peer.

    one after the other    `commit`, one flush of one tablet each, by one thread
    64 threads             the same from 64 threads at once: what gathers goes into one transaction
    1,000 together         `commit_all`: requests that came together, as in a report of a tablet server

The table has 100 tablets. Both coordination services are on this machine: SQLite in the directory, and one ZooKeeper
server that syncs its log (from the jars that PySpark brings). Rounds are interleaved, and the best counts.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.report import Comparison, Report, at_least_ratio, rate, within_time
from ebla.clock import SystemClock
from ebla.coordination.service import CoordinationService
from ebla.coordination.sqlite import FILE_NAME, SqliteCoordination
from ebla.coordination.zookeeper import ZooKeeperCoordination
from ebla.metadata.server.group import MetadataGroup
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.changes import Change, Flush, FlushedTablet, TabletAt, TakeLog
from ebla.metadata.values.table_config import TableConfig, config_path, encode_config
from ebla.metadata.values.table_metadata import initial_metadata
from ebla.metadata.values.transaction_file import SnapshotRecord, encode
from ebla.model.declaration import Group, Schema
from ebla.storage.files.local_files import LocalFiles

TABLETS = 100
SERIAL = 200
TOGETHER = 1_000
THREADS = 64
SCHEMA = Schema(key={"k": "string"}, groups=[Group("g", columns={"v": "int32"})]).number()
FILE_BYTES = 230  # of one flush
NODE_BYTES = 150
FILES_KEPT = 48  # so many transactions are there on average, with a snapshot in every 32 and the last two kept


def new_id() -> str:
    """Return an id that was never given out before."""
    return str(uuid.uuid4())


class Table:
    """A table of its own on one coordination service, with one server or several, and the raw calls beside it."""

    def __init__(self, root: Path, coordination: CoordinationService, servers: int) -> None:
        self.coordination = coordination
        self.id = new_id()
        self._numbers = itertools.count(1)
        tablets = [f"t{number}" for number in range(TABLETS)]
        first = initial_metadata(self.id, SCHEMA, tablets, [b"%03d" % n for n in range(1, TABLETS)])
        self.stores = {f"s{n}": MetadataStore(LocalFiles(root / f"s{n}")) for n in range(servers)}
        self._raw_files: deque[str] = deque()
        self._raw_version = coordination.create(f"raw/{self.id}", bytes(NODE_BYTES))
        self.done = 0
        self.group: MetadataGroup | None = None
        if servers == 1:
            self.server = MetadataServer(coordination, self.stores["s0"], SystemClock(), server_id="s0", new_id=new_id)
            self.server.create_table(f"t-{self.id}", self.id, first)
            return
        first = first.with_txnid(new_id(), 1)
        for store in self.stores.values():
            store.write(self.id, first.txnid, encode(SnapshotRecord(None, first.checksum, first)))
        config = TableConfig("t", "running", first.txnid, tuple(self.stores))
        coordination.create(config_path(self.id), encode_config(config))
        self.group = MetadataGroup(coordination, self.id, SystemClock(), new_id=new_id)
        self.base = first.txnid
        for name, store in self.stores.items():
            self.group.start(name, store)

    def changes(self, count: int) -> list[list[Change]]:
        """Return so many requests, each of one small change that fits."""
        self.done += count
        group = SCHEMA.groups[0].id
        numbers = itertools.islice(self._numbers, count)
        return [[Flush(group, (), (FlushedTablet(f"t{n % TABLETS}", 1, n),))] for n in numbers]

    def commit(self, change: list[Change]) -> None:
        """Commit one request."""
        if self.group is None:
            self.server.commit(self.id, change)
        else:
            self.base = self.group.commit(change, self.base, server="s0")

    def serial(self) -> float:
        """Commit one after the other."""
        changes = self.changes(SERIAL)

        def work() -> None:
            for change in changes:
                self.commit(change)

        return timed(work)[0]

    def raw(self) -> float:
        """Do only what is needed to make one after the other last."""
        content = bytes(FILE_BYTES)

        def work() -> None:
            for _ in range(SERIAL):
                self._raw_files.append(new_id())
                for store in self.stores.values():
                    store.write(f"raw-{self.id}", self._raw_files[-1], content)
                self.compare_and_set()
                if len(self._raw_files) > FILES_KEPT:
                    old = self._raw_files.popleft()
                    for store in self.stores.values():
                        store.discard(f"raw-{self.id}", old)

        return timed(work)[0]

    def compare_and_set(self) -> None:
        """Change a node of about the same size."""
        path = f"raw/{self.id}"
        self._raw_version = self.coordination.compare_and_set(path, bytes(NODE_BYTES), self._raw_version)

    def sets(self) -> float:
        """Do only the compare-and-sets."""
        return timed(lambda: [self.compare_and_set() for _ in range(SERIAL)])[0]

    def threads(self) -> float:
        """Commit from many threads at once."""
        # These fit in whatever order they come.
        shares: list[list[list[Change]]] = [
            [[TakeLog((TabletAt(f"t{n % TABLETS}", 1),), "s0", "s0")] for n in range(TOGETHER // THREADS)]
            for _ in range(THREADS)
        ]
        barrier = threading.Barrier(THREADS + 1)

        def one(changes: list[list[Change]]) -> None:
            barrier.wait()
            for change in changes:
                self.commit(change)

        threads = [threading.Thread(target=one, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()

        def work() -> None:
            barrier.wait()
            for thread in threads:
                thread.join()

        return timed(work)[0] * TOGETHER / (TOGETHER // THREADS * THREADS)

    def together(self) -> float:
        """Commit requests that came together."""
        changes = self.changes(TOGETHER)
        if self.group is None:
            return timed(partial(self.server.commit_all, self.id, changes))[0]
        seconds, outcomes = timed(partial(self.group.commit_all, changes, self.base, server="s0"))
        self.base = next(outcome for outcome in reversed(outcomes) if isinstance(outcome, str))
        return seconds

    def check(self) -> None:
        """See that every change is there."""
        metadata = self.server.refresh(self.id) if self.group is None else self.group.read("s1")
        group = SCHEMA.groups[0].id
        newest = max(tablet.group(group).flushed for tablet in metadata.tablets)
        check(newest, self.done, "the newest change")


def run(options: Options) -> Report:
    """Measure and compare."""
    lines: list[Comparison] = []
    with scratch(options) as root:
        (root / "sqlite").mkdir()
        with SqliteCoordination(root / "sqlite" / FILE_NAME, SystemClock()) as coordination:
            lines += _measure("SQLite", Table(root / "one", coordination, 1), options)
            lines += _measure("SQLite, 3 servers", Table(root / "three", coordination, 3), options)
        with _zookeeper(root / "zookeeper") as coordination:
            lines += _measure("ZooKeeper", Table(root / "other", coordination, 1), options)
    return Report("metadata", f"METADATA changes per second, a table of {TABLETS} tablets", lines)


def _measure(name: str, table: Table, options: Options) -> Iterator[Comparison]:
    say(f"metadata: {name}")
    contenders: dict[str, Callable[[], float]] = {
        "one after the other": table.serial,
        "its raw calls": table.raw,
        "compare-and-set alone": table.sets,
        "1,000 together": table.together,
    }
    if table.group is None:
        contenders["64 threads"] = table.threads
    best = interleave(options.repeats(15), contenders)  # a round is a fraction of a second, and disks have moods
    table.check()
    unit = "changes/s"
    serial = rate(SERIAL, best["one after the other"], unit)
    raw = rate(SERIAL, best["its raw calls"], unit)
    yield Comparison(f"{name}: one after the other", serial, "its raw calls", raw, within_time(1.5))
    alone = rate(SERIAL, best["compare-and-set alone"], unit)
    yield Comparison(f"{name}: one after the other", serial, "compare-and-set alone", alone)
    together = rate(TOGETHER, best["1,000 together"], unit)
    yield Comparison(f"{name}: 1,000 together", together, "one after the other", serial, at_least_ratio(10))
    if "64 threads" in best:
        threads = rate(TOGETHER, best["64 threads"], unit)
        yield Comparison(f"{name}: 64 threads", threads, "one after the other", serial)


@contextmanager
def _zookeeper(directory: Path) -> Iterator[CoordinationService]:
    from tests.support.zookeeper import ZooKeeperServer, free_ports

    server = ZooKeeperServer(directory, free_ports(1)[0], "forceSync=yes\n")
    server.start()
    try:
        server.wait()
        with ZooKeeperCoordination(server.address, SystemClock()) as coordination:
            yield coordination
    finally:
        server.kill()
