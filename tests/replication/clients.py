"""Clients of a schedule: each has one request under way at a time, and repeats it until it knows what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ebla.replication.actions import Answer
from ebla.replication.messages import FollowerRead, Put, Read, RequestId
from tests.replication.checks import Step, Violation

if TYPE_CHECKING:
    from tests.replication.simulation import Simulation

ROWS = (b"a", b"g", b"n", b"t")
TIMEOUT_SECONDS = 0.25
STALENESS_SECONDS = 0.5


class _Question:
    """What a client wants now."""

    def __init__(self, client: _Client, kind: str, rows: tuple[bytes, ...]) -> None:
        self.client = client
        self.kind = kind
        self.rows = rows
        self.left = set(rows)
        self.token = client.next_token()
        self.request = RequestId(client.name, self.token, client.seen)
        self.value = f"{client.name}.{self.token}"
        self.txn: int | None = None
        self.is_sure = True  # nothing of it can have happened
        self.tries = 0
        self.sent: dict[str, set[bytes]] = {}
        self.begin = client.simulation.now
        self.operations: dict[bytes, Step] = {}


class _Client:
    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.seen = 0
        self.question: _Question | None = None
        self.is_last = False
        self._token = 0

    def next_token(self) -> int:
        self._token += 1
        return self._token

    def think(self) -> None:
        simulation = self.simulation
        if self.question is None and simulation.has_faults:
            self.ask(_Question(self, *self._choose()))

    def _choose(self) -> tuple[str, tuple[bytes, ...]]:
        random = self.simulation.random
        row = random.choice(ROWS[:2] if random.random() < 0.6 else ROWS)
        writes = 150 if self.simulation.mood == "churn" else 45
        kind = random.choices(("put", "read", "read at", "follower"), (writes, 35, 10, 10))[0]
        if kind == "read at" and self.seen == 0:
            kind = "read"
        if kind == "put" and random.random() < 0.2:
            return kind, tuple(random.sample(ROWS, 2))
        return kind, (row,)

    def ask(self, question: _Question) -> None:
        simulation = self.simulation
        self.question = question
        history = simulation.checks.history
        if question.kind == "put":
            for row in question.rows:
                operation = Step(True, question.value, simulation.now)
                question.operations[row] = operation
                history.setdefault(row, []).append(operation)
        if question.kind == "read at":
            question.txn = self.seen + simulation.random.randrange(0, 400_000)
        self._send(question)

    def _send(self, question: _Question) -> None:
        simulation = self.simulation
        table = simulation.table
        if simulation.random.random() < 0.1:  # as it was before
            table = simulation.past[-1 - simulation.random.randrange(min(len(simulation.past), 4))]
        question.tries += 1
        question.sent = {}
        if question.kind != "put":
            question.token = self.next_token()
        for row in sorted(question.left):
            for tablet in table.tablets.values():
                if tablet.range.contains(row):
                    question.sent.setdefault(tablet.tablet, set()).add(row)
        for name, rows in question.sent.items():
            tablet = table.tablets[name]
            row = min(rows)
            message: Any
            to = tablet.leader
            if question.kind == "put":
                message = Put(name, question.request, tuple((one, question.value) for one in sorted(rows)))
                if question.tries > 1 and simulation.random.random() < 0.2:
                    message = Put(name, question.request, tuple((one, question.value) for one in question.rows))
            elif question.kind == "follower":
                to = simulation.random.choice(tablet.replicas).server
                message = FollowerRead(name, self.name, question.token, row, STALENESS_SECONDS)
            else:
                message = Read(name, self.name, question.token, row, question.txn)
            simulation.post("clients", to, (message,))
        simulation.at(TIMEOUT_SECONDS * (0.5 + question.tries), self._time_out, question, question.tries)

    def _time_out(self, question: _Question, tries: int) -> None:
        if self.question is question and question.tries == tries:
            question.is_sure = False
            self._again(question)

    def _again(self, question: _Question) -> None:
        simulation = self.simulation
        if simulation.has_faults and question.tries >= 6:
            self._done()  # it may have happened, or may happen yet
        else:
            if question.kind == "follower" and question.tries > 3:
                self._done()
                return
            self._send(question)

    def answered(self, server: str, answer: Answer, read: tuple[bytes, int, Any] | None) -> None:
        question = self.question
        if question is None or answer.token != question.token or answer.tablet not in question.sent:
            return
        simulation = self.simulation
        if answer.outcome == "done":
            self.seen = max(self.seen, answer.txn)
            if question.kind == "put":
                self._written(question, answer)
            elif read is not None:
                self._was_read(question, read)
                self._done()
        elif answer.outcome == "refused" and question.kind == "put":
            if question.is_sure and question.tries == 1 and len(question.sent) == 1:
                self.seen = max(self.seen, answer.txn)
                question.token = self.next_token()
                question.request = RequestId(self.name, question.token, self.seen)
                self._later(question)
            else:
                self._done()
        elif answer.outcome == "refused":
            self._done()
        else:
            question.is_sure = question.is_sure and answer.outcome == "retry" and question.tries == 1
            self._later(question)
        del simulation

    def _later(self, question: _Question) -> None:
        tries = question.tries
        question.tries += 1
        self.simulation.at(0.05 + 0.05 * tries, self._retry, question, question.tries)

    def _retry(self, question: _Question, tries: int) -> None:
        if self.question is question and question.tries == tries:
            question.tries -= 1
            self._again(question)

    def _written(self, question: _Question, answer: Answer) -> None:
        for row in question.sent[answer.tablet]:
            question.left.discard(row)
            question.operations[row].ended = min(question.operations[row].ended, self.simulation.now)
        if not question.left:
            self._done()

    def _was_read(self, question: _Question, read: tuple[bytes, int, Any]) -> None:
        row, _, found = read
        simulation = self.simulation
        if question.kind == "follower":
            self._check_fresh(question, row, found)
        elif question.txn is None:
            value = None if found is None else found[1]
            simulation.checks.history.setdefault(row, []).append(Step(False, value, question.begin, simulation.now))

    def _check_fresh(self, question: _Question, row: bytes, found: tuple[int, Any] | None) -> None:
        """A follower's answer has every write that a client was told of longer ago than it may be stale."""
        simulation = self.simulation
        since = question.begin - STALENESS_SECONDS * 1.05
        for operation in simulation.checks.history.get(row, ()):
            if operation.is_write and operation.ended < since:
                txn = simulation.checks.txn_of(row, operation.value)
                if txn is not None and (found is None or found[0] < txn):
                    raise Violation(f"a follower answers {found}, and {operation} was at {txn}")

    def _done(self) -> None:
        self.question = None
        self.simulation.clients.finished()
        self.simulation.at(self.simulation.random.uniform(0.0, 0.5), self.think)


class Clients:
    """All of them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._clients = {name: _Client(simulation, name) for name in ("c1", "c2", "c3")}
        self._last: list[_Client] = []
        self.is_concluded = False

    def begin(self) -> None:
        for client in self._clients.values():
            self._simulation.at(self._simulation.random.uniform(0, 0.2), client.think)

    def answered(self, server: str, answer: Answer, read: tuple[bytes, int, Any] | None) -> None:
        client = self._clients.get(answer.client)
        if client is not None:
            client.answered(server, answer, read)
        else:
            self._simulation.people.answered(answer)

    def conclude(self) -> None:
        """Everything is mended: every row is written and read once more, by clients of their own."""
        for row in ROWS:
            client = _Client(self._simulation, f"last-{row.decode()}")
            self._clients[client.name] = client
            self._last.append(client)
            client.ask(_Question(client, "put", (row,)))
            reader = _Client(self._simulation, f"reader-{row.decode()}")
            self._clients[reader.name] = reader
            self._last.append(reader)
            reader.ask(_Question(reader, "read", (row,)))

    def finished(self) -> None:
        """A client knows what became of its question."""
        self.is_concluded = bool(self._last) and all(client.question is None for client in self._last)

    def open_questions(self) -> list[str]:
        return [f"{one.name} {one.question.kind} {one.question.rows}" for one in self._last if one.question is not None]
