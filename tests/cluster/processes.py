"""A cluster of real processes on this host, for tests: masters, tablet servers, and what can happen to them."""

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
from ebla.clock import SystemClock
from ebla.coordination.address import open_coordination
from ebla.coordination.lease import decode_lease
from ebla.master_server.leadership import LEASE
from ebla.service.requests import DescribeStore

ROOT = Path(__file__).parents[2]
# On a machine that is busy with other tests, too.
READY_SECONDS = 120.0


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
        self.uuid = self.address = ""

    def ready(self) -> Process:
        """Wait until it says who it is and where."""
        out = self._process.stdout
        assert out is not None
        there, _, _ = select.select([out], [], [], READY_SECONDS)
        words = out.readline().split() if there else []
        assert len(words) >= 4, f"it did not begin: {self.log.read_text()}"
        self.uuid, self.address = words[-3], words[-1]
        return self

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
    """Masters and tablet servers in a directory. Leaving it kills what still runs."""

    def __init__(self, path: Path, servers: int = 3, masters: int = 1, coordination: str | None = None) -> None:
        """`coordination` is the address of a ZooKeeper; else it is a file."""
        self.path = path
        self._coordination = coordination or str(path / "coordination.sqlite")
        self.masters: dict[str, Process] = {}
        self.servers: dict[str, Process] = {}
        try:
            self._begin(servers, masters)
        except BaseException:
            self._kill()
            raise

    def _begin(self, servers: int, masters: int) -> None:
        self.masters = {f"master-{number}": self._start(f"master-{number}") for number in range(masters)}
        self.servers = {f"server-{number}": self._start(f"server-{number}") for number in range(servers)}
        for process in [*self.masters.values(), *self.servers.values()]:
            process.ready()
        self.db = ebla.connect([master.address for master in self.masters.values()])
        self.wait_until(lambda: len(self.living()) == servers)

    def _start(self, name: str, port: str = "0") -> Process:
        command = "master" if name.startswith("master") else "tablet-server"
        root = self.path / "root"
        options = ["--coordination", self._coordination, "--root", str(root), "--data", str(self.path / name)]
        options += ["--port", port]
        return Process([sys.executable, "-m", "ebla", command, *options], self.path / f"{name}.log")

    def start_again(self, name: str) -> None:
        """Start a process again with its own directory; a master where clients know it."""
        if name in self.servers:
            self.servers[name] = self._start(name).ready()
        else:
            self.masters[name] = self._start(name, self.masters[name].address.rpartition(":")[2]).ready()

    def process(self, name: str) -> Process:
        """Return a process by its name."""
        return (self.masters if name in self.masters else self.servers)[name]

    def leading_master(self) -> str:
        """Return the name of the master that leads."""
        clock = SystemClock()
        with open_coordination(self._coordination, clock) as coordination:
            node = coordination.read(LEASE)
        assert node is not None
        owner = decode_lease(LEASE, node.value).owner
        return next(name for name, master in self.masters.items() if master.uuid == owner)

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

    def wait_until_even(self) -> None:
        """Wait until no server leads many more tablets than another: then a new table has some on each."""

        def is_even() -> bool:
            leaders = [*self.leaders().values()]
            counts = [leaders.count(server) for server in self.living()]
            return None not in leaders and max(counts) - min(counts) <= 1

        self.wait_until(is_even)

    def wait_until(self, is_so: Callable[[], object], seconds: float = 60.0) -> float:
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
        """Leave, and kill what still runs."""
        self.db.close()
        self._kill()

    def _kill(self) -> None:
        for process in [*self.servers.values(), *self.masters.values()]:
            if process.is_running:
                process.signal(signal.SIGCONT)
                process.kill()
