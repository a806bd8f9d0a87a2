"""Forks: a store belongs to the process that opened it, and a child of that process must not touch it.

A forked child has its parent's memory and file descriptors, but not its threads, and nobody who would let go of its
locks. If both wrote, one would overwrite the other's part of the log, and commits that were acknowledged would be lost.
So in the child every store that was open is closed, without touching anything, and says why.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Owned(Protocol):
    """What belongs to one process."""

    def disown(self) -> None:
        """Serve nothing any more; touch no file, thread or lock."""


_owned: weakref.WeakSet[Owned] = weakref.WeakSet()
_inherited: list[Owned] = []


def watch(owned: Owned) -> None:
    """Disown this in every process that is forked from now on."""
    _owned.add(owned)


def _disown_in_child() -> None:
    _inherited.extend(_owned)  # for ever: what they hold open, they would close when they are collected
    _owned.clear()
    for owned in _inherited:
        owned.disown()


os.register_at_fork(after_in_child=_disown_in_child)
