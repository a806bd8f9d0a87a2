"""Old METADATA files are removed beside the transactions: nobody waits for it, and in the end they are gone."""

from __future__ import annotations

import itertools
import threading

import pytest

from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.changes import RecordJob
from tests.metadata.metadata_world import TABLE, table
from tests.support.simulated_files import Fault, FaultPlan, Operation, SimulatedFiles

SNAPSHOT_EVERY = 4


class SlowDisk(SimulatedFiles):
    """A disk on which nothing is removed while `release` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.release.set()
        self.removing = threading.Event()

    def delete(self, path: str) -> None:
        self.removing.set()
        assert self.release.wait(60)
        super().delete(path)


def server_on(files: SimulatedFiles, in_background: bool = True) -> MetadataServer:
    numbers = itertools.count()
    clock = ManualClock()
    server = MetadataServer(
        MemoryCoordination(MemoryStore(), clock),
        MetadataStore(files, SNAPSHOT_EVERY),
        clock,
        server_id="s",
        new_id=lambda: f"x{next(numbers)}",
        prune_in_background=in_background,
    )
    server.create_table("users", TABLE, table())
    return server


def grow(server: MetadataServer, jobs: range) -> None:
    for number in jobs:
        server.commit(TABLE, [RecordJob(f"j{number}", 1)])


def test_transactions_go_on_while_old_ones_are_being_removed() -> None:
    disk = SlowDisk()
    server = server_on(disk)
    disk.release.clear()
    disk.removing.clear()
    grow(server, range(20))
    assert disk.removing.wait(60)
    grow(server, range(20, 30))
    assert len(disk.list(f"metadata/{TABLE}")) == 31  # nothing is gone yet
    disk.release.set()
    server.finish_pruning()
    # Snapshots are transactions 1, 5, ..., 29: the last two, and what came after them.
    assert len(disk.list(f"metadata/{TABLE}")) == 31 - 24
    server.reload(TABLE)
    assert [job for job, _ in server.read(TABLE).jobs] == [f"j{number}" for number in range(30)]


def test_nothing_is_said_of_a_file_that_is_being_written_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    """Pruning lists the directory while the next transaction writes its file: half of it must not be read."""
    files = SimulatedFiles()
    server = server_on(files, in_background=False)
    store = MetadataStore(files, SNAPSHOT_EVERY)
    grow(server, range(8))
    newest = server.read(TABLE).txnid
    found = []

    def prune_in_the_middle(operation: Operation) -> Fault | None:
        if operation.kind == "write" and not found:
            found.append(server._store.prune(TABLE, newest))
        return None

    files.plan = FaultPlan(when=prune_in_the_middle)
    grow(server, range(8, 9))
    assert found == [[]]
    assert not caplog.records
    assert [job for job, _ in store.load(TABLE, server.read(TABLE).txnid).jobs] == [f"j{n}" for n in range(9)]
