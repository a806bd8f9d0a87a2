"""Several metadata servers with files and a coordination service: what is promised to those who use them."""

from __future__ import annotations

import errno
import itertools
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ebla.clock import ManualClock, SystemClock
from ebla.coordination.memory import Fault as CoordinationFault
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.coordination.service import CoordinationService
from ebla.coordination.zookeeper import ZooKeeperCoordination
from ebla.errors import EblaError, OutcomeUnknown, RequestError, Unavailable, UnknownTable
from ebla.metadata.consensus.keeping import Keeping
from ebla.metadata.consensus.peer import MetadataPeer
from ebla.metadata.consensus.protocol import Changed, NotStored, Send, Store, Stored, Subscribe
from ebla.metadata.server.group import MetadataGroup
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.values.changes import RecordJob, RequirementFailed
from ebla.metadata.values.table_config import TableConfig, config_path, decode_config, encode_config
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import SnapshotRecord, encode, make_record
from tests.metadata.metadata_world import PROFILE, TABLE, flush, table
from tests.support.simulated_files import Fault, FaultPlan, SimulatedFiles
from tests.support.zookeeper import ZooKeeperServer

FIRST = table().with_txnid("first", 1)


class World:
    """A table, its servers, and their disks."""

    def __init__(self, servers: int = 3, coordination: CoordinationService | None = None, **options: object) -> None:
        self.nodes = MemoryStore()
        self.client: Any = coordination or MemoryCoordination(self.nodes, ManualClock())
        self.disks = {f"s{n}": SimulatedFiles() for n in range(servers)}
        numbers = itertools.count()
        self.seen: list[tuple[str, str]] = []
        self.group = MetadataGroup(
            self.client,
            TABLE,
            ManualClock(),
            new_id=lambda: f"x{next(numbers)}",
            snapshot_every=4,
            attempts_max=8,
            on_change=lambda server, metadata: self.seen.append((server, metadata.txnid)),
            **options,
        )
        content = encode(SnapshotRecord(None, FIRST.checksum, FIRST))
        for name in self.disks:
            self.store(name).write(TABLE, "first", content)
        config = TableConfig("t", "running", "first", tuple(self.disks))
        self.client.create(config_path(TABLE), encode_config(config))
        for name in self.disks:
            self.start(name)

    def store(self, name: str) -> MetadataStore:
        return MetadataStore(self.disks[name], 4)

    def start(self, name: str) -> None:
        self.group.start(name, self.store(name))

    def add(self, name: str) -> None:
        """A server that knows nothing yet."""
        self.disks[name] = SimulatedFiles()
        self.start(name)

    def commit(self, job: str, server: str = "s0", base: str = "first", request_id: str | None = None) -> str:
        return self.group.commit([RecordJob(job, 1)], base, server=server, request_id=request_id)

    def files(self, name: str) -> dict[str, bytes]:
        disk = self.disks[name]
        return {info.path: disk.read(info.path) for info in disk.list(f"metadata/{TABLE}")}

    @property
    def config(self) -> TableConfig:
        return decode_config("", self.client.read(config_path(TABLE)))


def jobs(metadata: TableMetadata) -> list[str]:
    return [job for job, _ in metadata.jobs]


# --- changes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_a_change_through_any_server_is_seen_through_all_and_their_files_are_the_same(servers: int) -> None:
    world = World(servers)
    for number in range(10):
        world.commit(f"job{number}", f"s{number % servers}", base=world.config.metadata_txnid)
    for name in world.disks:
        assert jobs(world.group.read(name)) == [f"job{number}" for number in range(10)]
        assert world.files(name) == world.files("s0")


def test_a_change_is_made_on_what_is_current_whatever_its_base_was() -> None:
    world = World()
    world.group.commit([flush("a", {"a": 5})], "first", server="s0")
    world.group.commit([flush("b", {"b": 7})], "first", server="s1")
    metadata = world.group.read("s2")
    assert [metadata.by_id(tablet).group(PROFILE).flushed for tablet in ("a", "b")] == [5, 7]


def test_a_change_that_does_not_fit_is_refused_and_leaves_no_file() -> None:
    world = World()
    world.commit("once")
    before = {name: world.files(name) for name in world.disks}
    with pytest.raises(RequirementFailed, match="applied already"):
        world.commit("once", "s1")
    assert {name: world.files(name) for name in world.disks} == before


def test_a_request_that_is_repeated_anywhere_is_done_once() -> None:
    world = World()
    txnid = world.commit("a", "s0", request_id="mine")
    for server in ("s0", "s1", "s2"):
        assert world.commit("a", server, request_id="mine") == txnid
    world.commit("b", "s1", base=txnid)
    assert world.commit("a", "s2", request_id="mine") == txnid


def test_a_request_whose_base_is_no_longer_on_record_is_sent_back() -> None:
    world = World()
    for number in range(20):
        world.commit(f"job{number}", base=world.config.metadata_txnid)
    with pytest.raises(Unavailable, match="no longer on record"):
        world.commit("late", base="first")
    assert "late" not in jobs(world.group.read("s0"))


def test_requests_together_become_two_transactions_and_one_that_does_not_fit_fails_alone() -> None:
    world = World()
    requests = [[RecordJob(f"job{number // 2 if number == 51 else number}", 1)] for number in range(100)]
    outcomes = world.group.commit_all(requests, "first", server="s1")
    assert [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, str)] == [51]
    assert isinstance(outcomes[51], RequirementFailed)
    assert world.group.read("s0").sequence == 3
    assert len(jobs(world.group.read("s2"))) == 99


def test_threads_that_commit_at_once_share_transactions() -> None:
    world = World()
    barrier = threading.Barrier(8)

    def work(worker: int) -> None:
        barrier.wait()
        for number in range(20):
            while True:
                try:
                    world.commit(f"{worker}-{number}", f"s{worker % 3}", base=world.config.metadata_txnid)
                    break
                except Unavailable:  # others were quick: the base was forgotten before it was asked for
                    continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(set(jobs(world.group.read("s0")))) == 160
    assert world.files("s1") == world.files("s0")


def test_only_the_last_snapshots_and_what_follows_are_kept() -> None:
    world = World()
    for number in range(50):
        world.commit(f"job{number}", base=world.config.metadata_txnid)
    for name in world.disks:
        assert len(world.files(name)) <= 8
    world.group.stop("s1")
    world.start("s1")
    assert len(jobs(world.group.read("s1"))) == 50


# --- servers that stop ---------------------------------------------------------------------------


def test_a_majority_is_enough_and_a_server_that_was_away_catches_up_before_it_serves() -> None:
    world = World()
    world.group.stop("s2")
    for number in range(7):
        world.commit(f"job{number}", base=world.config.metadata_txnid)
    with pytest.raises(Unavailable):
        world.group.read("s2")
    world.start("s2")
    assert len(jobs(world.group.read("s2"))) == 7
    assert world.files("s2").items() <= world.files("s0").items()


def test_a_server_that_cannot_catch_up_does_not_serve() -> None:
    world = World()
    world.group.stop("s2")
    world.commit("a")
    for name in ("s0", "s1"):
        world.group.stop(name)
    world.start("s2")
    with pytest.raises(Unavailable, match="behind"):
        world.group.read("s2")
    world.start("s1")
    assert jobs(world.group.read("s2")) == ["a"]


def test_without_a_majority_nothing_changes_and_no_file_stays() -> None:
    world = World()
    before = world.files("s0")
    for name in ("s1", "s2"):
        world.group.stop(name)
    with pytest.raises(Unavailable, match="no majority"):
        world.commit("a")
    assert world.config.metadata_txnid == "first"
    assert world.files("s0") == before
    assert jobs(world.group.read("s0")) == []


def test_a_full_disk_at_one_server_is_no_matter_but_at_the_asked_one_it_is() -> None:
    world = World()
    world.disks["s1"].plan = FaultPlan(when=lambda operation: Fault(errno.ENOSPC))
    with pytest.raises(Unavailable, match="could not be written"):
        world.commit("b", "s1")
    world.commit("a", "s0")
    world.disks["s1"].plan = FaultPlan()
    assert jobs(world.group.read("s0")) == ["a"]
    world.commit("c", "s1")
    assert jobs(world.group.read("s1")) == ["a", "c"]


# --- unknown outcomes ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [fault for fault in CoordinationFault if fault is not CoordinationFault.FAIL_BEFORE])
@pytest.mark.parametrize("times", [1, 3])
def test_a_switch_of_unknown_outcome_is_settled(fault: CoordinationFault, times: int) -> None:
    world = World()
    left = [times]

    def faults(name: str, paths: tuple[str, ...]) -> CoordinationFault | None:
        if name == "CompareAndSet" and left[0]:
            left[0] -= 1
            return fault
        return None

    world.client.faults = faults
    txnid = world.commit("a")
    world.nodes.deliver()
    assert world.config.metadata_txnid == txnid
    assert {tuple(jobs(world.group.read(name))) for name in world.disks} == {("a",)}


def test_an_outcome_that_stays_unknown_is_said_to_be_and_asking_again_settles_it() -> None:
    world = World()
    world.client.faults = lambda name, paths: CoordinationFault.DELAY if name == "CompareAndSet" else None
    with pytest.raises(OutcomeUnknown):
        world.commit("a", request_id="mine")
    world.client.faults = None
    world.nodes.deliver()  # late, and still in time
    landed = world.config.metadata_txnid
    assert landed != "first"
    assert world.commit("a", "s1", request_id="mine") == landed
    assert jobs(world.group.read("s2")) == ["a"]


def test_a_late_switch_that_was_overtaken_changes_nothing() -> None:
    world = World()
    world.client.faults = lambda name, paths: CoordinationFault.DELAY if name == "CompareAndSet" else None
    with pytest.raises(OutcomeUnknown):
        world.commit("a", request_id="mine")
    world.client.faults = None
    world.commit("b", "s1")
    assert world.nodes.deliver() == 0
    assert world.commit("a", "s2", request_id="mine") == world.config.metadata_txnid
    assert jobs(world.group.read("s0")) == ["b", "a"]


# --- joining and leaving -------------------------------------------------------------------------


def test_a_server_joins_with_everything_and_takes_part() -> None:
    world = World(1)
    world.commit("a")
    world.add("new")
    with pytest.raises(Unavailable):
        world.group.read("new")
    world.group.join("new")
    assert world.config.metadata_servers == ("s0", "new")
    assert jobs(world.group.read("new")) == ["a"]
    world.commit("b", "new", base=world.config.metadata_txnid)
    assert world.files("new") == world.files("s0")


def test_a_server_leaves_and_sends_requests_elsewhere() -> None:
    world = World(3)
    world.commit("a")
    world.group.leave("s0")
    assert world.config.metadata_servers == ("s1", "s2")
    with pytest.raises(Unavailable, match="s1, s2"):
        world.commit("b", "s0", base=world.config.metadata_txnid)
    assert jobs(world.group.read("s1")) == ["a"]


def test_a_server_does_not_leave_while_the_others_lack_what_is_current() -> None:
    world = World(3)
    world.group.stop("s2")
    world.commit("a")
    with pytest.raises(Unavailable, match="lack what is current"):
        world.group.leave("s0")
    assert "s0" in world.config.metadata_servers
    world.start("s2")
    world.group.leave("s0")
    world.group.stop("s0")
    assert jobs(world.group.read("s2")) == ["a"]


def test_the_last_server_cannot_leave() -> None:
    world = World(1)
    with pytest.raises(RequestError, match="last server"):
        world.group.leave("s0")


def test_joining_and_leaving_twice_changes_nothing() -> None:
    world = World(2)
    world.group.join("s0")
    world.group.leave("s1")
    world.group.leave("s1")
    assert world.config.metadata_servers == ("s0",)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["while it runs", "while it is stopped"])
def test_a_file_damaged_in_any_byte_is_noticed_and_fetched_again(how: str) -> None:
    world = World(3)
    txnid = world.commit("a")
    for file in ("first", txnid):
        path = f"metadata/{TABLE}/{file}.meta"
        content = world.disks["s2"].read(path)
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            if how == "while it runs":
                world.disks["s2"].put(path, bytes(damaged))
                assert world.group.scrub("s2") == [file]
            else:
                world.group.stop("s2")
                world.disks["s2"].put(path, bytes(damaged))
                world.start("s2")
            assert world.disks["s2"].read(path) == content
    assert jobs(world.group.read("s2")) == ["a"]


@pytest.mark.parametrize("cut", [0, 1, 23, 24, 40, -1])
def test_a_torn_file_is_noticed_and_fetched_again(cut: int) -> None:
    world = World(3)
    txnid = world.commit("a")
    path = f"metadata/{TABLE}/{txnid}.meta"
    content = world.disks["s1"].read(path)
    world.disks["s1"].put(path, content[:cut])
    assert world.group.scrub("s1") == [txnid]
    assert world.disks["s1"].read(path) == content


def test_a_damaged_server_does_not_serve_until_it_has_fetched() -> None:
    world = World(2)
    txnid = world.commit("a")
    world.group.stop("s0")
    world.disks["s1"].put(f"metadata/{TABLE}/{txnid}.meta", b"damage")
    world.group.scrub("s1")
    with pytest.raises(Unavailable, match="behind"):
        world.group.read("s1")
    world.start("s0")
    assert jobs(world.group.read("s1")) == ["a"]


# --- agreement and notification: one peer, by hand ------------------------------------------------


def peer(records: list[SnapshotRecord] | None = None) -> MetadataPeer:
    first = SnapshotRecord(None, FIRST.checksum, FIRST)
    made = MetadataPeer("s1", TABLE, [first] if records is None else records, new_id=lambda: "x", snapshot_every=4)
    made.config_read(made.config_changed()[0].tag, TableConfig("t", "running", "first", ("s0", "s1")), 1)
    return made


def store_message(**other: object) -> Store:
    outcome = FIRST.with_jobs((("a", 1),)).with_txnid("second", 2)
    record = make_record("first", outcome, (RecordJob("a", 1),), ("r",), snapshot=False)
    import google_crc32c

    fields = {
        "txnid": "second", "base": "first", "sequence": 2, "checksum": outcome.checksum,
        "content_crc": google_crc32c.value(encode(record)), "is_snapshot": False,
        "changes": (RecordJob("a", 1),), "requests": ("r",),
    }  # fmt: skip
    return Store(**(fields | other))


def test_a_server_stores_what_leads_it_to_the_same_outcome_and_says_so_only_when_it_is_saved() -> None:
    server = peer()
    (save,) = server.receive("s0", store_message())
    assert save.txnid == "second"
    assert server.saved("second") == [Send("s0", Stored("second"))]
    assert server.receive("s0", store_message()) == [Send("s0", Stored("second"))]


@pytest.mark.parametrize(
    "other",
    [
        {"checksum": 1},
        {"sequence": 3},
        {"content_crc": 1},
        {"requests": ("other",)},
        {"changes": (RecordJob("b", 1),)},
        {"changes": (RecordJob("a", 1), RecordJob("a", 1))},
    ],
    ids=["checksum", "sequence", "file", "requests", "changes", "impossible"],
)
def test_a_server_does_not_store_what_leads_it_to_another_outcome(other: dict[str, object]) -> None:
    assert peer().receive("s0", store_message(**other)) == [Send("s0", NotStored("second", "differs"))]


def test_if_too_many_servers_differ_the_change_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    original = Keeping._agreed
    monkeypatch.setattr(
        Keeping, "_agreed", lambda self, m, base: None if self._peer.server == "s1" else original(self, m, base)
    )
    world.commit("a")
    monkeypatch.setattr(Keeping, "_agreed", lambda self, message, base: None)
    with pytest.raises(Unavailable, match="different outcomes"):
        world.commit("b", base=world.config.metadata_txnid)
    assert len(world.files("s0")) == 2


def test_a_watcher_is_told_of_every_change_it_does_not_know() -> None:
    server = peer()
    assert server.receive("w", Subscribe("first")) == []
    assert server.receive("late", Subscribe("older")) == [Send("late", Changed("first"))]
    server.receive("s0", store_message())
    server.saved("second")
    actions = server.config_read(server.config_changed()[0].tag, TableConfig("t", "running", "second", ("s0", "s1")), 2)
    assert {action.to for action in actions if isinstance(action, Send)} == {"w", "late"}
    assert all(action.message == Changed("second") for action in actions if isinstance(action, Send))


def test_everybody_in_the_process_is_told_of_every_change_in_order() -> None:
    world = World(2)
    made = [world.commit(f"job{number}", base=world.config.metadata_txnid) for number in range(3)]
    for name in world.disks:
        world.group.read(name)
        assert [txnid for server, txnid in world.seen if server == name] == ["first", *made]


def test_a_dropped_table_is_refused() -> None:
    world = World(2)
    node = world.client.read(config_path(TABLE))
    dropped = TableConfig("t", "deleted", "first", ("s0", "s1"))
    world.client.compare_and_set(config_path(TABLE), encode_config(dropped), node.version)
    with pytest.raises(UnknownTable, match="no such table"):
        world.commit("a")
    with pytest.raises(EblaError):
        world.group.read("s1")


def test_the_same_servers_work_on_zookeeper(zookeeper_server: ZooKeeperServer) -> None:
    with ZooKeeperCoordination(zookeeper_server.address, SystemClock(), root=f"/{uuid.uuid4()}") as client:
        world = World(3, client)
        made = [world.commit(f"job{number}", f"s{number % 3}") for number in range(6)]
        world.group.leave("s0")
        assert {tuple(jobs(world.group.read(name))) for name in ("s1", "s2")} == {
            tuple(f"job{number}" for number in range(6))
        }
        assert world.config.metadata_txnid == made[-1]
