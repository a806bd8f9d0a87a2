"""How METADATA names a run: one start of a tablet server, with a log and a lease of its own."""

from __future__ import annotations

__all__ = ["run_name", "server_of_run", "start_of_run"]


def run_name(server: str, start: int) -> str:
    """Return how METADATA names a run, and the log that it has below ``log/``."""
    return f"{server}/{start}"


def server_of_run(run: str) -> str:
    """Return the server of a run."""
    return run.partition("/")[0]


def start_of_run(run: str) -> int:
    """Return which start of its server a run is; 0 for a log that belongs to no run, as of an embedded store."""
    start = run.partition("/")[2]
    return int(start) if start.isdigit() else 0
