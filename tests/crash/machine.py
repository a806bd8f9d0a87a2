"""A machine to crash: a simulated disk, a coordination service that outlives its clients, and a clock.

    play(steps)  --->  store on SimulatedFiles + MemoryCoordination
                         |  before every operation on either: a Moment (the disk as it is, the nodes, the journal)
                         v
    moment.images()  --->  check: open it, compare with what may have survived

One run gives all moments of a crash: the disk is copied, not re-made by running the story again for each of them.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import Faults, MemoryCoordination, MemoryStore
from ebla.errors import Conflict, EblaError, RequestError, Unavailable
from ebla.metadata.server.metadata_store import MetadataNotSaved
from ebla.settings import Settings
from tests.crash.journal import (
    ACKED,
    BEGUN,
    RAISED,
    REFUSED,
    VERSIONS,
    Contents,
    Expectations,
    Journal,
    by_value,
    possible,
)
from tests.crash.story import Step
from tests.support.inside import abandon, state_of
from tests.support.simulated_files import FaultPlan, Operation, SimulatedFiles

STEP_SECONDS = 4.0
BOUND_SECONDS = 60.0

T = TypeVar("T")


def bounded(work: Callable[[], T], seconds: float = BOUND_SECONDS) -> T:
    """Return what `work` returns or raise what it raises; fail if it takes for ever."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True, name="bounded")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        raise AssertionError(f"it hangs: not finished after {seconds} seconds")
    answer, error = outcome[0]
    if error is not None:
        raise error
    return answer  # type: ignore[no-any-return]


def open_store(
    files: SimulatedFiles, nodes: MemoryStore, clock: ManualClock, settings: Settings, faults: Faults | None = None
) -> Database:
    """Open a store for writing on simulated parts."""
    coordination = MemoryCoordination(nodes, clock, faults=faults)
    return wire(Path("simulated"), files, coordination, clock, settings, None)


def contents_of(db: Database, *, thorough: bool = True) -> Contents:
    """Read everything with all its versions; if `thorough`, by scan, get and get_many too, which must agree."""
    found: dict[str, Any] = {}
    as_of = db.snapshot().txn  # commits that nobody waited for may still be on their way into the log
    for name in db.tables():
        table = db.table(name)
        if state_of(table).is_offline:  # a step was cut between unloading and loading it
            db.load_table(name)
        keys = table.key_names
        rows = list(table.scan(versions=VERSIONS, as_of=as_of))
        found[name] = [by_value(row, keys) for row in rows]
        if not thorough:
            continue
        plain = [dict(row) for row in table.scan(as_of=as_of)]
        newest = [{n: v if n in keys else v[0].value if v else None for n, v in row.items()} for row in rows]
        assert [_shown(row) for row in plain] == [_shown(row) for row in newest]
        asked = [row[keys[0]] for row in plain]
        got = [table.get(key, as_of=as_of) for key in asked]
        assert [dict(row) if row is not None else None for row in got] == plain
        if asked:
            assert all(table.get_many(asked, as_of=as_of).column("_found").to_pylist())
            if db.snapshot().txn == as_of:
                assert [dict(table.get(key) or {}) for key in asked] == plain  # through the row cache
    return found


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True)
class Moment:
    """The machine between two operations: what is on the disk and in the coordination service, and what was told."""

    label: str
    files: SimulatedFiles
    nodes: MemoryStore
    statuses: tuple[str, ...]

    def disks(self, seed: int, count: int) -> Iterator[SimulatedFiles]:
        """Yield different disks that a crash at this moment may leave, and that of a kill, each once."""
        seen = set()
        for disk in [*self.files.crash_images(seed, count), self.files.restarted()]:
            print_of = fingerprint(disk)
            if print_of not in seen:
                seen.add(print_of)
                yield disk


def fingerprint(disk: SimulatedFiles) -> int:
    return hash(tuple((path, bytes(inode.data)) for path, inode in sorted(disk._names.items())))


class Machine:
    """Plays steps on one store, and tells how each of them ended."""

    def __init__(self, steps: Sequence[Step], settings: Settings, expectations: Expectations | None = None) -> None:
        self.files = SimulatedFiles()
        self.nodes = MemoryStore()
        self.clock = ManualClock()
        self.settings = settings
        self.journal = Journal(steps)
        self.expectations = expectations or Expectations(steps)
        self.faults: Faults | None = None
        self.errors: list[Exception] = []
        self.db: Database | None = None

    def open(self) -> Database:
        self.clock.advance(60)
        self.db = open_store(self.files, self.nodes, self.clock, self.settings, self._on_request)
        return self.db

    def _on_request(self, name: str, paths: tuple[str, ...]) -> Any:
        return None if self.faults is None else self.faults(name, paths)

    def play(self, after_step: Callable[[Step], None] = lambda step: None, *, after_error: int = 1_000) -> None:
        """Play the steps, at most `after_error` of them after the first that fails.

        A step may fail with an `EblaError`, which is noted, and with nothing else.
        """
        if self.db is None:
            self.tried(self.open)
        while not self.is_over:
            if self.errors:
                after_error -= 1
                if after_error < 0:
                    break
            after_step(self.step())

    @property
    def is_over(self) -> bool:
        return len(self.journal.statuses) == len(self.journal.steps)

    def step(self) -> Step:
        """Play the next step."""
        self.clock.advance(STEP_SECONDS)
        step = self.journal.begin()
        if step.kind == "reopen":
            self._reopen()
        else:
            self._do(step)
        return step

    def _do(self, step: Step) -> None:
        if self.db is None:
            self.journal.end(REFUSED)  # the store could not be opened again
            return
        try:
            step.act(self.db)
        except (RequestError, Conflict, Unavailable, MetadataNotSaved) as error:  # "nothing was changed"
            self.errors.append(error)
            self.journal.end(REFUSED)
        except EblaError as error:
            self.errors.append(error)
            self.journal.end(RAISED)
        else:
            self.journal.end(ACKED)

    def _reopen(self) -> None:
        if self.db is not None:
            self.tried(self.db.close)
        self.db = None
        self.tried(self.open)
        if self.db is not None:
            self.settle()
        self.journal.end(ACKED)

    def tried(self, work: Callable[[], object]) -> None:
        """Do something that may fail, and note how it did."""
        try:
            work()
        except EblaError as error:
            self.errors.append(error)

    def settle(self) -> None:
        """See which of the steps happened; from then on that must not change."""
        assert self.db is not None
        included = self.check(self.db, tuple(self.journal.statuses), "reopened")
        self.journal.settle(included)

    def check(self, db: Database, statuses: Sequence[str], where: str, *, thorough: bool = True) -> tuple[bool, ...]:
        """Assert that a store holds what may have survived; return which steps that is."""
        found = contents_of(db, thorough=thorough)
        included = self.expectations.explain(found, statuses)
        assert included is not None, self._difference(found, statuses, where)
        return included

    def check_disk(
        self, disk: SimulatedFiles, nodes: MemoryStore, statuses: Sequence[str], where: str, *, thorough: bool = False
    ) -> None:
        """Open a disk as the next process would, and compare. It must open: a crash damages nothing."""
        clock = ManualClock(self.clock.microseconds() + 60_000_000)
        db = open_store(disk, nodes.copy(), clock, replace(self.settings, open_files_max=256, scan_batch_rows=1_000))
        try:
            self.check(db, statuses, where, thorough=thorough)
        finally:
            abandon(db)

    def capture(self, moments: list[Moment], wanted: Callable[[Operation], bool] = lambda operation: True) -> None:
        """Note a moment before every operation on a file that is wanted, and on a node, from now on."""

        def moment(label: str) -> None:
            with self.files._lock:
                # What was told is read first and what was begun last: in between, the story may go on.
                told = tuple(self.journal.statuses)
                files = self.files.restarted()
                nodes = self.nodes.copy()
                begun = len(self.journal.statuses)
            moments.append(Moment(label, files, nodes, told + (BEGUN,) * (begun - len(told))))

        def on_operation(operation: Operation) -> None:
            if wanted(operation):
                moment(f"{operation.number} {operation.kind} {operation.path}")

        def on_request(name: str, paths: tuple[str, ...]) -> None:
            if name not in ("read", "list", "watch"):
                moment(f"{name} {', '.join(paths)}")

        self.files.plan = FaultPlan(when=on_operation)
        self.faults = on_request

    def _difference(self, found: Contents, statuses: Sequence[str], where: str) -> str:
        best = self.expectations.contents(next(possible(self.journal.steps, statuses)))
        steps = "\n".join(f"  {s:8} {step.name}" for step, s in zip(self.journal.steps, statuses, strict=False))
        shown = [f"{where}: what is found cannot be what survived", steps]
        for name in sorted({*best, *found}):
            for row in found.get(name, []):
                if row not in best.get(name, []):
                    shown.append(f"  {name}: found    {row}")
            for row in best.get(name, []):
                if row not in found.get(name, []):
                    shown.append(f"  {name}: expected {row}")
            if (name in found) != (name in best):
                shown.append(f"  table {name} {'is there' if name in found else 'is missing'}")
        shown += [f"  error: {type(error).__name__}: {error}" for error in self.errors]
        return "\n".join(shown)
