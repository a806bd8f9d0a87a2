"""Starting and killing the process that writes, and telling which operations a store holds."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.recovery.work import SCHEMA, TABLE, Work
from tests.reference.reference import ReferenceTable

ROOT = Path(__file__).resolve().parents[2]
BOUND_SECONDS = 60.0


@dataclass
class Writer:
    """A process that writes. `acked` is, per thread, the number of operations told to be done; `txn_max` the newest."""

    process: subprocess.Popen[bytes]
    acked: list[int]
    synced: list[int]
    txn_max: int = 0
    lines: int = 0
    _rest: bytes = b""
    _ended: bool = field(default=False)

    def read(self, seconds: float = BOUND_SECONDS) -> bool:
        """Take in what the process has told, waiting for something; False once it has ended."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            return not self._ended
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self._ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.lines += 1
            if line != b"open":
                thread, number, txn = map(int, line.split())
                self.acked[thread] = number + 1
                if Work(thread).is_synced(number):
                    self.synced[thread] = number + 1
                self.txn_max = max(self.txn_max, txn)
        return not self._ended

    def read_lines(self, count: int) -> None:
        """Wait until the process has told so many things more."""
        wanted = self.lines + count
        deadline = time.monotonic() + BOUND_SECONDS
        while self.lines < wanted:
            assert self.read(), f"the writer ended by itself: {self.process.wait()}"
            assert time.monotonic() < deadline, "the writer does not get on"

    def drain(self) -> None:
        """Take in what is there already."""
        while self.read(0):
            assert self.process.stdout is not None
            if not select.select([self.process.stdout], [], [], 0)[0]:
                return

    def kill(self) -> None:
        """Kill the process and take in the last things it told."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(BOUND_SECONDS)
        while self.read():
            pass

    def finish(self) -> None:
        """Let the process close the store and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while self.read():
            pass
        assert self.process.wait(BOUND_SECONDS) == 0


@contextmanager
def writer(path: Path, begins: Sequence[int]) -> Iterator[Writer]:
    """Start a process that goes on with the operations `begins` of its threads; it is gone afterwards."""
    command = [sys.executable, "-m", "tests.recovery.writer", str(path), *map(str, begins)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    one = Writer(process, list(begins), list(begins))
    try:
        one.read_lines(1)
        yield one
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(BOUND_SECONDS)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


class Held:
    """Which operations of each thread a store holds, kept up with the reference model."""

    def __init__(self, threads: int) -> None:
        self._models = [ReferenceTable(SCHEMA.number()) for _ in range(threads)]
        self.counts = [0] * threads

    def find(self, db: Any, synced: Sequence[int], begun_max: Sequence[int]) -> list[int]:
        """Return how many operations of each thread the store holds; fail unless that is one whole prefix each.

        At least those in `synced` must be there, and at most those in `begun_max`.
        """
        rows = list(db.table(TABLE).scan(versions=10))
        found = []
        for thread, model in enumerate(self._models):
            shown = [_by_value(row) for row in rows if row["thread"] == thread]
            found.append(self._match(thread, model, shown, synced[thread], begun_max[thread]))
        return found

    def _match(self, thread: int, model: ReferenceTable, shown: list[Any], low: int, high: int) -> int:
        work = Work(thread)
        number = self.counts[thread]
        # What is shown was written: there is no need to compare with anything before it.
        low = max([low, *(1 + value for row in shown for value in row.get("number", []))])
        while True:
            if number >= low and shown == [_by_value(row) for row in model.scan(versions=10)]:
                self.counts[thread] = number
                return number
            assert number < min(high, low + 20), (
                f"thread {thread}: what the store holds is not what was written up to any of {low} to {high}:\n"
                + "\n".join(map(str, shown))
            )
            work.model(number)(model, (number + 1) << 40)
            number += 1


def _by_value(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the values of its versions alone.

    Of cells only the newest counts: for some seconds after a crash, the clock is ahead of time and stands still, and
    cells that are written in the same microsecond replace each other.
    """
    shown = {}
    for name, value in row.items():
        if not isinstance(value, list):
            shown[name] = value
        elif value:
            shown[name] = [version.value for version in value][: 1 if ":" in name else None]
    return shown
