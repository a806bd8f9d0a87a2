"""The lock by which one process at a time owns a directory: an flock, and the number of the process that holds it."""

from __future__ import annotations

import fcntl
import os
import weakref

from ebla.errors import StoreLocked
from ebla.storage.files.local_file import Descriptor, open_descriptor

__all__ = ["take_lock"]


class LocalFileLock(Descriptor):
    """An flock: it belongs to the open descriptor, so that it goes when the process does."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        _held_locks.add(self)

    def release(self) -> None:
        """Give the lock up."""
        self.close()


# A forked child shares its parent's descriptors and would keep the lock after the parent's death. It lets go of them
# at once; the parent keeps the lock, since flock ends with the last descriptor.
_held_locks: weakref.WeakSet[LocalFileLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in [*_held_locks]:
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


def take_lock(full: str) -> LocalFileLock:
    """Take the lock at the full path, or raise `StoreLocked` at once. The file is made if it is missing."""
    descriptor = open_descriptor(full, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreLocked(_locked_message(full, holder)) from None
    except BaseException:
        os.close(descriptor)
        raise
    # The number is only told to those who find the lock taken; the lock itself is the kernel's.
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return LocalFileLock(descriptor)


def _locked_message(full: str, holder: str) -> str:
    if holder == str(os.getpid()):
        return f"{full}: this process has the store open for writing already: use that one, or close it first"
    who = f"process {holder}" if holder.isdigit() else "another process"
    return f"{full}: {who} has the store open for writing: close it there, or open it here with read_only=True"
