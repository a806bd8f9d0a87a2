"""What people, balancers and jobs do in a schedule: flush, split, alter, load, move, more or fewer replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication.actions import Answer, Change
from ebla.replication.changes import AddReplica, SetWanted
from ebla.replication.configuration import Configuration, Plan
from ebla.replication.messages import Advance, CloseGate, Entry, GiveUp, TakeOut
from ebla.replication.recut_changes import AbortLoad, Alter, CancelSplit, CommitLoad
from tests.replication.checks import Step
from tests.replication.clients import ROWS

if TYPE_CHECKING:
    from tests.replication.simulation import Simulation

SPLIT_ROWS = (b"d", b"k", b"p")


class People:
    """Ask for something at random moments, until the faults stop."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._jobs: dict[str, _Load] = {}
        mood = simulation.mood
        self._rate = {"even": 2.5, "churn": 8.0}.get(mood, 4.0)  # a second
        self._kinds = (
            (self._flush, 16),
            (self._move_leader, 150 if mood == "churn" else 40 if mood == "stale" else 8),
            (self._add_replica, 30 if mood == "moves" else 4),
            (self._take_out, 30 if mood == "moves" else 4),
            (self._split, 5),
            (self._cancel_split, 1),
            (self._alter, 2),
            (self._load, 4),
            (self._set_wanted, 2),
        )

    def act(self) -> None:
        """Ask for something, and come again."""
        simulation = self._simulation
        if simulation.has_faults:
            kinds, weights = zip(*self._kinds, strict=True)
            simulation.random.choices(kinds, weights)[0]()
            simulation.at(simulation.random.expovariate(self._rate), self.act)

    def answered(self, answer: Answer) -> None:
        """A leader answers a job."""
        job = self._jobs.get(answer.client)
        if job is not None:
            job.answered(answer)

    def _some(self) -> Configuration:
        return self._simulation.random.choice(list(self._simulation.table.tablets.values()))

    def _change(self, change: Change) -> None:
        self._simulation.ask_metadata("people", (change,))

    def _flush(self) -> None:
        simulation = self._simulation
        tablet = self._some()
        server = simulation.servers[tablet.leader]
        simulation.call(server, server.run, "flush", tablet.tablet)

    def _move_leader(self) -> None:
        simulation = self._simulation
        tablet = self._some()
        successor = simulation.random.choice(tablet.in_sync).server
        simulation.post("master", tablet.leader, (GiveUp(tablet.tablet, tablet.epoch, successor),))

    def _add_replica(self) -> None:
        tablet = self._some()
        there = {member.server for member in tablet.replicas}
        free = [name for name in self._simulation.servers if name not in there]
        if free and tablet.wanted > 1:
            replica = Replica(self._simulation.random.choice(free), self._simulation.new_id())
            self._change(AddReplica(tablet.tablet, tablet.number, replica))

    def _take_out(self) -> None:
        tablet = self._some()
        member = self._simulation.random.choice(tablet.in_sync)
        message = TakeOut(tablet.tablet, tablet.epoch, Replica(member.server, member.assignment_id))
        self._simulation.post("master", tablet.leader, (message,))

    def _set_wanted(self) -> None:
        simulation = self._simulation
        tablet = self._some()
        wanted = simulation.random.choice((1, 3, 3, 4, 5))
        if tablet.wanted > 1 and wanted <= len(simulation.servers):
            self._change(SetWanted(tablet.tablet, tablet.number, max(wanted, 2)))

    def _split(self) -> None:
        simulation = self._simulation
        if len(simulation.table.tablets) > 2:
            return
        tablet = self._some()
        row = simulation.random.choice(SPLIT_ROWS)
        if not (tablet.first < row and tablet.range.contains(row)):
            return
        left, right = (
            tuple(Replica(member.server, simulation.new_id()) for member in tablet.replicas) for _ in range(2)
        )
        plan = Plan(row, (simulation.new_id(), simulation.new_id()), (left, right))
        server = simulation.servers[tablet.leader]
        simulation.call(server, server.run, "split", tablet.tablet, plan)

    def _cancel_split(self) -> None:
        tablet = self._some()
        self._change(CancelSplit(tablet.tablet, tablet.number))

    def _alter(self) -> None:
        self._change(Alter(self._simulation.table.schema_version + 1))

    def _load(self) -> None:
        if len(self._jobs) < 3:
            job = _Load(self._simulation)
            self._jobs[job.name] = job
            job.begin()


class _Load:
    """A bulk load of some rows: gates, one txn, one change of METADATA."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.name = f"job-{simulation.new_id()}"
        self._file = f"{self.name}.file"
        self._rows = tuple(sorted(simulation.random.sample(ROWS, simulation.random.randint(1, 3))))
        self._tablets = [
            tablet
            for tablet in simulation.table.tablets.values()
            if any(tablet.range.contains(row) for row in self._rows)
        ]
        self._reserved: dict[str, tuple[int, int]] = {}  # txn, configuration number
        self._advanced: set[str] = set()
        self._txn = 0
        self._tries = 0

    def begin(self) -> None:
        """Close the gates."""
        simulation = self._simulation
        for row in self._rows:
            simulation.checks.history.setdefault(row, []).append(Step(True, self.name, simulation.now))
        self._go_on()

    def _go_on(self) -> None:
        simulation = self._simulation
        self._tries += 1
        if self._tries > 6 or self.name in simulation.table.jobs:
            if simulation.random.random() < 0.5:
                simulation.ask_metadata("people", (AbortLoad(self.name),))
            return
        for tablet in self._tablets:
            if tablet.tablet not in self._reserved:
                simulation.post("clients", tablet.leader, (CloseGate(tablet.tablet, self.name, self.name),))
            elif self._txn and tablet.tablet not in self._advanced:
                simulation.post("clients", tablet.leader, (Advance(tablet.tablet, self.name, self.name, self._txn),))
        if len(self._advanced) == len(self._tablets):
            self._commit()
        simulation.at(0.1, self._go_on)

    def answered(self, answer: Answer) -> None:
        """A gate is closed, or a clock has passed the txn."""
        if answer.token == 0 and answer.tablet not in self._reserved:
            self._reserved[answer.tablet] = (answer.txn, answer.number)
            if len(self._reserved) == len(self._tablets):
                self._txn = max(txn for txn, _ in self._reserved.values())
        elif answer.token == 1 and answer.txn == self._txn:
            self._advanced.add(answer.tablet)

    def _commit(self) -> None:
        simulation = self._simulation
        rows = tuple((row, self.name) for row in self._rows)
        simulation.files[self._file] = [Entry(0, 0, self._txn, "write", rows=rows)]
        named = tuple((tablet, number) for tablet, (_, number) in self._reserved.items())
        simulation.ask_metadata("people", (CommitLoad(self.name, self._txn, named, self._file),))
