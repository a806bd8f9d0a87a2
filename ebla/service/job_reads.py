"""What a job that reads the files of a table itself asks of those who serve it: the rest of the table, and to keep it.

    CaptureTablets  -->  CapturedTablets   tablets as METADATA has them, and what of them is in no file yet
    HoldForJob      -->  JobHold           a txn and files that the job reads are kept until it is done

Fragments are read where they are. Only what is in memory travels, as Arrow; so a job forces no flush.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ebla.service.requests import StoreRequest, TableRequest

__all__ = ["CaptureTablets", "CapturedMemory", "CapturedTablets", "HoldForJob", "JobHold"]


class CapturedMemory(msgspec.Struct, frozen=True):
    """What a group of a tablet has in memory: records as one Arrow stream, and ranges that were erased at a txn."""

    tablet: str
    group: int
    data: memoryview | None
    txn: int | None  # of all records, if they share one; else they have it in a column
    is_unique: bool
    erasures: tuple[tuple[bytes, bytes | None, int], ...] = ()


class CapturedTablets(msgspec.Struct, frozen=True):
    """Some tablets at one moment: everything up to `txn` is in the files that `metadata` names, or in `memory`.

    `tablets` are those that were captured; `metadata`, which is packed, may name others. Those of `left` are to be
    asked for once more: together they were too much for one answer.
    """

    txn: int
    schema_version: int
    metadata: bytes
    tablets: tuple[str, ...]
    memory: tuple[CapturedMemory, ...]
    left: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()  # of the newest commit to each of `tablets`


class CaptureTablets(msgspec.Struct, TableRequest[CapturedTablets], frozen=True):
    """Tell what the tablets consist of that are led here: those named, or all. Without a txn, at the newest."""

    txn: int | None = None
    tablets: tuple[str, ...] | None = None
    with_memory: bool = True


class JobHold(msgspec.Struct, frozen=True):
    """Until when something is held, and up to which txn compaction had been told to go once it was."""

    until_microseconds: int
    horizon_txn: int = 0


class HoldForJob(msgspec.Struct, StoreRequest[JobHold], frozen=True):
    """Hold a txn, and files, by a name: anew, or renewed, or as it was for longer; or let go of what it holds."""

    kind: Literal["begin", "renew", "extend", "release"]
    name: str
    txn: int = 0
    seconds: float = 0.0
    reader: str = ""
    files: tuple[str, ...] = ()
