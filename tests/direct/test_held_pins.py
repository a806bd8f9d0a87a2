"""Pins that processes keep: renewed while the process lives, gone soon after it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ebla
from ebla.clock import ManualClock, SystemClock
from ebla.direct import held_pins
from ebla.settings import Settings
from ebla.tablet.garbage.pins import Pin, Pins
from tests.master_server.small_cluster import SmallCluster
from tests.support.inside import coordination_of, engine_of

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
POINTS = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})

JOB = """
import sys
from ebla.direct import held_pins

held_pins.HOLD_SECONDS = 4.0
root, txn, file = sys.argv[1:]
held_pins.begin(root, "scan", "t", int(txn), [file])
print("held", flush=True)
sys.stdin.read()
"""


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_so()


def test_a_pin_lives_as_long_as_its_process_and_not_much_longer(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = db.create_table("t", POINTS)
        txn = table.put({"k": 1, "n": 1})
        table.flush()
        (file,) = (str(path.relative_to(tmp_path)) for path in tmp_path.glob("fragments/*/*.parquet"))
        pins = engine_of(db).pins

        def until() -> int:
            return max((pin.expires_microseconds or 0 for pin in pins.all()), default=0)

        command = [sys.executable, "-c", JOB, str(tmp_path), str(txn), file]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == "held\n"
            began: Pin = pins.all()[0]
            wait_for(lambda: until() > (began.expires_microseconds or 0))
            table.put({"k": 1, "n": 2})
            table.compact()
            for _ in range(3):
                db.gc(dry_run=False)
            assert (tmp_path / file).exists()
            assert [row["n"] for row in table.scan(as_of=txn)] == [1]
            job.send_signal(signal.SIGKILL)
            job.wait()
        then = ManualClock(until())
        assert Pins(coordination_of(db), then).remove_expired() == [began.name]
        for _ in range(3):
            db.gc(dry_run=False)
        assert not (tmp_path / file).exists()
        assert [*coordination_of(db).list("pins"), *coordination_of(db).list("held")] == []


def test_a_process_that_ends_or_lets_go_leaves_nothing_and_one_that_is_forked_touches_nothing(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        txn = db.create_table("t", POINTS).put({"k": 1, "n": 1})
        held = held_pins.begin(str(tmp_path), "scan", "t", txn)
        child = os.fork()
        if not child:
            held_pins.end(held)
            os._exit(0)
        os.waitpid(child, 0)
        assert list(db.snapshots()) == [held.name]
        held_pins.end(held)
        held_pins.end(held)
        assert db.snapshots() == {}
        later = held_pins.begin(str(tmp_path), "scan", "t", txn)
        held_pins.end_later(later)
        wait_for(lambda: not db.snapshots())
        held_pins.begin(str(tmp_path), "scan", "t", txn)
        held_pins._keepers["stores"].end_all()
        assert db.snapshots() == {}
        assert held_pins.Held(str(tmp_path), "x", SystemClock().microseconds()).is_due


def test_a_process_ends_although_the_cluster_of_what_it_held_is_gone(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, masters=1, servers=1) as cluster, cluster.connect() as db:
        txn = db.create_table("t", POINTS).put({"k": 1, "n": 1})
        addresses = tuple(cluster.addresses)
        for _ in range(3):
            held_pins.begin(str(tmp_path / "root"), "scan", "t", txn, cluster=addresses)
    ending = threading.Thread(target=held_pins._keepers["clusters"].end_all, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive(), "each of the three would be waited for as long as a client waits"


def test_what_is_held_of_stores_does_not_wait_for_a_cluster_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, going_on = threading.Event(), threading.Event()

    def never_heard(cluster: tuple[str, ...]) -> ebla.Database:
        asking.set()
        going_on.wait(60)
        raise ebla.Unavailable("nobody answers")

    monkeypatch.setattr(held_pins, "connected", never_heard)
    gone = held_pins.Held(str(tmp_path), "x", 0, ("127.0.0.1:1",))
    with ebla.open(tmp_path, settings=AT_ONCE) as db, held_pins.kept(gone):
        assert asking.wait(20), "it is due, and the cluster is asked"
        txn = db.create_table("t", POINTS).put({"k": 1, "n": 1})
        held_pins.end_later(held_pins.begin(str(tmp_path), "scan", "t", txn))
        wait_for(lambda: not db.snapshots())
        going_on.set()
