"""The floor of a cluster's sweeps, on record: no server gives out names of files from below it.

    node `file_floor`    the highest floor of any table, in microseconds; it only grows

A table's own floor is in its configuration, where every change of its METADATA is held against it. This one is for
servers: one whose clock is behind would give out names that are refused, and begins above the floor instead.
"""

from __future__ import annotations

from ebla.coordination.growing_number import GrowingNumber

__all__ = ["FileFloor"]


class FileFloor(GrowingNumber):
    """The record, in microseconds."""

    NODE = "file_floor"
    CALLED = "the floor of a sweep in microseconds"
