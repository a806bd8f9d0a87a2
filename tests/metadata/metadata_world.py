"""Metadata servers on a simulated disk and a simulated coordination service, and small tables to try them on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.changes import Flush, FlushedTablet, NewFragment, TakeLog
from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure, TableMetadata, initial_metadata
from ebla.model.declaration import Group, Schema
from ebla.retry import Retries
from tests.support.simulated_files import Fault, FaultPlan, Operation, SimulatedCrash, SimulatedFiles

SCHEMA = Schema(
    key={"user": "string"},
    groups=[Group("profile", columns={"name": "string", "age": "int32"}), Group("events", families=["click", "*"])],
).number()
PROFILE, EVENTS = (group.id for group in SCHEMA.groups)
TABLE = "t1"


def table(splits: Sequence[bytes] = (b"g", b"p")) -> TableMetadata:
    """A table of tablets a, b, c..., led by nobody at epoch 1."""
    ids = [chr(ord("a") + number) for number in range(len(splits) + 1)]
    return initial_metadata(TABLE, SCHEMA, ids, splits)


def fragment(name: str, first: bytes = b"", last: bytes = b"\xff", txn: int = 1) -> FragmentRef:
    return FragmentRef(f"fragments/{TABLE}/{name}.parquet", 10, 1000, first, last, txn, txn, 1)


def flush(
    name: str,
    flushed: dict[str, int],
    group: int = PROFILE,
    epoch: int = 1,
    erasures: tuple[RangeErasure, ...] = (),
) -> Flush:
    """A flush of one fragment to the given tablets, up to the given log indexes."""
    return Flush(
        group,
        (NewFragment(fragment(name), tuple(flushed)),),
        tuple(FlushedTablet(tablet, epoch, index, erasures) for tablet, index in flushed.items()),
    )


def files_of(metadata: TableMetadata) -> set[str]:
    return {file.rpartition("/")[2].removesuffix(".parquet") for file in metadata.files()}


class ServerOfTests(MetadataServer):
    """A metadata server that has its way to the coordination service at hand, for tests to give it faults."""

    client: MemoryCoordination


class World:
    """One disk, one coordination service, any number of servers."""

    def __init__(self, files: SimulatedFiles | None = None, nodes: MemoryStore | None = None, prefix: str = "") -> None:
        self.files = files or SimulatedFiles()
        self.nodes = nodes or MemoryStore()
        self.clock = ManualClock()
        self.steps = 0
        self._prefix = prefix
        self._names = itertools.count()

    def server(
        self, *, snapshot_every: int = 4, attempts_max: int = 8, ids: Callable[[], str] | None = None
    ) -> ServerOfTests:
        coordination = MemoryCoordination(self.nodes, self.clock)
        name = f"{self._prefix}s{next(self._names)}"
        numbers = itertools.count()
        server = ServerOfTests(
            coordination,
            MetadataStore(self.files, snapshot_every),
            self.clock,
            server_id=name,
            new_id=ids or (lambda: f"{name}-{next(numbers):04d}"),
            retries=Retries(attempts_max, 0.05),
            prune_in_background=False,  # or steps would come in another order each time
        )
        server.client = coordination
        return server

    def crash_at(self, server: ServerOfTests, step: int | None) -> None:
        """Count the server's steps, on disk and to the coordination service, and stop everything before one of them."""

        def is_last() -> bool:
            self.steps += 1
            return self.steps - 1 == step

        def on_disk(operation: Operation) -> Fault | None:
            return Fault(None) if is_last() else None

        def on_the_way(name: str, paths: tuple[str, ...]) -> None:
            if is_last():
                self.files.crash()
                raise SimulatedCrash

        self.files.plan = FaultPlan(when=on_disk)
        server.client.faults = on_the_way

    def after_crash(self, seed: int) -> list[World]:
        """The worlds that a power cut now may leave, and the one after the mere death of the process."""
        disks = [*self.files.crash_images(seed), self.files.restarted()]
        return [World(files, self.nodes.copy(), prefix="later-") for files in disks]


__all__ = [
    "EVENTS",
    "PROFILE",
    "SCHEMA",
    "TABLE",
    "ServerOfTests",
    "SimulatedCrash",
    "TakeLog",
    "World",
    "files_of",
    "flush",
    "fragment",
    "table",
]
