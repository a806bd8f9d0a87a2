"""What the figures were measured on, in words that identify no host."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("ebla", "pyarrow", "numpy", "rocksdict", "lmdb", "duckdb")


def describe(directory: Path) -> list[str]:
    """Return the description, one fact a line."""
    return [
        f"{os.cpu_count()} cores ({_processor()}), {_memory_gib():.0f} GiB of memory, {platform.system()}",
        f"load average {os.getloadavg()[0]:.1f} at the start (well above 0: other work ran beside the measurements)",
        f"one write of 200 bytes and fdatasync: {sync_seconds(directory) * 1e6:.0f} us",
        f"Python {platform.python_version()}, " + ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        f"SQLite {sqlite3.sqlite_version}",
    ]


def sync_seconds(directory: Path, count: int = 300) -> float:
    """Return what one small appended and synced write takes here: the floor under every single durable put."""
    path = directory / "sync-probe"
    best = float("inf")
    with path.open("wb", buffering=0) as file:
        for _ in range(3):
            begin = time.perf_counter()
            for _ in range(count):
                file.write(b"x" * 200)
                os.fdatasync(file.fileno())
            best = min(best, (time.perf_counter() - begin) / count)
    path.unlink()
    return best


def is_memory_backed(directory: Path) -> bool:
    """Tell whether files there live in memory, where a sync costs nothing and the figures would mean nothing."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    here = directory.resolve()
    under = [(len(at), kind) for _, at, kind, *_ in mounts if here == Path(at) or Path(at) in here.parents]
    return bool(under) and max(under)[1] in ("tmpfs", "ramfs")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / (1 << 30)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
