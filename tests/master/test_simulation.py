"""Thousands of small schedules of masters and servers under faults; and proof that the checks can fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ebla.master import heartbeats, reports, tables
from ebla.master.catalog import Catalog
from ebla.master.heartbeats import HeartbeatHandler
from ebla.master.master import Master
from ebla.master.servers import Server, Servers
from ebla.master.tasks import Tasks
from ebla.master.writes import StoredTable
from ebla.metadata.values import handing_over
from ebla.metadata.values.changes import RequirementFailed, update
from tests.master.simulation import Broken, Simulation, run

SCHEDULES = 5_000
SHARES = 10


@pytest.mark.parametrize("share", range(SHARES))
def test_every_schedule_keeps_the_invariants_and_comes_to_rest(share: int) -> None:
    for seed in range(share, SCHEDULES, SHARES):
        run(seed)


@pytest.mark.soak
@pytest.mark.parametrize("share", range(20))
def test_many_more_schedules(share: int) -> None:
    for seed in range(100_000 + share, 200_000, 20):
        run(seed)


def test_same_seed_gives_the_same_schedule() -> None:
    found = []
    for _ in range(2):
        simulation = Simulation(17)
        simulation.run()
        found.append((simulation.clock.seconds, simulation.term, simulation.durable.history, simulation.leads))
    assert found[0] == found[1]


# --- planted bugs --------------------------------------------------------------------------------


def _breaks(seeds: int = 400) -> str:
    """Return what the first schedule that breaks says."""
    for seed in range(seeds):
        try:
            run(seed)
        except Broken as broken:
            return str(broken)
    return ""


def test_unknown_tablets_that_are_deleted_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*arguments: Any) -> Any:
        is_ours, actions = reports.judge(*arguments)
        return is_ours, tuple(reports.DELETE if action == reports.UNKNOWN else action for action in actions)

    monkeypatch.setattr(heartbeats, "judge", careless)
    assert "foreign" in _breaks()


def test_epochs_that_do_not_grow_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes over would lead in the epoch of the one before, and servers would wait for a later one."""
    vacated, taken_over = handing_over._vacated, handing_over._taken_over

    def stuck(metadata: Any, changed: Any) -> Any:
        return msgspec.structs.replace(changed, epoch=metadata.by_id(changed.id).epoch)

    monkeypatch.setattr(handing_over, "_vacated", lambda m, change: [stuck(m, one) for one in vacated(m, change)])
    monkeypatch.setattr(handing_over, "_taken_over", lambda m, change: stuck(m, taken_over(m, change)))
    broken = _breaks()
    assert "is led by" in broken or "does not come to rest" in broken


def test_requests_before_the_write_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Creating" has to be durable first: whoever is chosen next would lead in the same epoch."""
    change = Master._change

    def early(self: Master, changes: Any) -> Any:
        for one in changes:
            info = self.catalog.tables[one.table_id]
            assert info.stored is not None
            try:
                metadata = update(info.metadata, one.changes)
            except RequirementFailed:
                continue
            self.catalog._index_tablets(info, info.metadata, metadata)
            info.stored = StoredTable(info.id, info.stored.config, metadata)
        return (yield from change(self, changes))

    monkeypatch.setattr(Master, "_change", early)
    assert _breaks(2000)


def test_reports_that_are_cut_and_taken_as_complete_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full report of several chunks, cut by a change of the master: what is missing is not gone."""

    def trusting(self: HeartbeatHandler, server: Server, report: Any) -> bool:
        if report.full is not None:
            server.is_whole = True
        return True

    monkeypatch.setattr(HeartbeatHandler, "_follows", trusting)
    assert _breaks(2000)


def test_forgotten_tombstones_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server returns with tablets of a purged table, and nobody knows them."""
    purge = Catalog._purge

    def forgetful(self: Catalog, table_id: str) -> None:
        purge(self, table_id)
        self.tombstones.discard(table_id)

    monkeypatch.setattr(Catalog, "_purge", forgetful)
    assert "and should have" in _breaks(2000)


def test_retention_that_is_ignored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "is_retained", lambda info, microseconds, settings: False)
    assert _breaks()


def test_full_reports_that_a_new_master_does_not_ask_for_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports missed over a change of the leader."""
    register = Servers.register

    def easy(self: Servers, *arguments: Any) -> Server:
        server = register(self, *arguments)
        server.is_whole = True
        return server

    monkeypatch.setattr(Servers, "register", easy)
    assert _breaks(1000)


def test_tasks_that_the_reply_ends_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request counts as done when it was sent: a lost one is never repeated."""
    due = Tasks.due

    def once(self: Any, server: str, *arguments: Any) -> Any:
        found = due(self, server, *arguments)
        for tablet, operation, _ in found:
            self.done(server, tablet, operation)
        return found

    monkeypatch.setattr(Tasks, "due", once)
    assert "it does not come to rest" in _breaks(1000)
