"""Owning a store without opening it: for jobs on a store that is closed, or died.

    lock of the directory --> coordination service --> lease, where hosts share it --> ... --> all let go

That is what an opening writer does first, in the same order. From then on whoever had the store before cannot write it
any more: its process is gone, or its lease is lost, which it notices before it acknowledges anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ebla.client.embedded.coordination_place import connect_at, recorded_address
from ebla.client.embedded.ownership import Ownership
from ebla.clock import Clock, SystemClock
from ebla.coordination.service import CoordinationService
from ebla.errors import StoreError
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles

__all__ = ["LOCK_FILE", "Owned", "owning"]

LOCK_FILE = "LOCK"


@dataclass(frozen=True, slots=True)
class Owned:
    """A store that this process owns. `check` raises once somebody else may own it."""

    files: LocalFiles
    coordination: CoordinationService
    clock: Clock
    check: Callable[[], None]


@contextlib.contextmanager
def owning(root: Path) -> Iterator[Owned]:
    """Own the store at `root`, which is there; `StoreLocked` tells who else does."""
    clock = SystemClock()
    files = LocalFiles(root)
    with contextlib.ExitStack() as held:
        try:
            held.callback(files.lock(LOCK_FILE).release)
        except OSError as error:
            raise StoreError(
                f"the store at {root} cannot be locked: {error.strerror}: mend the cause, retry"
            ) from error
        coordination = held.enter_context(connect_at(root, clock))
        check: Callable[[], None] = lambda: None  # noqa: E731 - the lock of the directory is enough on one host
        if recorded_address(root) is not None:
            ownership = Ownership(coordination, clock, root, Settings().owner_lease_seconds)
            held.callback(ownership.release)
            check = ownership.check
        yield Owned(files, coordination, clock, check)
