"""What a job that brings a whole table asks the owner of a store to do: see `restorer`."""

from __future__ import annotations

import msgspec

__all__ = ["RestoreCommit"]


class RestoreCommit(msgspec.Struct, frozen=True, tag="restore"):
    """A table as a whole, that a job brings from elsewhere: its METADATA, packed, which names the job's files.

    `replaces` is the id of the table that has the name now, and gives it up to this one. A job is applied once.
    """

    job: str
    table_id: str
    name: str
    metadata: bytes
    replaces: str | None = None
