"""A server's part in a bulk commit over several: its gate, closed for an attempt and opened by the outcome alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from ebla.clock import SystemClock
from ebla.master.calls import CloseGate
from ebla.metadata.values.changes import RecordJob, TabletAt
from ebla.metadata.values.requirements import RequirementFailed
from ebla.tablet.engine import TabletStore
from ebla.tablet_server import gates as module
from ebla.tablet_server.gates import BulkGates
from tests.support.inside import engine_of, state_of

SCHEMA = ebla.Schema(key={"id": "int64"}, groups=[ebla.Group("g", columns={"n": "int64"})])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ebla.Table]:
    with ebla.open(tmp_path / "store") as db:
        made = db.create_table("t", SCHEMA)
        made.put({"id": 1, "n": 1})
        yield made


@pytest.fixture
def store(table: ebla.Table) -> TabletStore:
    return engine_of(table)


@pytest.fixture
def gates(store: TabletStore) -> BulkGates:
    return BulkGates(store, SystemClock())


def asked(table: ebla.Table, attempt: str = "attempt-1", epoch: int | None = None) -> CloseGate:
    (tablet,) = state_of(table).view.metadata.tablets
    at = TabletAt(tablet.id, tablet.epoch if epoch is None else epoch)
    return CloseGate(attempt, state_of(table).id, (at,), 1)


def put_soon(table: ebla.Table) -> tuple[threading.Thread, list[int]]:
    txns: list[int] = []
    thread = threading.Thread(target=lambda: txns.append(table.put({"id": 2, "n": 2})))
    thread.start()
    return thread, txns


def test_txns_come_after_the_commit_wherever_it_got_its_txn(
    table: ebla.Table, store: TabletStore, gates: BulkGates
) -> None:
    first = gates.close(asked(table), 10)
    assert gates.close(asked(table), 10) == first, "asked again, it is the same attempt"
    thread, txns = put_soon(table)
    txn = first + (5_000_000 << 10)  # of a server whose clock is ahead
    store.metadata.commit(state_of(table).id, [RecordJob("attempt-1", txn)])
    assert not txns, "the gate is closed until this server has seen it"
    gates.tell("attempt-1", 10)
    assert store.sequencer.committed >= txn, "whoever was told so finds it shown"
    thread.join(10)
    assert txns[0] > txn
    assert store.sequencer.committed == txns[0]


def test_an_attempt_without_an_outcome_is_aborted_for_good_and_only_then_the_gate_opens(
    table: ebla.Table, store: TabletStore, gates: BulkGates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ABANDON_SECONDS", 0.0)
    gates.close(asked(table), 10)
    thread, txns = put_soon(table)
    thread.join(10)
    assert txns
    with pytest.raises(RequirementFailed, match="attempt-1"):
        store.metadata.commit(state_of(table).id, [RecordJob("attempt-1", txns[0] + 1)])


def test_a_gate_is_not_closed_for_an_attempt_that_is_over_or_names_another_epoch(
    table: ebla.Table, store: TabletStore, gates: BulkGates
) -> None:
    with pytest.raises(ebla.StaleRoute):
        gates.close(asked(table, epoch=7), 10)
    store.metadata.commit(state_of(table).id, [RecordJob("attempt-2", 0)])
    with pytest.raises(ebla.TimedOut, match="over"):
        gates.close(asked(table, "attempt-2"), 10)
    assert table.put({"id": 3, "n": 3})
