"""Closing files that have lost their names, beside everything else.

    unlink, a descriptor open ---> the name is gone, at once
                  `--> a thread closes it ---> the file system frees its blocks, and waits for the device

A file system that tells the device which blocks are free (the mount option discard) does so when the last descriptor of
a file without names is closed, and waits: some milliseconds for a segment of the log, most of a second for a gigabyte.
Nobody else has to. Should the process end before, the kernel closes what is open.
"""

from __future__ import annotations

import os
import threading
from collections import deque

__all__ = ["PENDING_MAX", "close_later"]

# So many descriptors are taken from what the process may open.
PENDING_MAX = 128

# Guarded by _lock. The thread lives as long as there is something to close.
_lock = threading.Lock()
_pending: deque[int] = deque()
_is_running = False


def close_later(descriptor: int) -> None:
    """Have a thread close a descriptor; where too many wait for that already, close it here."""
    with _lock:
        if len(_pending) < PENDING_MAX and _started():
            _pending.append(descriptor)
            return
    os.close(descriptor)


def _started() -> bool:
    """Whether the thread runs, if need be from now on. The lock is held."""
    global _is_running
    if not _is_running:
        try:
            threading.Thread(target=_run, name="ebla-late-close", daemon=True).start()
        except RuntimeError:  # there are too many, or the interpreter is about to end
            return False
        _is_running = True
    return True


def _run() -> None:
    global _is_running
    while True:
        with _lock:
            if not _pending:
                _is_running = False
                return
            descriptor = _pending.popleft()
        os.close(descriptor)


def _close_in_child() -> None:
    """A forked child has the descriptors and not the thread; and nobody there lets go of the lock."""
    global _lock, _is_running
    _lock = threading.Lock()
    _is_running = False
    while _pending:
        os.close(_pending.popleft())


os.register_at_fork(after_in_child=_close_in_child)
