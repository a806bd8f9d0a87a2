"""A seeded simulation of metadata servers: disks, network, coordination service and requesters, in one process.

    python tests/metadata/consensus/simulation.py 4711            replays the schedule of a seed and prints what happens
    python tests/metadata/consensus/simulation.py 0 100000        runs many, and stops at the first that breaks a rule

One seed is one schedule. It draws how many servers there are and what goes wrong (messages lost, late, doubled,
overtaken; partitions; crashes in the middle of writing; the coordination service's requests and replies lost, or
carried out late; damaged files; servers that join and leave), lets it go wrong for a while, and then mends everything.

What is checked:
- every file of a transaction is the same on all servers;
- what becomes current was built on what was current, and is held by a majority of its servers at that moment;
- no file of a committed transaction is dropped while it may be needed;
- a requester who was told "committed" was told the truth, and one who was told "refused" too;
- a read shows at least what was committed when it was asked for;
- in the end every server serves the same, and it holds every committed request exactly once, in order.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from ebla.metadata.consensus.peer import MetadataPeer
from ebla.metadata.consensus.protocol import (
    Action,
    AskConfig,
    AskSwitch,
    Changed,
    ChangeRequest,
    Discard,
    Message,
    ReadRequest,
    Reply,
    Save,
    Send,
    Subscribe,
)
from ebla.metadata.consensus.reading import metadata_after
from ebla.metadata.values.changes import RecordJob, RequireSchema
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata, initial_metadata
from ebla.metadata.values.transaction_file import SnapshotRecord, decode, encode
from ebla.model.declaration import Group, Schema

TABLE = "t"
TICK = 10
FAULTS_END = 110  # then everything is mended
QUESTIONS = 215  # when all servers are asked what they have
END = 235
PATIENCE = 30  # of a requester
ATTEMPTS_MAX = 4

_INITIAL = initial_metadata(
    TABLE, Schema(key={"k": "string"}, groups=[Group("g", columns={"v": "int32"})]).number(), ["a"]
)


class Violation(AssertionError):
    """A rule was broken."""


class Server:
    """A server: its disk survives, its peer does not."""

    __slots__ = ("disk", "name", "peer", "run")

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk: dict[str, bytes] = {}
        self.peer: MetadataPeer | None = None
        self.run = 0  # counts starts: what an earlier run was waiting for reaches nobody


class Request:
    """A change that a requester wants made."""

    __slots__ = ("attempts", "base", "copies", "id", "job", "outcome")

    def __init__(self, id: str, job: str | None, base: str) -> None:
        self.id = id
        self.job = job
        self.base = base
        self.attempts = 0
        self.copies = 0
        self.outcome: str | None = None


class Simulation:
    """One schedule."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = rng = random.Random(seed)
        self.trace = trace
        self.now = 0
        self.events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order = 0
        self.ids = 0
        # What goes wrong in this schedule, and how often.
        self.loss = rng.choice((0.0, 0.0, 0.05, 0.2))
        self.doubling = rng.choice((0.0, 0.0, 0.1))
        self.lateness = rng.choice((0.0, 0.05, 0.2))
        self.switch_trouble = rng.choice((0.0, 0.15, 0.5))
        self.damage = rng.random() < 0.15
        self.patience_ticks = rng.choice((2, 8))
        self.snapshot_every = rng.choice((2, 3, 8))
        count = rng.choice((1, 2, 3, 3, 3, 3, 4, 5))
        spare = rng.choice((0, 0, 1, 2))
        # The coordination service, and what it has seen.
        first = _INITIAL.with_txnid("x0", 1)
        self.config = TableConfig("t", "running", "x0", tuple(f"s{n}" for n in range(count)))
        self.version = 1
        self.committed = ["x0"]
        content = encode(SnapshotRecord(None, first.checksum, first))
        self.contents = {"x0": content}
        self.bases: dict[str, tuple[str | None, bool]] = {"x0": (None, True)}
        self.done: list[str] = []  # the requests of all committed transactions, in order
        # Servers and requesters.
        self.servers = {f"s{n}": Server(f"s{n}") for n in range(count + spare)}
        for name in self.config.metadata_servers:
            self.servers[name].disk["x0"] = content
        self.requests: dict[str, Request] = {}
        self.reads: dict[str, int] = {}
        self.answers: dict[str, str] = {}
        self.told = "x0"
        self.cut: set[str] = set()  # servers that reach only each other
        self.deaf: set[str] = set()  # servers that do not reach the coordination service
        for server in self.servers.values():
            self.start(server)
        self.plan()

    def plan(self) -> None:
        rng = self.random
        for number in range(rng.randint(2, 6)):
            # A job of its own; one that two cannot have; or something that could well be done twice.
            request = Request(f"r{number}", rng.choice((f"j{number}", f"j{number}", "shared", None)), "")
            self.requests[request.id] = request
            # Often all at once, so that they meet.
            self.at(rng.choice((1, 1, 2, 20, 40)) + rng.randrange(25), self.ask, request)
        for number in range(rng.randint(0, 3)):
            self.at(rng.randrange(5, FAULTS_END), self.read, f"q{number}")
        for _ in range(rng.choice((0, 0, 1, 2))):
            self.at(rng.randrange(5, FAULTS_END - 30), self.crash, rng.choice(list(self.servers)))
        if rng.random() < 0.3:
            self.at(rng.randrange(5, FAULTS_END - 40), self.partition)
        if rng.random() < 0.2:
            self.at(rng.randrange(5, FAULTS_END - 40), self.deafen)
        if rng.random() < 0.4:
            for _ in range(rng.choice((1, 1, 2))):
                self.at(rng.randrange(5, FAULTS_END), self.membership, rng.choice(list(self.servers)))
        if self.damage:
            self.at(rng.randrange(20, FAULTS_END), self.spoil)
        self.at(3, self.send, "w", "s0", Subscribe("x0"))
        self.at(FAULTS_END, self.mend)
        self.at(QUESTIONS, self.question)

    # --- time ------------------------------------------------------------------------------------

    def at(self, time: int, what: Callable[..., None], *arguments: Any) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, what, arguments))

    def run(self) -> None:
        events = self.events
        pop = heapq.heappop
        while events:
            self.now, _, what, arguments = pop(events)
            if self.now > END:
                break
            what(*arguments)
        self.check_end()

    def delay(self) -> int:
        rng = self.random
        if self.lateness and rng.random() < self.lateness:
            return rng.randrange(5, 60)
        return rng.randrange(1, 4)

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:4d}  {text}")

    def fail(self, text: str) -> None:
        raise Violation(f"seed {self.seed}, time {self.now}: {text}")

    # --- servers ---------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.run += 1
        records = [decode(content, txnid) for txnid, content in server.disk.items()]
        server.peer = MetadataPeer(
            server.name,
            TABLE,
            records,
            new_id=self.new_id,
            snapshot_every=self.snapshot_every,
            patience_ticks=self.patience_ticks,
        )
        self.at(self.now + self.random.randrange(1, TICK + 1), self.tick, server, server.run)

    def new_id(self) -> str:
        self.ids += 1
        return f"x{self.ids}"

    def tick(self, server: Server, run: int) -> None:
        if server.run == run and server.peer is not None:
            self.do(server, server.peer.tick())
            self.at(self.now + TICK, self.tick, server, run)

    def do(self, server: Server, actions: list[Action]) -> None:
        for action in actions:
            kind = type(action)
            if kind is Send:
                self.send(server.name, action.to, action.message)
            elif kind is Save:
                self.at(self.now + self.random.randrange(1, 4), self.save, server, server.run, action)
            elif kind is AskConfig:
                self.ask_config(server, action.tag)
            elif kind is AskSwitch:
                self.ask_switch(server, action)
            elif kind is Discard:
                self.discard(server, action.txnid)

    def save(self, server: Server, run: int, action: Save) -> None:
        if server.run != run or server.peer is None:
            if self.random.random() < 0.5:
                self.keep(server, action)  # it was on disk, but nobody came to know
            return
        self.keep(server, action)
        self.do(server, server.peer.saved(action.txnid))

    def keep(self, server: Server, action: Save) -> None:
        known = self.contents.get(action.txnid)
        if known is None:
            self.contents[action.txnid] = action.content
            record = decode(action.content, action.txnid)
            self.bases[action.txnid] = (record.base, isinstance(record, SnapshotRecord))
        elif known != action.content:
            self.fail(f"{server.name} has another file for {action.txnid} than others have")
        server.disk[action.txnid] = action.content

    def discard(self, server: Server, txnid: str) -> None:
        if self.trace is not None:
            self.note(f"{server.name} drops {txnid}")
        server.disk.pop(txnid, None)
        if txnid in self.committed and self.snapshots_since(txnid) < 2:
            self.fail(f"{server.name} dropped {txnid}, which is committed and not old")

    def snapshots_since(self, txnid: str) -> int:
        """How many snapshots were committed after a transaction was."""
        return sum(self.bases[later][1] for later in self.committed[self.committed.index(txnid) + 1 :])

    def holds(self, server: Server, txnid: str) -> bool:
        while txnid in server.disk:
            base, is_snapshot = self.bases[txnid]
            if is_snapshot:
                return True
            assert base is not None
            txnid = base
        return False

    # --- the network -----------------------------------------------------------------------------

    def send(self, sender: str, to: str, message: Message) -> None:
        rng = self.random
        if self.trace is not None:
            self.note(f"{sender} -> {to}: {_short(message)}")
        if self.now < FAULTS_END:
            if (sender in self.cut) != (to in self.cut) or (self.loss and rng.random() < self.loss):
                return
            if self.doubling and rng.random() < self.doubling:
                if type(message) is ChangeRequest:
                    self.requests[message.request_id].copies += 1
                self.at(self.now + self.delay(), self.deliver, sender, to, message)
        self.at(self.now + self.delay(), self.deliver, sender, to, message)

    def deliver(self, sender: str, to: str, message: Message) -> None:
        server = self.servers.get(to)
        if server is None:
            self.hear(sender, message)
        elif server.peer is not None:
            self.do(server, server.peer.receive(sender, message))

    # --- the coordination service ----------------------------------------------------------------

    def ask_config(self, server: Server, tag: int) -> None:
        rng = self.random
        run = server.run
        if server.name in self.deaf or (self.now < FAULTS_END and rng.random() < self.switch_trouble / 3):
            self.at(self.now + 3, self.answer, server, run, "config_failed", (tag,))
            return
        self.at(self.now + rng.randrange(1, 4), self.read_config, server, run, tag)

    def read_config(self, server: Server, run: int, tag: int) -> None:
        reply = (tag, self.config, self.version)
        self.at(self.now + self.random.randrange(1, 4), self.answer, server, run, "config_read", reply)

    def ask_switch(self, server: Server, action: AskSwitch) -> None:
        rng = self.random
        run = server.run
        if server.name in self.deaf:
            self.at(self.now + 3, self.answer, server, run, "switch_failed", (action.tag,))
            return
        fate = "well"
        if self.now < FAULTS_END and rng.random() < self.switch_trouble:
            fate = rng.choice(("request lost", "reply lost", "reply lost", "late", "late"))
        self.note(f"{server.name} switches to {action.config} at {action.expected_version}: {fate}")
        if fate != "request lost":
            wait = rng.randrange(15, 60) if fate == "late" else rng.randrange(1, 4)
            self.at(self.now + wait, self.switch, server, run, action, fate == "well")
        if fate != "well":
            self.at(self.now + 10, self.answer, server, run, "switch_unknown", (action.tag,))

    def switch(self, server: Server, run: int, action: AskSwitch, replies: bool) -> None:
        fits = action.expected_version == self.version
        if fits:
            self.switched(action.config)
        if replies:
            reply = (action.tag, self.version) if fits else (action.tag,)
            method = "switch_done" if fits else "switch_refused"
            self.at(self.now + self.random.randrange(1, 4), self.answer, server, run, method, reply)

    def switched(self, config: TableConfig) -> None:
        txnid = config.metadata_txnid
        self.note(f"current: {config}")
        if txnid != self.config.metadata_txnid:
            content = self.contents.get(txnid)
            if content is None:
                self.fail(f"{txnid} became current, and nobody has it")
            record = decode(content, txnid)
            if record.base != self.committed[-1]:
                self.fail(f"{txnid} became current, built on {record.base} and not on {self.committed[-1]}")
            self.committed.append(txnid)
            for request in record.requests:
                if request in self.done:
                    self.fail(f"{request} was done twice")
                self.done.append(request)
        self.config = config
        self.version += 1
        servers = config.metadata_servers
        holders = sum(self.holds(self.servers[name], txnid) for name in servers)
        if holders < (1 if self.damage else len(servers) // 2 + 1):
            self.fail(f"{txnid} is current, and only {holders} of {servers} hold it")

    def answer(self, server: Server, run: int, method: str, arguments: tuple[Any, ...]) -> None:
        if server.run == run and server.peer is not None:
            self.do(server, getattr(server.peer, method)(*arguments))

    # --- requesters ------------------------------------------------------------------------------

    def ask(self, request: Request) -> None:
        if request.outcome is not None:
            return
        if request.attempts == ATTEMPTS_MAX:
            request.outcome = "given up"
            return
        request.base = request.base or self.told
        request.attempts += 1
        request.copies += 1
        to = self.random.choice(self.config.metadata_servers)
        change = RequireSchema(_INITIAL.schema.version) if request.job is None else RecordJob(request.job, 1)
        self.send("c", to, ChangeRequest(request.id, request.base, (change,)))
        self.at(self.now + PATIENCE, self.again, request, request.attempts)

    def again(self, request: Request, attempts: int) -> None:
        if request.attempts == attempts:
            self.ask(request)

    def read(self, request_id: str) -> None:
        self.reads[request_id] = len(self.committed)
        self.send("c", self.random.choice(list(self.servers)), ReadRequest(request_id))

    def question(self) -> None:
        for name in self.config.metadata_servers:
            self.reads[name] = len(self.committed)
            self.send("c", name, ReadRequest(name))

    def hear(self, sender: str, message: Message) -> None:
        if type(message) is not Reply:
            assert type(message) is Changed
            if message.txnid not in self.committed:
                self.fail(f"a watcher was told of {message.txnid}, which is not committed")
            return
        request = self.requests.get(message.request_id)
        if request is None:
            self.hear_read(message)
        elif message.outcome == "committed":
            if request.id not in self.done or message.txnid not in self.committed:
                self.fail(f"{request.id} was said to be committed, and is not")
            assert message.txnid is not None
            request.outcome = "committed"
            if self.committed.index(message.txnid) > self.committed.index(self.told):
                self.told = message.txnid
        elif request.outcome is None:
            if message.outcome == "refused":
                # If an earlier attempt, or a double, is still on its way, only the end will tell.
                request.outcome = "refused" if request.copies == 1 else "given up"
            else:
                if message.outcome == "too old" and not self.damage and self.snapshots_since(request.base) < 2:
                    self.fail(f"{request.id} was said to be too old, and its base {request.base} is not")
                self.at(self.now + 5, self.again, request, request.attempts)

    def hear_read(self, message: Reply) -> None:
        if message.outcome != "read":
            return
        metadata = metadata_after(TABLE, message.contents, None)
        if metadata.txnid not in self.committed:
            self.fail(f"a read showed {metadata.txnid}, which is not committed")
        if self.committed.index(metadata.txnid) + 1 < self.reads[message.request_id]:
            self.fail(f"a read showed {metadata.txnid}, which was not current any more when it was asked for")
        self.answers[message.request_id] = metadata.txnid
        if metadata.txnid == self.committed[-1]:
            self.check_content(metadata)

    # --- trouble ---------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        self.note(f"{name} crashes")
        server = self.servers[name]
        server.peer = None
        server.run += 1
        self.at(min(self.now + self.random.randrange(1, 60), FAULTS_END), self.restart, server)

    def restart(self, server: Server) -> None:
        if server.peer is None:
            self.note(f"{server.name} starts again")
            self.start(server)

    def partition(self) -> None:
        names = list(self.servers)
        self.cut = set(self.random.sample(names, self.random.randint(1, len(names))))
        if self.random.random() < 0.5:
            self.cut.add("c")
        self.note(f"cut off: {sorted(self.cut)}")
        self.at(self.now + self.random.randrange(10, 60), self.cut.clear)

    def deafen(self) -> None:
        self.deaf = {self.random.choice(list(self.servers))}
        self.at(self.now + self.random.randrange(10, 60), self.deaf.clear)

    def membership(self, name: str) -> None:
        server = self.servers[name]
        if server.peer is not None:
            self.note(f"{name} is to join or leave")
            is_member = name in self.config.metadata_servers
            self.do(server, server.peer.leave() if is_member else server.peer.join())

    def spoil(self) -> None:
        """Damage a file that another server of the table has too, and is not about to leave with."""
        members = [self.servers[name] for name in self.config.metadata_servers]
        holders = [server for server in members if self.holds(server, self.committed[-1])]
        if len(holders) < 2 or any(server.peer and server.peer.membership.wish for server in members):
            return
        server = self.random.choice(holders)
        txnid = self.random.choice(sorted(server.disk))
        self.note(f"{txnid} is damaged at {server.name}")
        del server.disk[txnid]
        if server.peer is not None:
            self.do(server, server.peer.damaged(txnid))

    def mend(self) -> None:
        self.note("everything is mended")
        self.cut.clear()
        self.deaf.clear()
        self.lateness = 0.0
        for server in self.servers.values():
            self.restart(server)

    # --- the end ---------------------------------------------------------------------------------

    def check_content(self, metadata: TableMetadata) -> None:
        jobs = [self.requests[request].job for request in self.done]
        expected = tuple((job, 1) for job in jobs if job is not None)
        if metadata.jobs != expected:
            self.fail(f"{metadata.txnid} holds {metadata.jobs}, committed was {expected}")

    def check_end(self) -> None:
        current = self.committed[-1]
        for name in self.config.metadata_servers:
            if self.answers.get(name) != current:
                self.fail(f"{name} does not serve {current} in the end, but {self.answers.get(name)}")
        for request in self.requests.values():
            if request.outcome is None:
                self.fail(f"{request.id} was never answered")
            if request.outcome == "refused" and request.id in self.done:
                self.fail(f"{request.id} was said to be refused, and was done")


def _short(message: Message) -> str:
    text = repr(message)
    return text if len(text) < 160 else f"{text[:160]}..."


def simulate(seed: int) -> Simulation:
    """Run the schedule of a seed; `Violation` if a rule is broken."""
    simulation = Simulation(seed)
    try:
        simulation.run()
    except Exception as error:
        error.add_note(f"replay it: python tests/metadata/consensus/simulation.py {seed}")
        raise
    return simulation


if __name__ == "__main__":
    first = int(sys.argv[1])
    if len(sys.argv) == 2:
        Simulation(first, print).run()
    else:
        for seed in range(first, first + int(sys.argv[2])):
            simulate(seed)
        print("no rule was broken")
