"""Tablet servers on threads of this process, with their real address, and just enough of a master to steer them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import ebla
from ebla.clock import SystemClock
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.coordination.server_lease import LeaseWatch
from ebla.master.messages import (
    CreateTablet,
    HandOverTablet,
    Heartbeat,
    HeartbeatReply,
    Refusal,
    Registration,
    ReplicaLag,
    ReportedTablet,
    Request,
    Requests,
)
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.assigning import Assignment, AssignTablets, StartTablets
from ebla.metadata.values.handing_over import Offer, OfferTablets, VacateTablets
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import Replica, TableMetadata, TabletMetadata, initial_metadata
from ebla.model.keys import KeyCodec
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet_server.server import TabletServer

SCHEMA = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"v": "string"})]).number()
CLUSTER = "cluster"


def new_id() -> str:
    return str(uuid.uuid4())


def wait_until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.01)


class Cluster:
    """A shared root, a coordination service, and what a master decides, called by the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = LocalFiles(path / "root")
        self.nodes = MemoryStore()
        self.clock = SystemClock()
        self.coordination = MemoryCoordination(self.nodes, self.clock)
        self.metadata = self._metadata(self.coordination)
        self.watch = LeaseWatch(self.coordination, self.clock)
        self.servers: dict[str, TabletServer] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.cut_off: set[str] = set()  # by name: these reach no coordination service
        self.refusal: Refusal | None = None
        self.lock = threading.Lock()
        self.reported: dict[str, dict[str, ReportedTablet]] = {}  # by uuid and tablet
        self.registered: dict[str, Registration] = {}
        self.lags: dict[str, tuple[ReplicaLag, ...]] = {}  # by uuid of the server that told of them
        self.table_id = ""
        self.logs: dict[str, LocalFiles] = {}  # by name: these have their logs elsewhere than in the root

    def _metadata(self, coordination: MemoryCoordination) -> MetadataServer:
        store = MetadataStore(self.files)
        return MetadataServer(coordination, store, self.clock, server_id="masters", new_id=new_id)

    # --- servers ---

    def start(self, name: str) -> TabletServer:
        def faults(operation: str, paths: tuple[str, ...]) -> Fault | None:
            return Fault.FAIL_BEFORE if name in self.cut_off else None

        coordination = MemoryCoordination(self.nodes, self.clock, faults=faults)
        server = TabletServer(
            files=self.files,
            coordination=coordination,
            metadata=lambda server: self._metadata(coordination),
            send=self.heartbeat,
            clock=self.clock,
            settings=Settings(background_compaction=False),
            cluster=CLUSTER,
            directory=self.path / name,
            new_id=new_id,
            log_files=self.logs.get(name),
        )
        self.servers[name] = server
        thread = self.threads[name] = threading.Thread(target=server.serve, name=name, daemon=True)
        thread.start()
        wait_until(lambda: server.run is not None)
        return server

    def stop(self, name: str) -> None:
        self.servers.pop(name).stop()
        self.threads[name].join(20)
        assert not self.threads.pop(name).is_alive()

    def stop_all(self) -> None:
        for name in [*self.servers]:
            self.stop(name)

    # --- a master's side ---

    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        with self.lock:
            if self.refusal is not None:
                return HeartbeatReply(1, refusal=self.refusal)
            uuid, report = beat.instance.uuid, beat.report
            if beat.registration is not None:
                self.registered[uuid] = beat.registration
            self.lags[uuid] = beat.lags
            known = self.reported.setdefault(uuid, {})
            if report is not None:
                if report.full is not None and report.full.chunk == 0:
                    known.clear()
                known.update({one.tablet: one for one in report.tablets})
                for one in report.removed:
                    if one.tablet in known and known[one.tablet].assignment_id == one.assignment_id:
                        del known[one.tablet]
            return HeartbeatReply(1, acknowledged=None if report is None else report.sequence)

    def send(self, server: TabletServer, *requests: Request) -> None:
        assert server.run is not None
        server.run.take_requests(Requests(1, server.uuid, requests))

    def read(self) -> TableMetadata:
        return self.metadata.refresh(self.table_id)

    def tablet(self, tablet: str) -> TabletMetadata:
        found = self.read().by_id(tablet)
        assert found is not None
        return found

    def create(self, server: TabletServer, splits: int = 1) -> None:
        """Create a table of which a server has all tablets, as a master does: tablets first, then they run."""
        codec = KeyCodec(SCHEMA.key)
        rows = [codec.encode((at * 100,)) for at in range(1, splits + 1)]
        ids = [f"t{at}" for at in range(splits + 1)]
        initial = initial_metadata(new_id(), SCHEMA, ids, rows, state="preparing")
        self.table_id = initial.table_id
        self.metadata.create_table("t", initial.table_id, initial)
        assigned = tuple(Assignment(one, 1, server.uuid, (Replica(server.uuid, new_id()),)) for one in ids)
        made = self.metadata.commit(self.table_id, [AssignTablets(assigned)])
        self.send(server, *(self._creation(one) for one in made.tablets))
        wait_until(lambda: set(ids) <= set(self.reported.get(server.uuid, {})))
        self.metadata.commit(self.table_id, [StartTablets(tuple(TabletAt(one, 2) for one in ids))])

    def _creation(self, tablet: TabletMetadata) -> CreateTablet:
        own = tablet.assigned[-1]
        return CreateTablet(
            tablet.id,
            self.table_id,
            own.assignment_id,
            tablet.first,
            tablet.last,
            SCHEMA,
            tablet.epoch,
            tablet.leader,
            tablet.replicas,
        )

    def offer(self, server: TabletServer, *tablets: str) -> None:
        """Offer tablets to a server; one that is led is handed over by its leader first."""
        offers = tuple(Offer(one, self.tablet(one).epoch, Replica(server.uuid, new_id())) for one in tablets)
        self.metadata.commit(self.table_id, [OfferTablets(offers)])
        for one in tablets:
            tablet = self.tablet(one)
            leader = next((other for other in self.servers.values() if other.uuid == tablet.leader), None)
            if leader is not None:
                assert tablet.target is not None
                own = tablet.replicas[0].assignment_id
                self.send(leader, HandOverTablet(one, own, tablet.epoch, tablet.target))
                wait_until(lambda one=one: self.tablet(one).leader is None)  # type: ignore[misc]
        self.send(server, *(self._creation(self.tablet(one)) for one in tablets))

    def move(self, server: TabletServer, *tablets: str) -> None:
        """Offer tablets, and wait until they are led there."""
        self.offer(server, *tablets)
        wait_until(lambda: set(tablets) <= set(server.led().get("t", ())))

    def bury(self, uuid: str) -> None:
        """Take the lease of a silent server, and say that it leads nothing any more."""
        wait_until(lambda: self.watch.is_over(uuid))
        led = tuple(TabletAt(one.id, one.epoch) for one in self.read().tablets if one.leader == uuid)
        if led:
            self.metadata.commit(self.table_id, [VacateTablets(led, uuid)])
