"""The commit log: many commits, one entry, one sync; in order, all or none, and nobody left waiting."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import ebla
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.errors import Closed, LogFailed
from ebla.model.declaration import Schema
from ebla.storage.log.log_entry import LogBlock, LogEntry, Reply
from ebla.storage.log.log_reader import recover
from ebla.storage.log.log_writer import LogWriter
from ebla.storage.merge.memory import MemoryErasure
from ebla.storage.record.records import Block
from ebla.tablet.write import commit_log
from ebla.tablet.write.commit import SMALL_BLOCK_ROWS, Combined, Commit, StagedBlock, StagedPart, TabletKeys
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.sequencer import Sequencer
from ebla.tablet.write.tablet_state import TabletState
from tests.support.logs import DIRECTORY, MANY, SERVER
from tests.support.simulated_files import FaultPlan, SimulatedFiles

GROUP = Schema(key={"row": "binary"}, columns={"n": "int64"}).number().groups[0]


def staged(txn: int, rows: int = 1) -> StagedBlock:
    records = pa.record_batch({"_row": pa.array([b"%06d" % n for n in range(rows)], pa.binary()), "2": [txn] * rows})
    block = Block(records, txn=txn, unique=True, index=txn)
    return StagedBlock(GROUP, block, records.schema.serialize().to_pybytes())


class World:
    """A commit log on a simulated disk, and everything that it reports."""

    def __init__(self, plan: FaultPlan | None = None) -> None:
        self.files = SimulatedFiles(plan)
        self.sequencer = Sequencer()
        self.combined: list[Combined] = []
        self.durable: list[int] = []
        writer = LogWriter(self.files, DIRECTORY, SERVER, 1, MANY)
        self.log = CommitLog(writer, self.sequencer, self._on_durable)
        self._push_lock = threading.Lock()
        self._txn = 0

    def _on_durable(
        self, commits: Sequence[Commit], combined: Sequence[Combined], held: TabletKeys, lost: TabletKeys
    ) -> None:
        assert not [*held, *lost], "no tablet has replicas here"
        self.combined += combined
        self.durable.append(commits[-1].txn)
        self.sequencer.commit(commits[-1].txn)

    def push(self, *sizes: int, tablet: str = "a", epoch: int = 1, attended: bool = True, erasure: bool = False) -> int:
        """Queue one commit with a block of each size, as a store does under its commit lock."""
        with self._push_lock:
            self._txn += 1
            txn = self._txn
            self.sequencer.allocate(txn)
            part = StagedPart("t", tablet, TabletState(), epoch, 1, txn, [staged(txn, rows) for rows in sizes])
            if erasure:
                part.erasures.append(MemoryErasure(b"a", None, txn, txn))
            part.replies.append(Reply("client", txn, txn))
            commit = Commit(txn, 100 * sum(sizes), (part,))
            self.log.push(commit, attended=attended)
            return txn

    def entries(self) -> list[LogEntry]:
        """What a crash at this moment leaves in the log, of what was synced."""
        kept = self.files.image(lambda inode: bytes(inode.data[: inode.synced]), [])
        return [found.entry for found in recover(kept, DIRECTORY)]


def txns_of(entry: LogEntry) -> list[list[int]]:
    """The txns in each block of an entry."""
    return [
        block.records.column("_txn").to_pylist() if block.has_txn_column else [block.txn] * block.rows
        for block in blocks_of(entry)
    ]


def blocks_of(entry: LogEntry) -> list[LogBlock]:
    return [block for part in entry.parts for block in part.blocks]


class TestGroupCommit:
    def test_who_waits_writes_for_all_that_are_queued(self) -> None:
        world = World()
        first, second, third = world.push(1), world.push(1), world.push(1)
        world.log.wait(second)
        assert world.durable == [third]
        world.log.wait(first)
        assert world.sequencer.committed == third
        world.log.close()
        assert len(world.entries()) == 1

    def test_small_blocks_of_one_tablet_and_group_become_one_block(self) -> None:
        world = World()
        for _ in range(3):
            world.push(2)
        world.push(1, tablet="b")
        world.log.wait(4)
        world.log.close()
        (entry,) = world.entries()
        assert [(part.tablet, [block.rows for block in part.blocks]) for part in entry.parts] == [
            ("a", [6]),
            ("b", [1]),
        ]
        assert txns_of(entry)[0] == [3, 2, 1, 3, 2, 1]
        (combined,) = world.combined
        assert (combined.table, combined.tablet, combined.group) == ("t", "a", GROUP.id)
        assert [old.txn for old in combined.old] == [1, 2, 3]
        assert combined.new.index == 3
        (part, _) = entry.parts
        assert (part.index_min, part.index, part.txn, part.blocks[0].index) == (1, 3, 3, 3)
        assert (part.blocks[0].txn_min, part.blocks[0].txn, entry.txn_max) == (1, 3, 4)

    def test_a_tablet_that_is_led_at_another_epoch_meanwhile_has_a_part_of_each(self) -> None:
        world = World()
        for epoch in (1, 1, 2):
            world.push(1, epoch=epoch)
        world.log.wait(3)
        world.log.close()
        (entry,) = world.entries()
        assert [(part.epoch, part.index_min, part.index, part.txn) for part in entry.parts] == [
            (1, 1, 2, 2),
            (2, 3, 3, 3),
        ]

    def test_large_blocks_are_written_as_they_are(self) -> None:
        world = World()
        world.push(SMALL_BLOCK_ROWS + 1)
        world.push(1)
        world.push(SMALL_BLOCK_ROWS + 1)
        world.log.wait(3)
        world.log.close()
        (entry,) = world.entries()
        assert [block.rows for block in blocks_of(entry)] == [SMALL_BLOCK_ROWS + 1, SMALL_BLOCK_ROWS + 1, 1]
        assert world.combined == []

    def test_erasures_and_replies_go_along(self) -> None:
        world = World()
        world.push(erasure=True)
        world.push(1)
        world.log.wait(2)
        world.log.close()
        (entry,) = world.entries()
        assert [erasure.txn for part in entry.parts for erasure in part.erasures] == [1]
        assert [part.replies for part in entry.parts] == [(Reply("client", 1, 1), Reply("client", 2, 2))]
        assert entry.replies == ()

    def test_an_entry_does_not_grow_without_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commit_log, "ENTRY_BYTES_MAX", 500)
        world = World()
        for rows in (2, 2, 2, 10, 1):
            world.push(rows)
        world.log.wait(5)
        world.log.close()
        assert [entry.txn_max for entry in world.entries()] == [2, 3, 4, 5]

    def test_what_is_not_synced_is_not_committed(self) -> None:
        committed_at_sync: list[int] = []

        def watch(operation: object) -> None:
            if getattr(operation, "kind", "") == "sync" and "world" in seen:
                committed_at_sync.append(seen["world"].sequencer.committed)

        seen: dict[str, World] = {}
        seen["world"] = World(FaultPlan(when=watch))
        seen["world"].push(1)
        seen["world"].log.wait(1)
        assert committed_at_sync
        assert set(committed_at_sync) == {0}
        assert seen["world"].sequencer.committed == 1
        seen["world"].log.close()


class TestWorker:
    def test_what_nobody_waits_for_is_written_all_the_same(self) -> None:
        world = World()
        txn = world.push(1, attended=False)
        world.sequencer.wait_committed(txn, timeout_seconds=30)
        world.log.close()
        assert [entry.txn_max for entry in world.entries()] == [1]

    def test_close_writes_what_is_queued_whether_or_not_somebody_waits(self) -> None:
        world = World()
        world.push(1)
        world.push(1, attended=False)
        world.push(1)
        world.log.close()
        assert world.sequencer.committed == 3
        assert world.entries()[-1].txn_max == 3
        assert world.log.queued_bytes == 0
        with pytest.raises(Closed):
            world.push(1)

    def test_many_threads_are_all_served_in_order(self) -> None:
        world = World()
        errors: list[BaseException] = []

        def work(attended: bool) -> None:
            try:
                for _ in range(50):
                    txn = world.push(1, attended=attended)
                    if attended:
                        world.log.wait(txn)
                        assert world.sequencer.committed >= txn
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number % 4 > 0,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        world.log.close()
        assert not errors
        assert world.durable == sorted(world.durable)
        entries = world.entries()
        assert sorted(txn for entry in entries for txns in txns_of(entry) for txn in txns) == list(range(1, 401))
        assert [entry.txn_max for entry in entries] == world.durable

    def test_if_the_next_to_drain_is_interrupted_another_one_drains(self, monkeypatch: pytest.MonkeyPatch) -> None:
        go = threading.Event()
        waits = threading.Semaphore(0)
        interrupted: list[int] = []
        original = commit_log._Waiting.wait

        def wait(self: commit_log._Waiting, timeout_seconds: float) -> bool:
            waits.release()
            is_woken = original(self, timeout_seconds)
            if self.txn == 2:
                raise KeyboardInterrupt
            return is_woken

        monkeypatch.setattr(commit_log._Waiting, "wait", wait)

        def hold_syncs(operation: object) -> None:
            if getattr(operation, "kind", "") == "sync":
                assert go.wait(30)

        world = World(FaultPlan(when=hold_syncs))

        def work(txn: int) -> None:
            try:
                world.log.wait(txn)
            except KeyboardInterrupt:
                interrupted.append(txn)

        threads = [threading.Thread(target=work, args=(world.push(1),))]
        threads[0].start()
        while not world.log.is_draining:
            pass
        for _ in range(2):
            threads.append(threading.Thread(target=work, args=(world.push(1),)))
            threads[-1].start()
            assert waits.acquire(timeout=30)
        go.set()
        for thread in threads:
            thread.join()
        assert interrupted == [2]
        assert world.sequencer.committed == 3
        world.log.close()

    def test_queued_bytes_are_what_is_not_in_the_log(self) -> None:
        world = World()
        world.push(3)
        world.push(4)
        assert world.log.queued_bytes == 700
        world.log.wait(2)
        assert world.log.queued_bytes == 0
        world.log.close()


class TestFailure:
    @pytest.mark.parametrize("kind", ["write", "sync"])
    def test_a_failing_disk_fails_everybody_and_everything_after(self, kind: str) -> None:
        world = World(FaultPlan.fail_when(lambda op: op.kind == kind and bool(op.number > 4), errno.ENOSPC))
        world.push(1)
        world.push(1)
        told: list[object] = []
        world.sequencer.add_commit_callback(2, told.append)
        with pytest.raises(LogFailed, match="no space"):
            world.log.wait(1)
        with pytest.raises(LogFailed, match="no space"):
            world.log.wait(2)
        with pytest.raises(LogFailed, match="no space"):
            world.push(1)
        assert isinstance(told[0], LogFailed)
        assert isinstance(world.log.failure, LogFailed)
        assert world.sequencer.committed == 0
        assert world.log.queued_bytes == 0
        world.log.close()
        assert world.entries() == []

    def test_threads_that_wait_behind_the_one_that_fails_get_the_error_too(self) -> None:
        world = World(FaultPlan.fail_when(lambda op: op.kind == "sync" and op.number > 4))
        outcomes: list[str] = []

        def work() -> None:
            try:
                world.log.wait(world.push(1))
                outcomes.append("committed")
            except LogFailed:
                outcomes.append("failed")

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == ["failed"] * 6
        world.log.close()

    def test_a_failure_in_the_background_is_told_to_who_comes_next(self) -> None:
        world = World(FaultPlan.fail_when(lambda op: op.kind == "sync" and op.number > 4))
        world.push(1, attended=False)
        with pytest.raises(LogFailed):
            world.sequencer.wait_committed(1, timeout_seconds=30)
        with pytest.raises(LogFailed):
            world.push(1)
        with pytest.raises(LogFailed):
            world.log.close()  # nobody waited for it, so nobody else was told

    def test_an_abandoned_log_writes_nothing_more(self) -> None:
        world = World()
        world.push(1)
        world.log.abandon()
        assert world.entries() == []
        with pytest.raises(Closed):
            world.log.wait(1)

    def test_a_commit_that_is_interrupted_half_way_stops_the_log_and_is_never_seen(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its records are in memory and not in the queue: a later commit would make them visible, but not durable."""
        clock = ManualClock()
        nodes = MemoryCoordination(MemoryStore(), clock)
        db = wire(Path("simulated"), SimulatedFiles(), nodes, clock, ebla.Settings(), None)
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        table.put({"k": "a", "n": 1})

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "push", interrupt)
            with pytest.raises(KeyboardInterrupt):
                table.put({"k": "b", "n": 2})
        with pytest.raises(LogFailed, match="reopen"):
            table.put({"k": "c", "n": 3})
        with pytest.raises(LogFailed):
            db.sync()
        assert [row["k"] for row in table.scan()] == ["a"]
        db.close()
