"""Servers, masters, disks, network, leases, METADATA and clients of one table in one process, driven from one seed.

    python -m tests.replication.simulation 4711              one schedule again, with its story
    python -m tests.replication.simulation 0 100000          any number of them

Time is simulated: an event is a moment and something that happens then, and each takes the next ones as long as chance
wants. Faults come for some seconds (faults.py) while clients write and read (clients.py). Then they stop, everything is
mended, and all must answer again. What must hold meanwhile is in checks.py.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from ebla.metadata.values.requirements import RequirementFailed
from ebla.replication.actions import (
    Answer,
    AskLease,
    Change,
    ChangeMetadata,
    Free,
    MakeFile,
    RaiseBound,
    ReadLog,
    ReadMetadata,
    Renew,
    Send,
    Serve,
    TakeLease,
    Write,
)
from ebla.replication.apply import apply
from ebla.replication.changes import ChangeInSync
from ebla.replication.configuration import Configuration, Replica, Table
from ebla.replication.lease import ServerNode
from ebla.replication.master_part import MasterPart
from ebla.replication.messages import Entry, Message
from ebla.replication.recut_changes import CommitLoad
from ebla.replication.server import TabletServer
from ebla.replication.server_log import Appended, Dropped, Gone, Record
from ebla.replication.settings import ReplicationSettings
from tests.replication.checks import Checks, Violation
from tests.replication.clients import Clients
from tests.replication.faults import Faults
from tests.replication.people import People

SETTINGS = ReplicationSettings(
    lease_seconds=1.0,
    renew_seconds=0.3,
    lease_margin_seconds=0.25,
    replica_timeout_seconds=0.6,
    stuck_seconds=1.0,
    poll_seconds=0.7,
    split_seconds=1.0,
    gate_seconds=0.8,
    replace_seconds=2.0,
    ahead_seconds=3.0,
    bound_microseconds=600_000,
    segment_records=6,
    window_replies=2,
    push_entries=2,
)
TICK_SECONDS = 0.2
# What a schedule has more of than others.
MOODS = ("even", "even", "churn", "moves", "stale")  # and "alone", where it is asked for: one replica
_replace = msgspec.structs.replace


class SimulatedServer:
    """A machine that can stop, and its disk."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.log_id = f"{name}-log1"
        self.start = 0
        self.run = 0  # events of an earlier run reach nobody
        self.machine: TabletServer | None = None
        self.paused_until = 0.0
        self.stuck_until = -1.0
        self.disk: list[tuple[int, int, Record]] = []  # segment, number, record
        self.synced = 0  # the number up to which they are on disk
        self.is_syncing = False
        self.clock_rate = random.uniform(0.96, 1.04)
        self.clock_offset = random.uniform(0, 1000)
        self.wall_offset = random.randrange(-300_000, 300_000)
        self._stored: dict[tuple[tuple[str, str], int], tuple[int, int]] = {}  # epoch and number of what is there
        self.written_at: dict[int, float] = {}
        self.wiped_at = -1.0
        # What replicas had, behind which index, when it stopped with all on disk.
        self.before: dict[tuple[str, str], tuple[int, list[Entry]]] = {}
        self.seen_commit: dict[tuple[str, str], int] = {}
        self.seen_serving: set[tuple[tuple[str, str], int]] = set()

    def write(self, write: Write, now: float) -> None:
        number = write.first
        for record in write.records:
            self.written_at[number] = now
            self.disk.append((write.segment, number, record))
            self._note(number, record)
            number += 1

    def _note(self, number: int, record: Record) -> None:
        if isinstance(record, Appended):
            self._stored[record.key, record.entry.index] = (record.entry.epoch, number)
        elif isinstance(record, Dropped):
            for key in [key for key in self._stored if key[0] == record.key and key[1] >= record.index]:
                del self._stored[key]

    def has_on_disk(self, key: tuple[str, str], entry: Entry) -> bool:
        found = self._stored.get((key, entry.index))
        return found is not None and found[0] == entry.epoch and found[1] <= self.synced

    def number_of(self, entry: Entry) -> int | None:
        """Return the number of the record of an entry."""
        for key, (epoch, number) in self._stored.items():
            if key[1] == entry.index and epoch == entry.epoch:
                return number
        return None

    def number_at(self, key: tuple[str, str], index: int) -> int:
        """Return the number of the record of an entry of a replica; 0 if there is none."""
        return self._stored.get((key, index), (0, 0))[1]

    def lose_unsynced(self, random: Random) -> None:
        """A power cut: of what was not synced, some first part may be there."""
        unsynced = [one for one in self.disk if one[1] > self.synced]
        if unsynced:
            kept = random.randint(0, len(unsynced))
            self.disk = self.disk[: len(self.disk) - len(unsynced) + kept]
            self._stored = {}
            for _, number, record in self.disk:
                self._note(number, record)
            self.synced = max(self.synced, self.disk[-1][1] if self.disk else 0)

    def wipe(self, number: int) -> None:
        self.disk, self._stored = [], {}
        self.before = {}
        self.log_id = f"{self.name}-log{number}"

    def free(self, segment: int) -> None:
        self.disk = [one for one in self.disk if one[0] != segment]


class Simulation:
    """One schedule."""

    def __init__(self, seed: int, is_told: bool = False, mood: str | None = None) -> None:
        self.random = random = Random(seed)
        self.is_told = is_told
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self.has_faults = True
        by_chance = random.choice(MOODS)
        self.mood = mood or by_chance
        self._late = 0.8 if self.mood == "churn" else 0.93  # so many messages are quick
        self._lost = 0.3 if self.mood == "churn" else 0.0  # so many more messages between servers are lost
        self._master_seconds = TICK_SECONDS * (0.3 if self.mood == "churn" else 1.0)
        self._stale = 0.5 if self.mood == "stale" else 0.1  # so many reads of METADATA are answered by who lags behind
        self.wiped = 0
        choice = random.random()
        self.replicas = 3 if self.mood == "churn" or choice < 0.77 else 1 if choice < 0.92 else 5
        if self.mood == "alone":
            self.replicas = 1
        count = {1: 3, 3: 3 if self.mood == "churn" else random.choice((3, 4, 4)), 5: 5}[self.replicas]
        self.servers = {f"s{at}": SimulatedServer(f"s{at}", random) for at in range(count)}
        self.nodes = {name: ServerNode() for name in self.servers}
        self.cut: set[tuple[str, str]] = set()  # from, to
        self.is_log_shared = self.replicas == 1 and random.random() < 0.8
        self.table = Table(1, {"t": self._first_configuration()})
        self.past = [self.table]
        self.files: dict[str, list[Entry]] = {}
        self.masters: list[MasterPart] = []
        self.master_offsets = [random.uniform(0, 1000) for _ in range(2)]
        self._ids = 0
        self.checks = Checks(self)
        self.clients = Clients(self)
        self.faults = Faults(self)
        self.people = People(self)
        self.reads: dict[tuple[str, str, int], tuple[bytes, int, Any]] = {}

    def _first_configuration(self) -> Configuration:
        names = list(self.servers)[: self.replicas]
        members = tuple(Replica(name, f"a-{name}", f"{name}-log1", True) for name in names)
        return Configuration("t", b"", None, 1, 1, "s0", 1, members, self.replicas, self.replicas)

    # --- time ------------------------------------------------------------------------------------

    def at(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        """Have something happen after some seconds."""
        self._order += 1
        heapq.heappush(self.events, (self.now + seconds, self._order, function, arguments))

    def tell(self, text: Callable[[], str]) -> None:
        if self.is_told:
            print(f"{self.now:8.3f}  {text()}")

    def run(self) -> None:
        """Let things happen, then stop the faults, and see whether everyone is answered."""
        random = self.random
        for server in self.servers.values():
            self.start(server)
        self.masters = [self._new_master() for _ in range(1 if random.random() < 0.8 else 2)]
        for at in range(len(self.masters)):
            self.at(random.uniform(0, TICK_SECONDS), self._master_tick, at)
        self.at(0.3, self.clients.begin)
        self.at(random.uniform(0.4, 0.9), self.faults.strike)
        self.at(random.uniform(0.4, 0.9), self.people.act)
        end = random.uniform(3.0, 6.0)
        self._run_until(end)
        self.faults.stop()
        self.clients.conclude()
        self._run_until(end + 25.0)
        if not self.clients.is_concluded:
            raise Violation(f"no answer after everything was mended: {self.clients.open_questions()}")
        self.checks.finish()

    def _run_until(self, end: float) -> None:
        events = self.events
        pop = heapq.heappop
        while events and events[0][0] <= end and not self.clients.is_concluded:
            self.now, _, function, arguments = pop(events)
            function(*arguments)

    def new_id(self) -> str:
        self._ids += 1
        return f"i{self._ids}"

    def delay(self) -> float:
        """How long something takes on its way: mostly little, at times long."""
        random = self.random.random
        chance = random()
        if chance < self._late or not self.has_faults:
            return 0.002 + 0.02 * random()
        return 0.02 + (0.3 if chance < 0.98 else 2.0) * random()

    # --- servers ---------------------------------------------------------------------------------

    def start(self, server: SimulatedServer) -> None:
        """A run of a server begins, with what is on its disk."""
        server.start += 1
        server.run += 1
        server.is_syncing = False
        server.synced = server.disk[-1][1] if server.disk else 0
        server.seen_commit, server.seen_serving = {}, set()
        server.machine = TabletServer(server.name, server.start, server.log_id, tuple(server.disk), SETTINGS)
        self.tell(lambda: f"{server.name} starts, run {server.start}, {server.log_id}")
        self.at(0.0, self._tick, server, server.run)

    def stop(self, server: SimulatedServer) -> None:
        """A run of a server ends, as by a power cut."""
        self.checks.stopped(server)
        server.machine = None
        server.run += 1
        server.paused_until, server.stuck_until = 0.0, -1.0
        server.lose_unsynced(self.random)
        self.tell(lambda: f"{server.name} stops")

    def _tick(self, server: SimulatedServer, run: int) -> None:
        if server.run == run:
            self.at(TICK_SECONDS * self.random.uniform(0.8, 1.2), self._tick, server, run)
            self.call(server, run, "tick")

    def clock(self, server: SimulatedServer) -> float:
        return server.clock_offset + self.now * server.clock_rate

    def call(self, server: SimulatedServer, run: int, method: str, *arguments: Any) -> None:
        """Give a run of a server an event, when it is not paused."""
        if server.run != run or server.machine is None:
            return
        until = max(server.paused_until, server.stuck_until)
        if until > self.now or (until == self.now and until == server.stuck_until):
            self.at(
                until - self.now + 0.001 * self.random.random(),
                self.call,
                server,
                run,
                method,
                *arguments,
            )
            return
        now = server.clock_offset + self.now * server.clock_rate
        wall = int(self.now * 1e6) + 1_000_000_000 + server.wall_offset
        actions = getattr(server.machine, method)(now, wall, *arguments)
        for action in actions:
            _ACTIONS[type(action)](self, server, action)
        self.checks.observe(server)

    # --- actions ---------------------------------------------------------------------------------

    def _write(self, server: SimulatedServer, write: Write) -> None:
        for record in write.records:
            if isinstance(record, Gone):
                self.checks.deleted(server, record.key)
            elif isinstance(record, Dropped):
                self.checks.dropped(server, record)
        if self.is_log_shared and self.has_faults and self.random.random() < 0.06:
            # The process is stopped while it writes: what it meant to write comes when it wakes up.
            server.stuck_until = self.now + self.random.uniform(0.5, 2.5)
            self.at(server.stuck_until - self.now, self._append, server, server.run, write)
        else:
            self._append(server, server.run, write)

    def _append(self, server: SimulatedServer, run: int, write: Write) -> None:
        if server.run != run:
            return
        server.write(write, self.now)
        if not server.is_syncing:
            server.is_syncing = True
            self.at(self._sync_seconds(), self._sync, server, server.run, server.disk[-1][1])

    def _sync_seconds(self) -> float:
        chance = self.random.random()
        return 0.002 + (0.01 if chance < 0.95 or not self.has_faults else 0.6) * chance

    def _sync(self, server: SimulatedServer, run: int, number: int) -> None:
        if server.run != run:
            return
        server.synced = max(server.synced, number)
        if server.disk and server.disk[-1][1] > number:
            self.at(self._sync_seconds(), self._sync, server, run, server.disk[-1][1])
        else:
            server.is_syncing = False
        self.call(server, run, "synced", number)

    def _free(self, server: SimulatedServer, free: Free) -> None:
        server.free(free.segment)

    def _send(self, server: SimulatedServer, send: Send) -> None:
        self.post(server.name, send.to, send.parts)

    def post(self, sender: str, to: str, parts: tuple[Message, ...]) -> None:
        """Send a message: it may be lost, late or doubled."""
        if self._lost and self.has_faults and to in self.servers and sender in self.servers:
            chance = self.random.random()
            if chance < self._lost:
                return
            if chance > 0.93:  # it comes when another leads
                self.at(1.5 * self.random.random(), self._deliver, sender, to, parts)
                return
        self._trip(sender, to, self._deliver, sender, to, parts)

    def _trip(self, sender: str, to: str, function: Callable[..., None], *arguments: Any) -> None:
        if (sender, to) in self.cut:
            return
        chance = self.random.random()
        if self.has_faults and chance < 0.04:
            if chance < 0.025:
                return
            self.at(self.delay(), function, *arguments)
        self.at(self.delay(), function, *arguments)

    def _deliver(self, sender: str, to: str, parts: tuple[Message, ...]) -> None:
        if (sender, to) in self.cut:
            return
        if self.is_told:
            for part in parts:
                self.tell(lambda part=part: f"{sender} -> {to}: {part}")
        if to == "master":
            for master in self.masters:
                master.receive(sender, parts)
            return
        server = self.servers[to]
        self.call(server, server.run, "receive", sender, parts)

    def _answer(self, server: SimulatedServer, answer: Answer) -> None:
        read = self.reads.pop((server.name, answer.client, answer.token), None)
        if answer.outcome == "done" and answer.epoch:
            self.checks.answered(server, answer)
        if answer.outcome == "done" and read is not None:
            self.checks.read(*read)
        self._trip(server.name, "clients", self.clients.answered, server.name, answer, read)

    def _serve(self, server: SimulatedServer, serve: Serve) -> None:
        value = self.value_at(server, serve)
        self.reads[server.name, serve.client, serve.token] = (serve.row, serve.txn, value)
        self.at(0.001 * self.random.random(), self.call, server, server.run, "served", serve)

    def value_at(self, server: SimulatedServer, serve: Serve) -> Any:
        """Read a row as a server has it: the newest version at or below a txn, in files and in what is committed."""
        assert server.machine is not None
        replica = server.machine.replica(serve.tablet, serve.assignment_id)
        assert replica is not None
        assert replica.configuration is not None
        found: tuple[int, Any] | None = None
        for entries in (
            *(self.files[file] for file in replica.configuration.files),
            replica.log.between(0, serve.commit),
        ):
            for entry in entries:
                if entry.txn <= serve.txn and (found is None or entry.txn > found[0]):
                    for row, value in entry.rows:
                        if row == serve.row:
                            found = (entry.txn, value)
        return found

    def _make_file(self, server: SimulatedServer, make: MakeFile) -> None:
        assert server.machine is not None
        key = (make.tablet, make.assignment_id)
        entries = server.machine.replicas[key].log.between(make.base.index, make.upto.index)
        name = self.new_id()
        self.files[name] = list(entries)
        self.at(self.delay(), self.call, server, server.run, "file_made", key, make.epoch, make.upto, name)

    def _read_log(self, server: SimulatedServer, read: ReadLog) -> None:
        self.at(self.delay(), self._log_read, server, server.run, read)

    def _log_read(self, server: SimulatedServer, run: int, read: ReadLog) -> None:
        other = self.servers[read.server]
        if other.log_id != read.log_id:
            return  # missing is not empty
        records = tuple((number, record) for _, number, record in other.disk if number <= other.synced)
        self.call(server, run, "log_read", read, records, other.synced)

    # --- METADATA --------------------------------------------------------------------------------

    def _read_metadata(self, server: SimulatedServer, action: ReadMetadata) -> None:
        self._trip(server.name, "metadata", self._metadata_read, server, server.run)

    def _metadata_read(self, server: SimulatedServer, run: int) -> None:
        self._trip("metadata", server.name, self.call, server, run, "metadata_read", self._some_table())

    def _some_table(self) -> Table:
        """METADATA as it is, or as a metadata server has it that lags behind."""
        if self.has_faults and self.random.random() < self._stale:
            return self.past[-1 - self.random.randrange(min(len(self.past), 5))]
        return self.table

    def _change_metadata(self, server: SimulatedServer, action: ChangeMetadata) -> None:
        self._trip(server.name, "metadata", self._changed, server.name, server.run, action.changes)

    def ask_metadata(self, sender: str, changes: tuple[Change, ...]) -> None:
        """Ask for changes from outside of the servers."""
        self._trip(sender, "metadata", self._changed, sender, 0, changes)

    def _changed(self, sender: str, run: int, changes: tuple[Change, ...]) -> None:
        if ("metadata", "metadata") in self.cut:
            self.at(self.delay() + 0.1, self._changed, sender, run, changes)  # it lands later
            return
        for change in changes:
            if isinstance(change, ChangeInSync):
                change = self.masters[0].checked(change, self.nodes)
            self.change(change, sender)
        if sender in self.servers:
            server = self.servers[sender]
            self._trip("metadata", sender, self.call, server, run, "metadata_read", self.table)

    def change(self, change: Change, sender: str = "") -> bool:
        """Change METADATA, if it fits; others hear of it sooner or later."""
        before = self.table
        try:
            after = apply(before, change)
        except RequirementFailed as error:
            reason = str(error)
            self.tell(lambda: f"METADATA refuses {sender}: {reason}: {change}")
            return False
        if isinstance(change, CommitLoad):
            self.checks.loaded(change)
        self.table = after
        self.past.append(after)
        self.tell(lambda: f"METADATA {after.version} by {sender}: {change}")
        self.checks.metadata_changed(before, after)
        for server in self.servers.values():
            if server.machine is not None and self.random.random() < 0.9:
                self._trip("metadata", server.name, self.call, server, server.run, "metadata_read", after)
        return True

    # --- leases ----------------------------------------------------------------------------------

    def _ask_lease(self, server: SimulatedServer, ask: AskLease) -> None:
        self._trip(server.name, "leases", self._lease_asked, server, server.run, ask)

    def _lease_asked(self, server: SimulatedServer, run: int, ask: AskLease) -> None:
        node = self.nodes[server.name]
        if ask.start < node.start:
            return
        if node.number != ask.after:
            self._trip("leases", server.name, self.call, server, run, "lease_refused", node.number)
            return
        node = ServerNode(node.number + 1, node.version + 1, True, node.bound, ask.start, ask.log_id)
        self.nodes[server.name] = node
        self.tell(lambda: f"{server.name} has lease {node.number}")
        self._trip("leases", server.name, self.call, server, run, "lease_taken", node.number, ask.asked_at, node.bound)

    def _renew(self, server: SimulatedServer, renew: Renew) -> None:
        self._trip(server.name, "leases", self._renewed, server, server.run, renew)

    def _renewed(self, server: SimulatedServer, run: int, renew: Renew) -> None:
        node = self.nodes[server.name]
        if node.number == renew.number:
            self.nodes[server.name] = _replace(node, version=node.version + 1)
            self._trip("leases", server.name, self.call, server, run, "renewed", renew.number, renew.asked_at)
        else:
            self._trip("leases", server.name, self.call, server, run, "lease_lost", renew.number, node.number)

    def _raise_bound(self, server: SimulatedServer, action: RaiseBound) -> None:
        self._trip(server.name, "leases", self._bound_raised, server, server.run, action)

    def _bound_raised(self, server: SimulatedServer, run: int, action: RaiseBound) -> None:
        node = self.nodes[server.name]
        if node.number == action.number:
            self.nodes[server.name] = _replace(node, bound=max(node.bound, action.bound))
            self._trip("leases", server.name, self.call, server, run, "bound_raised", action.bound)

    # --- masters ---------------------------------------------------------------------------------

    def _new_master(self) -> MasterPart:
        return MasterPart(SETTINGS, new_id=self.new_id, is_log_shared=self.is_log_shared)

    def restart_master(self) -> None:
        self.tell(lambda: "a master starts anew")
        self.masters[self.random.randrange(len(self.masters))] = self._new_master()

    def _master_tick(self, at: int) -> None:
        self.at(self._master_seconds * self.random.uniform(0.9, 1.6), self._master_tick, at)
        if self.random.random() < 0.05 and self.has_faults:
            self.at(self.delay(), self._master_decides, at, dict(self.nodes), self.table)
        else:
            self._master_decides(at, dict(self.nodes), self.table)

    def _master_decides(self, at: int, nodes: dict[str, ServerNode], table: Table) -> None:
        for action in self.masters[at].tick(self.now + self.master_offsets[at], nodes, table):
            match action:
                case TakeLease():
                    self._trip("master", "leases", self._lease_taken, action)
                case ChangeMetadata():
                    self._trip("master", "metadata", self._changed, "master", 0, action.changes)
                case Send():
                    self.post("master", action.to, action.parts)

    def _lease_taken(self, take: TakeLease) -> None:
        node = self.nodes[take.server]
        if (node.number, node.version) == (take.number, take.version):
            self.nodes[take.server] = _replace(node, number=node.number + 1, version=node.version + 1, is_held=False)
            self.tell(lambda: f"a master takes lease {take.number} of {take.server}")


_ACTIONS: dict[type, Callable[[Simulation, SimulatedServer, Any], None]] = {
    Write: Simulation._write,
    Free: Simulation._free,
    Send: Simulation._send,
    Answer: Simulation._answer,
    Serve: Simulation._serve,
    MakeFile: Simulation._make_file,
    ReadLog: Simulation._read_log,
    ReadMetadata: Simulation._read_metadata,
    ChangeMetadata: Simulation._change_metadata,
    AskLease: Simulation._ask_lease,
    Renew: Simulation._renew,
    RaiseBound: Simulation._raise_bound,
}


def simulate(seed: int, is_told: bool = False, mood: str | None = None) -> Simulation:
    """Run one schedule; what it finds says how to see it again."""
    simulation = Simulation(seed, is_told, mood)
    try:
        simulation.run()
    except Exception as error:
        hint = f"see it with python -m tests.replication.simulation {seed}"
        raise Violation(f"seed {seed} at {simulation.now:.3f}: {error!r}: {hint}") from error
    return simulation


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for number in range(first, first + count):
        simulate(number, is_told=count == 1)
