"""Entries of the log as version 1 wrote them, read as entries of today. No log is written like this any more.

    version 1   blocks of a table group, each divided into slices of tablets; erasures with the tablets they touch
    today       parts of tablets, each with its blocks and erasures

A slice becomes a block of its tablet's part: the same bytes, not copied. Replies stay the entry's: version 1 did not
say which tablets a request was about.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ebla.storage.log.log_entry import LogBlock, LogEntry, LogErasure, LogPart, Reply, read_block, split_payload

__all__ = ["decode_former_entry"]


class _Slice(msgspec.Struct, frozen=True, array_like=True):
    """The rows [begin, end) of a block, which are one tablet's, and its epoch and index for them."""

    tablet: str
    epoch: int
    index: int
    begin: int
    end: int


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """A tablet that an erasure touches, and its epoch and index for it."""

    tablet: str
    epoch: int
    index: int


class _Erasure(msgspec.Struct, frozen=True, array_like=True):
    """An erasure of the encoded rows [first, last); `last` None has no end."""

    table: str
    first: bytes
    last: bytes | None
    txn: int
    tablets: tuple[_Position, ...]


class _Block(msgspec.Struct, frozen=True, array_like=True):
    """Records of one group of a table; they are `body_length` bytes at `body_offset` after the preamble."""

    table: str
    group: int
    schema_version: int
    txn: int
    txn_min: int
    has_txn_column: bool
    rows: int
    slices: tuple[_Slice, ...]
    schema: bytes
    body_offset: int
    body_length: int


class _Preamble(msgspec.Struct, frozen=True, array_like=True):
    txn_max: int
    blocks: tuple[_Block, ...]
    erasures: tuple[_Erasure, ...]
    replies: tuple[Reply, ...]


_decode_preamble = msgspec.msgpack.Decoder(_Preamble).decode


@dataclass(slots=True)
class _Part:
    """What is gathered of one tablet, at one epoch. An erasure had no schema version: 0 where there is nothing else."""

    schema_version: int = 0
    txn: int = 0
    blocks: list[LogBlock] = field(default_factory=list)
    erasures: list[LogErasure] = field(default_factory=list)

    def as_part(self, table: str, tablet: str, epoch: int) -> LogPart:
        indices = [block.index for block in self.blocks] + [erasure.index for erasure in self.erasures]
        return LogPart(
            table,
            tablet,
            epoch,
            self.schema_version,
            min(indices),
            max(indices),
            self.txn,
            tuple(self.blocks),
            tuple(self.erasures),
        )


def decode_former_entry(payload: Any) -> LogEntry:
    """Return the commit of version 1 that `payload` (a `pa.Buffer`) holds. The records point into it."""
    packed, base = split_payload(payload)
    preamble = _decode_preamble(packed)
    parts: dict[tuple[str, str, int], _Part] = defaultdict(_Part)
    for block in preamble.blocks:
        records = read_block(payload, base, block.body_offset, block.body_length, block.schema, block.rows)
        for one in block.slices:
            if not 0 <= one.begin <= one.end <= block.rows:
                raise ValueError(f"rows {one.begin} to {one.end} of a block that has {block.rows}")
            part = parts[block.table, one.tablet, one.epoch]
            part.schema_version = block.schema_version
            part.txn = max(part.txn, block.txn)
            own = records.slice(one.begin, one.end - one.begin)
            part.blocks.append(LogBlock(block.group, one.index, block.txn, block.txn_min, block.schema, own))
    for erasure in preamble.erasures:
        for at in erasure.tablets:
            part = parts[erasure.table, at.tablet, at.epoch]
            part.txn = max(part.txn, erasure.txn)
            part.erasures.append(LogErasure(erasure.first, erasure.last, erasure.txn, at.index))
    gathered = tuple([part.as_part(*key) for key, part in parts.items()])
    return LogEntry(preamble.txn_max, gathered, preamble.replies)
