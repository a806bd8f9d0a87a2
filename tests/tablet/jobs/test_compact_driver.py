"""Commits of compactions by jobs, when the coordination service loses messages: no row is lost, whatever arrives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.errors import EblaError, OutcomeUnknown
from ebla.service.job_orders import CompactCommit, CompactResult
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from tests.support.compact_here import compact_here
from tests.support.inside import carry_out, engine_of

SETTINGS = Settings(background_compaction=False, history_seconds=0.0)
SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})
EXPECTED = {key: key * (3 if key % 3 == 0 else 1) for key in range(1, 60)}


class World:
    """A table of two tablets, and the commit of a compaction of it that is about to be made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes = MemoryStore()
        self.clock = ManualClock()
        self.faults: Callable[[str, tuple[str, ...]], Fault | None] | None = None
        root.mkdir()
        self.db = self.open()
        self.table = self.db.create_table("t", SCHEMA, splits=[(30,)])
        for step in (1, 3):
            self.table.put([{"k": key, "n": key * step} for key in range(0, 60, step)])
            self.table.flush()
        self.table.erase(0)
        self.clock.advance(60)
        self.order = self.merged()

    def open(self) -> Database:
        self.clock.advance(60)
        coordination = MemoryCoordination(self.nodes, self.clock, faults=self._on_request)
        return wire(self.root, LocalFiles(self.root), coordination, self.clock, SETTINGS, None)

    def _on_request(self, name: str, paths: tuple[str, ...]) -> Fault | None:
        return None if self.faults is None else self.faults(name, paths)

    def merged(self) -> CompactCommit:
        orders: list[CompactCommit] = []
        driver: Any = engine_of(self.db).compact_jobs
        driver.commit = lambda order: orders.append(order) or _lost()
        with pytest.raises(OutcomeUnknown):
            compact_here(self.db, "t")
        del driver.commit
        return orders[0]

    def rows(self, table: Any = None) -> dict[int, int]:
        return {row["k"]: row["n"] for row in (table or self.table).scan()}

    def fragments(self) -> int:
        return len(self.table.files())


def _lost() -> CompactResult:
    raise OutcomeUnknown("the connection broke")


def requests_of_a_commit(tmp_path: Path) -> list[str]:
    world = World(tmp_path / "counted")
    seen: list[str] = []
    world.faults = lambda name, paths: seen.append(name)
    assert carry_out(world.db, world.order) == CompactResult()
    world.faults = None
    assert world.rows() == EXPECTED
    world.db.close()
    return seen


@pytest.mark.parametrize("fault", Fault)
def test_one_lost_message_loses_no_row_and_the_outcome_is_known(tmp_path: Path, fault: Fault) -> None:
    seen = requests_of_a_commit(tmp_path)
    assert "CompareAndSet" in seen
    for number, name in enumerate(seen):
        world = World(tmp_path / str(number))
        count = itertools.count()
        world.faults = lambda name, paths, at=number, count=count: fault if next(count) == at else None
        try:
            assert carry_out(world.db, world.order) == CompactResult(), f"{fault} of {name}"
            assert world.fragments() == 2
        except OutcomeUnknown:
            pytest.fail(f"{fault} of {name} could have been settled")
        except EblaError:  # definitely not done: so it never is
            assert world.fragments() > 2
        world.faults = None
        world.nodes.deliver()
        assert world.rows() == EXPECTED
        assert engine_of(world.db).pending.paths() == frozenset()
        carry_out(world.db, world.order)  # whatever happened, again does no harm
        assert world.rows() == EXPECTED
        assert world.fragments() == 2
        assert not [found for found in world.db.verify().findings if found.kind != "orphan"]
        world.db.close()
        reopened = world.open()
        assert world.rows(reopened.table("t")) == EXPECTED
        reopened.close()


@pytest.mark.parametrize("reads", [True, False], ids=["readable", "out of reach"])
@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.DELAY])
def test_files_of_an_outcome_that_stays_unknown_are_kept(tmp_path: Path, fault: Fault, reads: bool) -> None:
    world = World(tmp_path / "world")
    lost = []

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        if name == "CompareAndSet" and paths[0].startswith("tables/"):
            lost.append(name)
            return fault
        return fault if lost and not reads else None

    world.faults = faults
    if fault is Fault.LOSE_REPLY and reads:
        assert carry_out(world.db, world.order) == CompactResult(), "it is found out"
    else:
        with pytest.raises(OutcomeUnknown, match="run it again"):
            carry_out(world.db, world.order)
        added = {ref.file for one in world.order.replacements for ref in one.added}
        assert added <= engine_of(world.db).pending.paths(), "METADATA may come to name them"
    world.faults = None
    world.nodes.deliver()
    assert world.rows() == EXPECTED
    carry_out(world.db, world.order)
    assert world.rows() == EXPECTED
    assert not [found for found in world.db.verify().findings if found.kind != "orphan"]
    world.db.close()
