"""Bulk commits between real processes: the one that has the store open, those that ask it, and kills of both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ebla
from ebla.direct.jobs_at import begin_job_at, end_job_at, order_at
from ebla.errors import Conflict
from ebla.service.job_orders import BulkCommit, BulkResult
from tests.direct.bulk_world import NUMBERS, a_by_k, numbers, written
from tests.support.inside import coordination_of

ROOT = Path(__file__).resolve().parents[2]

OWNER = """
import json, sys
import ebla

with ebla.open(sys.argv[1]) as db:
    table = db.table("t")
    print("open", flush=True)
    for line in sys.stdin:
        rows = [table.get(int(key)) for key in line.split()]
        print(json.dumps([row and row["a"] for row in rows]), flush=True)
"""

DRIVER = """
import os, signal, sys
import ebla
from ebla.direct.jobs_at import begin_job_at, order_at
from tests.direct.bulk_world import numbers, written

root, when = sys.argv[1:]
begin_job_at(root, "job", "t")
with ebla.open(root, read_only=True) as db:
    commit = written(db.table("t"), "job", numbers([1, 2], add=10))
if when == "after":
    order_at(root, commit)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with ebla.open(tmp_path / "store") as db:
        db.create_table("t", NUMBERS).put(numbers([1, 5]))
    return tmp_path / "store"


class Owner:
    """A process that has the store open for writing."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._line() == "open\n"

    def get(self, *keys: int) -> dict[int, int | None]:
        assert self.process.stdin is not None
        print(*keys, file=self.process.stdin, flush=True)
        return dict(zip(keys, json.loads(self._line()), strict=True))

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def owner_of(root: Path) -> Iterator[Owner]:
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield Owner(process)
        finally:
            process.kill()


def written_at(root: Path, job: str, *keys: int, add: int = 0) -> BulkCommit:
    with ebla.open(root, read_only=True) as db:
        return written(db.table("t"), job, numbers(keys, add=add))


def test_a_commit_is_carried_out_by_the_process_that_has_the_store_open(root: Path) -> None:
    with owner_of(root) as owner:
        assert owner.get(1, 2, 5) == owner.get(1, 2, 5) == {1: 1, 2: None, 5: 5}
        commit = written_at(root, "job", 1, 2, add=10)
        result = order_at(root, commit)
        assert not result.repeated
        assert owner.get(1, 2, 5) == {1: 11, 2: 12, 5: 5}
        assert order_at(root, commit) == BulkResult(result.txn, repeated=True)
        with pytest.raises(Conflict, match="run the job again"):
            order_at(root, BulkCommit("late", commit.table_id, 9, ()))
        with ebla.open(root, read_only=True) as reading:
            assert reading.snapshot().txn >= result.txn
            assert a_by_k(reading.table("t")) == {1: 11, 2: 12, 5: 5}


def test_a_request_outlives_the_death_of_the_owner(root: Path) -> None:
    with owner_of(root) as owner:
        commit = written_at(root, "job", 1, 2, add=10)
        os.kill(owner.process.pid, signal.SIGSTOP)  # it holds the lock, and hears nothing
        results: list[BulkResult] = []
        sender = threading.Thread(target=lambda: results.append(order_at(root, commit)))
        sender.start()
        _wait_for_request(root)
        os.kill(owner.process.pid, signal.SIGKILL)
        sender.join(60)
    assert [result.repeated for result in results] == [False]
    with ebla.open(root) as db:
        assert a_by_k(db.table("t")) == {1: 11, 2: 12, 5: 5}
        assert coordination_of(db).list("bulk") == []


def _wait_for_request(root: Path) -> None:
    from ebla.direct.jobs_at import _parts

    arrived = threading.Event()
    with _parts(root) as (coordination, _, _):
        coordination.watch("bulk", lambda path: arrived.set())
        if not coordination.list("bulk"):
            assert arrived.wait(60)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_owned", [False, True])
def test_a_driver_killed_before_or_after_its_commit_can_be_run_again(root: Path, when: str, is_owned: bool) -> None:
    command = [sys.executable, "-c", DRIVER, str(root), when]
    if is_owned:
        with owner_of(root) as owner:
            assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == -signal.SIGKILL
            assert owner.get(1, 2) == ({1: 1, 2: None} if when == "before" else {1: 11, 2: 12})
            _run_again(root, when)
            assert owner.get(1, 2) == ({1: 101, 2: 102} if when == "before" else {1: 11, 2: 12})
    else:
        assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == -signal.SIGKILL
        _run_again(root, when)
    with ebla.open(root) as db:
        assert a_by_k(db.table("t")) == ({1: 101, 2: 102, 5: 5} if when == "before" else {1: 11, 2: 12, 5: 5})


def _run_again(root: Path, when: str) -> None:
    begin_job_at(root, "job", "t")
    commit = written_at(root, "job", 1, 2, add=100)
    assert order_at(root, commit).repeated == (when == "after")
    (gone,) = end_job_at(root, "job")
    assert (gone == commit.fragments[0].fragment.file) == (when == "after")
