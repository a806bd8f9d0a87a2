"""Several runs of servers in one process, on one simulated disk and one coordination service."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import ebla
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.coordination.server_lease import MARGIN_SECONDS, RENEW_SECONDS, TTL_SECONDS, LeaseWatch, ServerLease
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.handing_over import Offer, OfferTablets, VacateTablets
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import Replica, TableMetadata, TabletMetadata, initial_metadata
from ebla.model.keys import KeyCodec
from ebla.settings import Settings
from ebla.tablet.engine import TabletStore
from ebla.tablet.lead.giving_up import TabletGiver
from ebla.tablet.lead.run import open_run
from ebla.tablet.lead.taking_over import Offered, TabletTaker
from ebla.tablet.serve.local_table import LocalTable
from tests.support.simulated_files import SimulatedFiles

SCHEMA = ebla.Schema(
    key={"k": "int64"},
    groups=[ebla.Group("g", columns={"v": "string"}), ebla.Group("h", columns={"n": "int64"})],
).number()


def new_id() -> str:
    return str(uuid.uuid4())


class Run:
    """One start of a server, as its process has it."""

    def __init__(self, world: World, server: str, start: int) -> None:
        self.world = world
        self.server = server
        self.clock = ManualClock(world.clock.microseconds())
        self.coordination = MemoryCoordination(world.nodes, self.clock)
        self.lease = ServerLease(self.coordination, server, server, in_background=False)
        self.metadata = MetadataServer(
            self.coordination,
            MetadataStore(world.files),
            self.clock,
            server_id="masters",
            new_id=new_id,
            prune_in_background=False,
        )
        self.store: TabletStore = open_run(
            files=world.files,
            coordination=self.coordination,
            metadata=self.metadata,
            clock=self.clock,
            settings=Settings(background_compaction=False, flush_bytes=1 << 20),
            server=server,
            start=start,
            new_id=new_id,
            fence=self.lease.check_commit,
        )
        self.taker = TabletTaker(self.store, self.coordination)
        self.giver = TabletGiver(self.store, self.clock)

    def table(self, name: str = "t") -> LocalTable:
        return LocalTable(self.store, self.store.table(name))

    def leads(self, name: str = "t") -> set[str]:
        table = self.store.table(name)
        assert table.led is not None
        return set(table.led.ids)


@dataclass
class World:
    """The shared root, the coordination service, and what a master would decide."""

    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    nodes: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=ManualClock)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordination = MemoryCoordination(self.nodes, self.clock)
        self.metadata = MetadataServer(
            self.coordination, MetadataStore(self.files), self.clock, server_id="masters", new_id=new_id
        )
        self.watch = LeaseWatch(self.coordination, self.clock)
        self.table_id = ""

    def start(self, name: str, start: int = 1) -> Run:
        run = Run(self, str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), start)
        self.runs.append(run)
        return run

    def pass_seconds(self, seconds: float, *stopped: Run) -> None:
        """Let time pass for all but those that are stopped; leases are renewed."""
        while seconds > 0:
            step = min(seconds, RENEW_SECONDS)
            self.clock.advance(step)
            for run in self.runs:
                if run not in stopped:
                    run.clock.advance(step)
                    run.lease.renew()
            seconds -= step

    def create(self, name: str = "t", splits: int = 1) -> TableMetadata:
        codec = KeyCodec(SCHEMA.key)
        rows = [codec.encode((at * 100,)) for at in range(1, splits + 1)]
        initial = initial_metadata(new_id(), SCHEMA, [f"{name}{at}" for at in range(splits + 1)], rows)
        self.table_id = initial.table_id
        return self.metadata.create_table(name, initial.table_id, initial)

    def read(self) -> TableMetadata:
        return self.metadata.refresh(self.table_id)

    def tablet(self, tablet: str) -> TabletMetadata:
        found = self.read().by_id(tablet)
        assert found is not None
        return found

    def offer(self, run: Run, *tablets: str) -> list[Offered]:
        """Offer tablets to a server, as a master does."""
        offers, given = [], []
        for tablet in tablets:
            assignment = new_id()
            offers.append(Offer(tablet, self.tablet(tablet).epoch, Replica(run.server, assignment)))
            given.append(Offered(self.table_id, tablet, assignment))
        self.metadata.commit(self.table_id, [OfferTablets(tuple(offers))])
        return given

    def give(self, run: Run, *tablets: str) -> None:
        """Offer tablets that nobody leads to a server, which takes them."""
        assert run.taker.take(self.offer(run, *tablets)) == {}

    def bury(self, run: Run) -> None:
        """Wait for the end of the lease of a server that is silent, and say that it leads nothing any more."""
        assert not self.watch.is_over(run.server)
        others = [other for other in self.runs if other is not run]
        self.runs = others
        self.pass_seconds(TTL_SECONDS + MARGIN_SECONDS)
        assert self.watch.is_over(run.server)
        led = tuple(TabletAt(one.id, one.epoch) for one in self.read().tablets if one.leader == run.server)
        if led:
            self.metadata.commit(self.table_id, [VacateTablets(led, run.server)])
