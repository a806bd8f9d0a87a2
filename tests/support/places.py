"""Where tests keep their stores: in memory, if the machine has a directory there with room to spare; some on a disk.

A store waits for the disk after every write that it acknowledges. No test can see what that is good for, short of
pulling the plug: crashes are simulated, in `simulated_files`. So thousands of tests need not wait. Tests that kill
processes ask for a disk all the same, for that is what stores are kept on.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["disk", "keep_in_memory"]

_MEMORY = Path("/dev/shm")
_DISK = Path("/var/tmp")
_BYTES_MIN = 2 << 30


def keep_in_memory() -> None:
    """Have temporary directories of this process, and of those that it starts, made in memory; unless TMPDIR is set."""
    if "TMPDIR" not in os.environ and is_roomy(_MEMORY):
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # it is found anew


def is_roomy(directory: Path) -> bool:
    """Whether tests can be at home there: there is room, and programs that they write can be run."""
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize >= _BYTES_MIN and not found.f_flag & os.ST_NOEXEC


def disk() -> Path | None:
    """Return a directory on a disk, or None for that of all temporary files."""
    return _DISK if os.access(_DISK, os.W_OK | os.X_OK) else None
