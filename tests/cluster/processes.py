"""A cluster of real processes on this host, for tests: a master, tablet servers, and what can happen to them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ebla
from ebla.service.requests import DescribeStore

ROOT = Path(__file__).parents[2]
READY_SECONDS = 30.0

# A master in the foreground, as its process runs it.
_MASTER = """
import signal, sys, threading
from pathlib import Path
from ebla.clock import SystemClock
from ebla.coordination.address import open_coordination
from ebla.master_server.process import MasterProcess
clock = SystemClock()
place, root, data = sys.argv[1:]
master = MasterProcess(open_coordination(place, clock), Path(data), Path(root), clock=clock)
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
print(f"master {master.uuid} at {master.address}", flush=True)
stopped.wait()
master.close()
"""


class Process:
    """One process of the cluster; it prints who it is and where."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                arguments,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], READY_SECONDS)
        words = out.readline().split() if ready else []
        assert len(words) >= 4, f"it did not begin: {log.read_text()}"
        self.uuid, self.address = words[-3], words[-1]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it as the system would; it writes nothing more."""
        self._process.kill()
        self._process.wait(30)

    def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        return self._process.wait(30)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None


class RealCluster:
    """A master and tablet servers in a directory. Leaving it kills what still runs."""

    def __init__(self, path: Path, servers: int = 3) -> None:
        self.path = path
        self.place = str(path / "coordination.sqlite")
        self.master = Process(
            [sys.executable, "-c", _MASTER, self.place, str(path / "root"), str(path / "master")], path / "master.log"
        )
        self.servers = {f"server-{number}": self.start(f"server-{number}") for number in range(servers)}
        self.db = ebla.connect(self.master.address)
        self.wait_until(lambda: len(self.living()) == servers)

    def start(self, name: str) -> Process:
        options = ["--coordination", self.place, "--root", str(self.path / "root"), "--data", str(self.path / name)]
        return Process([sys.executable, "-m", "ebla", "tablet-server", *options], self.path / f"{name}.log")

    def start_again(self, name: str) -> None:
        self.servers[name] = self.start(name)

    def describe(self) -> Mapping[str, Any]:
        """Return what the leading master tells of the cluster."""
        found: Mapping[str, Any] = self.db._service.carry_out(DescribeStore())
        return found

    def living(self) -> list[str]:
        return [uuid for uuid, server in self.describe()["servers"].items() if server["is_alive"]]

    def leaders(self) -> dict[str, str | None]:
        """Return who leads each tablet and serves it, by tablet."""
        return {
            tablet["id"]: tablet["leader"] if tablet["is_served"] else None
            for table in self.describe()["tables"].values()
            for tablet in table["tablets"]
        }

    def wait_until(self, is_so: Callable[[], object], seconds: float = 30.0) -> float:
        """Return after how many seconds something is so."""
        began = time.monotonic()
        while True:
            try:
                if is_so():
                    return time.monotonic() - began
            except ebla.Unavailable:
                pass
            assert time.monotonic() - began < seconds, f"not in time: {self.told()}"
            time.sleep(0.05)

    def told(self) -> str:
        """Return the ends of all logs, for whoever looks at a failure."""
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.path.glob("*.log")))

    def close(self) -> None:
        self.db.close()
        for process in [*self.servers.values(), self.master]:
            if process.is_running:
                process.signal(signal.SIGCONT)
                process.kill()
