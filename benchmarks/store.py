"""Ebla's side of the workloads: opening, loading, and looking at its files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ebla
from benchmarks import data
from ebla.settings import Settings

GIB = 1 << 30
LOOKUP_SECONDS = 300
TABLE = "bench"

# Nothing is flushed until the workload says so: for loads that must end as one fragment, or all in the log.
NO_FLUSH = replace(
    Settings(), flush_bytes=16 * GIB, memory_bytes_max=16 * GIB, log_bytes_max=16 * GIB, background_compaction=False
)
# Reads are measured on the files that a workload has prepared, not on what compaction would make of them.
AS_LOADED = replace(Settings(), background_compaction=False)


def schema(block_bytes: int | None = None) -> Any:
    """Return the declaration of the measured table; everything but `block_bytes` is Ebla's default."""
    if block_bytes is None:
        return ebla.Schema(columns=data.COLUMNS)
    return ebla.Schema(groups=[ebla.Group("default", columns=data.COLUMNS, block_bytes=block_bytes)])


def create(path: Path, settings: Settings | None = None, block_bytes: int | None = None) -> tuple[Any, Any]:
    """Make a store with the measured table; return both."""
    database = ebla.open(path, settings=settings or Settings())
    return database, database.create_table(TABLE, schema(block_bytes))


def reopen(path: Path, settings: Settings | None = None) -> tuple[Any, Any]:
    """Open an existing store: its caches are empty. Returns store and table."""
    database = ebla.open(path, settings=settings or AS_LOADED)
    return database, database.table(TABLE)


def load_flushed(path: Path, rounds: Iterable[Iterable[Any]], block_bytes: int | None = None) -> None:
    """Load each round and flush it to one fragment; leave the store closed. Never timed."""
    database, table = create(path, NO_FLUSH, block_bytes)
    for batches in rounds:
        for batch in batches:
            table.put(batch, wait="none")
        table.flush()
    database.close()


def make_lookups(path: Path) -> None:
    """Have a lookup file made of every fragment; leave the store closed. Never timed."""
    database = ebla.open(path, settings=replace(Settings(), lookup_at_once=True))
    deadline = time.monotonic() + LOOKUP_SECONDS
    while len(list(path.glob("lookup/*.lookup"))) < len(fragments(path)):
        if time.monotonic() > deadline:
            raise TimeoutError("lookup files were not made in time")
        time.sleep(0.1)
    database.close()


def fragments(path: Path) -> list[str]:
    """Return the Parquet files of the store."""
    return sorted(str(file) for file in path.glob("fragments/**/*.parquet"))


def log_bytes(path: Path) -> int:
    """Return how many bytes of log there are, without space that was only reserved (trailing zeros)."""
    return sum(len(file.read_bytes().rstrip(b"\0")) for file in path.glob("log/**/*.log"))
