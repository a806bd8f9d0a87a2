"""Thousands of schedules of replication under faults; and proof that the rules that they check can be broken."""

from __future__ import annotations

from collections import Counter

import pytest

from ebla.replication.actions import Change
from tests.replication.checks import Violation
from tests.replication.mistakes import MISTAKES, MOODS
from tests.replication.simulation import Simulation, simulate

SCHEDULES = 10_000
PARTS = 20
# Every planted mistake is found within so many schedules.
SCHEDULES_TO_FIND = 2_000


def _simulate_all(seeds: range, mood: str | None = None) -> None:
    for seed in seeds:
        simulate(seed, mood=mood)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_rule(part: int) -> None:
    """A failure names its seed: `python -m tests.replication.simulation SEED` replays it."""
    _simulate_all(range(part, SCHEDULES, PARTS))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_no_schedule_of_many_breaks_a_rule(part: int) -> None:
    _simulate_all(range(1_000_000 + part * 20_000, 1_000_000 + (part + 1) * 20_000))


def test_same_seed_gives_the_same_schedule() -> None:
    found = [simulate(17) for _ in range(2)]
    assert found[0].table == found[1].table
    assert found[0].now == found[1].now
    assert found[0].checks.committed == found[1].checks.committed
    steps = [[(step.value, step.ended) for row in one.checks.history.values() for step in row] for one in found]
    assert steps[0] == steps[1]


def test_a_told_schedule_is_the_same_as_one_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(23, is_told=True).table == simulate(23).table
    story = capsys.readouterr().out
    assert "s0 has lease 1" in story
    assert "Push(" in story
    assert "everything is mended" in story


def test_the_schedules_reach_what_they_are_meant_to(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: Counter[tuple[str, bool]] = Counter()
    change = Simulation.change

    def counted(self: Simulation, asked: Change, sender: str = "") -> bool:
        is_done = change(self, asked, sender)
        reached[type(asked).__name__, is_done] += 1
        return is_done

    monkeypatch.setattr(Simulation, "change", counted)
    simulations = [simulate(seed) for seed in range(400)]
    done = {name: count for (name, is_done), count in reached.items() if is_done}
    assert len(done) == 15, done
    assert min(done.values()) >= 4, done
    assert sum(simulation.wiped for simulation in simulations) >= 20
    assert sum(len(simulation.table.tablets) > 1 for simulation in simulations) >= 20
    assert sum("done" in simulation.table.jobs.values() for simulation in simulations) >= 20
    committed = sum(len(truth) for simulation in simulations for truth in simulation.checks.committed.values())
    assert committed >= 3_000


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[name](monkeypatch)
    with pytest.raises(Violation):
        _simulate_all(range(SCHEDULES_TO_FIND), MOODS.get(name))
