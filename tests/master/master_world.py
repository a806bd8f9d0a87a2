"""A master with a clock, dice and ids of its own, over any durable side; and reports as servers would send them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random
from typing import Any

from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.master.durable import MetadataDurable
from ebla.master.master import Master
from ebla.master.messages import (
    FullChunk,
    Heartbeat,
    HeartbeatReply,
    Instance,
    Registration,
    RemovedTablet,
    ReportedTablet,
    Request,
    TabletReport,
)
from ebla.master.settings import MasterSettings
from ebla.master.writes import Durable, Operation, run
from ebla.metadata.server.copies import MetadataCopies
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.naming import TableNaming
from ebla.metadata.server.servers import MetadataServers
from ebla.metadata.values.changes import Change
from ebla.metadata.values.handing_over import Offer, OfferTablets, TakeOver, VacateTablets
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import Replica, TableMetadata, TabletMetadata
from ebla.model.declaration import Group, Schema
from ebla.retry import Retries
from tests.master.memory_durable import MemoryDurable
from tests.metadata.metadata_world import ServerOfTests, World
from tests.support.simulated_files import SimulatedFiles

CLUSTER = "cluster-1"
SCHEMA = Schema(key={"user": "string"}, groups=[Group("profile", columns={"name": "string", "age": "int32"})]).number()

_terms = itertools.count(1)


def moved_to(server: str, tablet: TabletMetadata) -> tuple[Change, ...]:
    """Return the changes by which a tablet of one replica changes hands, by the assignment `new`."""
    assert tablet.leader is not None
    return (
        VacateTablets((TabletAt(tablet.id, tablet.epoch),), tablet.leader, is_flushed=True),
        OfferTablets((Offer(tablet.id, tablet.epoch + 1, Replica(server, "new")),)),
        TakeOver(TabletAt(tablet.id, tablet.epoch + 1), server, "new", f"{server}/1"),
    )


class DurableOfTests(MetadataDurable):
    """METADATA with its parts at hand, for tests to give it faults, and to look at its files."""

    disks: dict[str, SimulatedFiles]
    disk: World
    metadata_server: ServerOfTests
    client: MemoryCoordination


def real_durable(world: World) -> DurableOfTests:
    """METADATA files on the simulated disk, configurations in the coordination service in memory."""
    server = world.server()
    store = MetadataStore(world.files, 4)
    naming = TableNaming(server.client, world.clock, retries=Retries(8, 0.05))
    durable = DurableOfTests(server, store, naming, lambda run: 0)
    durable.disks = {"m0": world.files}
    durable.metadata_server, durable.disk = server, world
    return durable


def spread_durable(servers: int = 3) -> DurableOfTests:
    """The same with several metadata servers, each with a disk of its own."""
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    disks = {f"m{number}": SimulatedFiles() for number in range(servers)}
    copies = MetadataCopies({name: MetadataStore(disk, 4) for name, disk in disks.items()}, servers, 4)
    numbers = itertools.count()
    server = MetadataServers(
        coordination, copies, clock, server_ids=tuple(disks), new_id=lambda: f"x-{next(numbers):04d}"
    )
    naming = TableNaming(coordination, clock, retries=Retries(8, 0.05))
    durable = DurableOfTests(server, copies, naming, lambda run: 0)
    durable.disks, durable.client = disks, coordination
    return durable


class MasterWorld:
    """One cluster; `restart` begins a new term of its master."""

    def __init__(self, durable: Durable | None = None, settings: MasterSettings | None = None, seed: int = 7) -> None:
        self.durable: Any = durable or MemoryDurable()
        self.settings = settings or MasterSettings()
        self.clock = ManualClock()
        self.sequences = itertools.count(1)
        self._ids = itertools.count(1)
        self._prefix = f"w{next(_terms)}" if not isinstance(self.durable, MemoryDurable) else "i"
        self._random = Random(seed)
        self._term = 0
        self.master: Master
        self.restart()

    def restart(self) -> Master:
        self._term += 1
        self.master = Master(
            CLUSTER,
            self._term,
            self.durable.load(),
            self.clock,
            new_id=lambda: f"{self._prefix}{next(self._ids)}",
            random=self._random,
            settings=self.settings,
        )
        return self.master

    def run(self, operation: Operation[Any]) -> Any:
        return run(operation, self.durable)

    def create(
        self, name: str = "users", splits: Iterable[bytes] = (), *, replicas: int | None = None
    ) -> TableMetadata:
        return self.run(self.master.create_table(name, SCHEMA, tuple(splits), replicas=replicas)).metadata

    def round(self) -> None:
        self.run(self.master.round())

    def metadata(self, name: str = "users") -> TableMetadata:
        return self.master.catalog.table(name).metadata

    # --- servers ---

    def join(self, *servers: str, seqno: int = 1, hosts: dict[str, str] | None = None) -> None:
        """Servers that register with a full report of nothing."""
        for server in servers:
            self.beat(server, seqno=seqno, host=(hosts or {}).get(server, f"host-{server}"), full=True)

    def beat(
        self,
        server: str,
        tablets: Iterable[ReportedTablet] = (),
        *,
        seqno: int = 1,
        removed: Iterable[RemovedTablet] = (),
        host: str | None = None,
        full: bool = False,
        chunk: FullChunk | None = None,
        sequence: int | None = None,
        cluster: str = CLUSTER,
        has_report: bool = True,
        log_id: str = "",
        **told: Any,
    ) -> HeartbeatReply:
        full_chunk = chunk or (FullChunk(next(self.sequences), 0, True) if full else None)
        number = next(self.sequences) if sequence is None else sequence
        report = TabletReport(number, tuple(tablets), tuple(removed), full_chunk) if has_report else None
        registration = None if host is None else Registration(host, f"{host}:7070", log_id or f"log-{server}")
        heartbeat = Heartbeat(cluster, Instance(server, seqno), registration, report, **told)
        return self.run(self.master.heartbeat(heartbeat))

    def requests(self) -> list[tuple[str, Request]]:
        """What goes out now, by server."""
        return [(batch.server, request) for batch in self.master.requests() for request in batch.requests]

    def reported(self, name: str, server: str, state: str = "running", **changed: Any) -> list[ReportedTablet]:
        """The replicas that a server is to have of a table, as it reports them when all is well."""
        metadata = self.metadata(name)
        return [
            ReportedTablet(
                tablet.id,
                metadata.table_id,
                changed.get("assignment_id", replica.assignment_id),
                state,
                changed.get("schema_version", metadata.schema.version),
                changed.get("epoch", tablet.epoch),
            )
            for tablet in metadata.tablets
            for replica in tablet.replicas
            if replica.server == server
        ]

    def settle(self, name: str = "users", servers: Iterable[str] = ("s1",)) -> None:
        """Let the tablets of a table be assigned and reported by all of their servers."""
        self.round()
        for server in servers:
            self.beat(server, self.reported(name, server))
