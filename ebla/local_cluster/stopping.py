"""Stopping processes of a cluster: asked first, tablet servers before masters, and killed if that is in vain."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from ebla.local_cluster.cluster_file import ClusterProcess, is_running

__all__ = ["stop_processes"]

STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05


def stop_processes(processes: Iterable[ClusterProcess]) -> list[ClusterProcess]:
    """Stop those of the processes that run, and return the ones that had to be killed."""
    processes, killed = [*processes], []
    for role in ("tablet-server", "master", "zookeeper"):
        own = [process for process in processes if process.role == role and is_running(process)]
        for process in own:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(map(is_running, own)) and time.monotonic() < deadline:
            _reap(own)
            time.sleep(_POLL_SECONDS)
        for process in own:
            if is_running(process):
                _signal(process, signal.SIGKILL)
                killed.append(process)
        _reap(own)
    return killed


def _signal(process: ClusterProcess, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)  # one that was stopped hears nothing else


def _reap(processes: list[ClusterProcess]) -> None:
    """Let go of children of this process that have ended; others are somebody else's."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
