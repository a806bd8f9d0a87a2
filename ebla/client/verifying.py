"""Verifying and repairing a store that may not open any more: by its directory, not by a `Database`.

ebla.verify("data")                   what is wrong; needs no lock, changes nothing
ebla.repair("data")                   what would be done about it
ebla.repair("data", dry_run=False)    does it; the store must be closed
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from ebla.client.coordination_place import connect_at, is_store, recorded_address
from ebla.client.ownership import Ownership
from ebla.clock import SystemClock
from ebla.errors import StoreNotFound
from ebla.metadata.directory import TableDirectory
from ebla.settings import Settings
from ebla.storage.files import LocalFiles
from ebla.tablet.verify import Verifier, VerifyReport

__all__ = ["VerifyReport", "repair", "verify"]

LOCK_FILE = "LOCK"


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Compare METADATA with itself and with every file that it names. Another process may have the store open."""
    root = _root(path)
    clock = SystemClock()
    with connect_at(root, clock, read_only=True) as coordination:
        return Verifier(coordination, LocalFiles(root), TableDirectory(coordination, clock)).verify()


def repair(path: str | os.PathLike[str], *, dry_run: bool = True) -> VerifyReport:
    """Mend the METADATA of every table as far as nothing is lost by it, in one transaction for each.

    With `dry_run`, only say so: the findings of `verify` tell what would be done. `StoreLocked` if the store is open.
    """
    if dry_run:
        return verify(path)
    root = _root(path)
    clock = SystemClock()
    files = LocalFiles(root)
    lock = files.lock(LOCK_FILE)
    try:
        with contextlib.ExitStack() as held:
            coordination = held.enter_context(connect_at(root, clock))
            if recorded_address(root) is not None:
                held.callback(Ownership(coordination, clock, root, Settings().owner_lease_seconds).release)
            verifier = Verifier(coordination, files, TableDirectory(coordination, clock))
            return verifier.repair(lambda: str(uuid.uuid4()))
    finally:
        lock.release()


def _root(path: str | os.PathLike[str]) -> Path:
    root = Path(path)
    if not is_store(root):
        raise StoreNotFound(f"there is no store at {root}: check the path")
    return root
