"""Clients that write, read and remember what they were told, so that whoever serves them can be held to it.

    registers   unique values put to a few rows, and read: every row's history has an order (linearizability.py)
    counters    increments: of those acknowledged none is lost, of those unknown each happened once or not at all
    chains      rows that name the row before them: no acknowledged one is missing, and none is broken off

An error tells a client that its read has no answer, or that it cannot know what became of its write; it goes on with
the next. What `check` raises tells which row, and what was seen of it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import inf

import ebla
from tests.support.linearizability import Operation, is_linearizable

__all__ = ["CheckedLoad"]

# A register is given up for a fresh row after so many operations: the search for an order grows with them.
OPERATIONS_MAX = 60
WRITERS_EACH = 2


class CheckedLoad:
    """Clients on threads of their own, between `start` and `stop`."""

    def __init__(
        self, db: ebla.Database, *, seed: int = 0, name: str = "load", pause_seconds: float = 0.0, replicas: int = 1
    ) -> None:
        """Make the tables, each in several tablets, with so many replicas."""
        self.errors: list[str] = []
        self.acknowledged = 0
        self._db = db
        self._dice = random.Random(seed)
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._histories: dict[int, list[Operation]] = defaultdict(list)
        self._added: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # acknowledged, unknown
        self._chains: dict[int, list[int]] = defaultdict(list)
        self._nodes: dict[int, int] = defaultdict(int)
        self._acknowledged_at: list[float] = []
        self._register = 0
        schema = ebla.Schema(key={"k": "int64"}, columns={"v": "string", "n": "int64", "previous": "int64"})
        make = partial(db.create_table, schema=schema, **({} if replicas == 1 else {"replicas": replicas}))
        self.registers = make(f"{name}-registers", splits=[1, 2, 3])
        self.counters = make(f"{name}-counters", splits=[1, 2, 3])
        self.chains = make(f"{name}-chains", splits=[10_000_000, 20_000_000])
        jobs = [self._use_registers, self._use_counters, self._use_chains]
        self._threads = [
            threading.Thread(target=self._run, args=(job, number, self._dice.random()), daemon=True)
            for number in range(WRITERS_EACH)
            for job in jobs
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_seconds: float = 60.0) -> None:
        """Let every client finish what it is about."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout_seconds)
            assert not thread.is_alive(), "a client still waits for an answer"

    def wait_for(self, more: int, timeout_seconds: float = 60.0) -> None:
        """Return when so many more operations were acknowledged."""
        wanted, deadline = self.acknowledged + more, time.monotonic() + timeout_seconds
        while self.acknowledged < wanted:
            assert time.monotonic() < deadline, f"only {self.acknowledged} of {wanted} acknowledged: {self.errors[-3:]}"
            time.sleep(0.01)

    def longest_pause_seconds(self) -> float:
        """Return the longest time in which nothing at all was acknowledged."""
        times = sorted(self._acknowledged_at)
        return max((after - before for before, after in pairwise(times)), default=inf)

    def check(self) -> None:
        """Hold what is there now against all that clients were told."""
        for row, history in sorted(self._histories.items()):
            now = time.monotonic()
            seen = [*history, Operation("read", _value(self.registers.get(row), "v"), now, now + 1)]
            assert is_linearizable(seen), f"register {row}: no order explains {sorted(seen, key=lambda one: one.began)}"
        for row, (certain, unknown) in sorted(self._added.items()):
            found = _value(self.counters.get(row), "n") or 0
            assert certain <= found <= certain + unknown, f"counter {row}: {found}, of {certain} and perhaps {unknown}"
        for writer, chain in sorted(self._chains.items()):
            rows = {row["k"]: row["previous"] for row in self.chains.scan(*_of(writer))}
            missing = [node for node in chain if node not in rows]
            assert not missing, f"chain {writer}: {len(missing)} acknowledged rows are missing, {missing[:5]} first"
            broken = [node for before, node in zip([None, *chain], chain, strict=False) if rows[node] != before]
            assert not broken, f"chain {writer}: {broken[:5]} name another row before them"

    # --- the clients -----------------------------------------------------------------------------

    def _run(self, job: Callable[[int, random.Random], None], number: int, seed: float) -> None:
        dice = random.Random(seed)
        while not self._stopping.is_set():
            job(number, dice)
            if self._pause_seconds:
                time.sleep(self._pause_seconds)

    def _use_registers(self, number: int, dice: random.Random) -> None:
        with self._lock:
            row = self._register
            if len(self._histories[row]) >= OPERATIONS_MAX:
                row = self._register = self._register + 1
        if dice.random() < 0.5:
            value = f"{number}-{dice.random()}"
            began, _, ended = self._tried(lambda: self.registers.put({"k": row, "v": value}))
            operation = Operation("write", value, began, ended)
        else:
            began, found, ended = self._tried(lambda: self.registers.get(row))
            operation = Operation("read", _value(found, "v"), began, ended)
        with self._lock:
            self._histories[row].append(operation)

    def _use_counters(self, number: int, dice: random.Random) -> None:
        row = dice.randrange(4)
        _, _, ended = self._tried(lambda: self.counters.increment(row, "n", 1))
        with self._lock:
            self._added[row][ended == inf] += 1

    def _use_chains(self, number: int, dice: random.Random) -> None:
        chain = self._chains[number]
        node = _of(number)[0] + self._next_node(number)
        before = chain[-1] if chain else None
        _, _, ended = self._tried(lambda: self.chains.put({"k": node, "previous": before}))
        if ended < inf:
            chain.append(node)

    def _next_node(self, number: int) -> int:
        with self._lock:
            self._nodes[number] += 1
            return self._nodes[number]

    def _tried(self, ask: Callable[[], object]) -> tuple[float, object, float]:
        began = time.monotonic()
        try:
            answer = ask()
        except ebla.EblaError as error:
            with self._lock:
                self.errors.append(f"{type(error).__name__}: {error}")
            return began, None, inf
        ended = time.monotonic()
        with self._lock:
            self.acknowledged += 1
            self._acknowledged_at.append(ended)
        return began, answer, ended


def _value(row: object, column: str) -> object:
    return None if row is None else row[column]


def _of(writer: int) -> tuple[int, int]:
    """Return the range of rows of one writer's chain."""
    return writer * 10_000_000, (writer + 1) * 10_000_000
