"""Starting a process of a cluster, and learning from its output where it is.

The process is a session of its own, so that it outlives the terminal. What it says goes to ``<data>.log``; its line
``master 7c9e... at 127.0.0.1:7070`` says that it can be reached.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebla.errors import StoreError, TimedOut
from ebla.local_cluster.cluster_file import ClusterProcess
from ebla.rpc.metrics_port import ADDRESS_FILE

__all__ = ["Launched", "PortTaken", "launch"]

START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_TAKEN = "cannot be listened on"
_READY = re.compile(r"^(?:master|tablet server) (\S+) at (\S+)$", re.MULTILINE)


class PortTaken(StoreError):
    """A process did not start since somebody else listens on its port."""


@dataclass(slots=True)
class Launched:
    """A process that was started."""

    role: str
    data: Path
    process: subprocess.Popen[bytes]
    log: Path
    log_offset: int  # where this start begins in its log

    def wait(self) -> ClusterProcess:
        """Return who and where it is, when it says so; `StoreError` with its last words if it ends instead.

        `PortTaken` if these are that it cannot listen on its port.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            said = self.said()
            found = _READY.search(said)
            if found is not None:
                return ClusterProcess(self.role, found[1], found[2], str(self.data), self.process.pid, self._metrics())
            if self.process.poll() is not None:
                last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
                kind = PortTaken if _TAKEN in last else StoreError
                raise kind(f"the {self.role} in {self.data} did not start: {last} (more in {self.log})")
            if time.monotonic() > deadline:
                raise TimedOut(f"the {self.role} in {self.data} did not start in {START_SECONDS:.0f} s: see {self.log}")
            time.sleep(_POLL_SECONDS)

    def _metrics(self) -> str:
        """Return where it tells its metrics, which it has noted before it said that it can be reached."""
        try:
            return (self.data / ADDRESS_FILE).read_text().strip()
        except OSError:
            return ""

    def said(self) -> str:
        """Return what it has said since it was started."""
        with self.log.open("rb") as file:
            file.seek(self.log_offset)
            return file.read().decode(errors="replace")


def launch(
    role: str,
    data: Path,
    arguments: Sequence[str],
    command: Sequence[str] | None = None,
    *,
    log_format: str = "text",
) -> Launched:
    """Start a process: a command of this program with arguments, or a `command` of its own."""
    data.mkdir(parents=True, exist_ok=True)
    log = data.parent / f"{data.name}.log"
    line = command or [
        sys.executable,
        "-m",
        "ebla",
        "--verbose",
        "--log-format",
        log_format,
        role,
        "--data",
        str(data),
        *arguments,
    ]
    with log.open("ab") as output:
        offset = output.tell()
        process = subprocess.Popen(
            [*line], stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    return Launched(role, data, process, log, offset)
