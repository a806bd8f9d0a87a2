"""A commit on its way into the log: what one request adds, and how those of several become parts of one entry.

    StagedBlock, by group ---> StagedPart, by tablet ---> Commit, by request
                                                            | several at once
                                                            v
                                LogPart, one for each tablet; small blocks of one group are Combined into one

What is combined for the log takes the place of the small blocks in memory, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

from ebla.model.schema import GroupSchema
from ebla.storage.log.log_entry import LogBlock, LogErasure, LogPart, Reply
from ebla.storage.merge.memory import MemoryErasure, combine
from ebla.storage.record.cell_block import CellBlock
from ebla.storage.record.records import Block, schema_bytes
from ebla.storage.record.row_block import RowBlock
from ebla.tablet.write.tablet_state import TabletState

# Blocks of at most this many records are combined with their neighbours in the queue.
SMALL_BLOCK_ROWS = 256

TabletKeys: TypeAlias = Collection[tuple[str, str]]


class StagedBlock(msgspec.Struct, frozen=True):
    """A block in memory that is not in the log yet. If it is rows of a larger batch, from `begin` on: of which one."""

    group: GroupSchema
    block: Block
    schema_bytes: bytes
    whole: pa.RecordBatch | None = None
    begin: int = 0


class StagedPart(msgspec.Struct, frozen=True):
    """What a commit has for one tablet, whose next `index` it takes; but replies that are logged again take none."""

    table: str
    tablet: str
    state: TabletState
    epoch: int
    schema_version: int
    index: int
    blocks: list[StagedBlock] = []
    erasures: list[MemoryErasure] = []
    replies: list[Reply] = []
    takes_index: bool = True


class Commit(msgspec.Struct, frozen=True):
    """What one request adds to the log."""

    txn: int
    bytes: int
    parts: tuple[StagedPart, ...] = ()
    former_replies: tuple[Reply, ...] = ()  # of no tablet: see kept_replies.py


class Combined(msgspec.Struct, frozen=True):
    """Small blocks of one tablet and group that were combined into one."""

    table: str
    tablet: str
    group: int
    old: tuple[Block, ...]
    new: Block


def parts_of(commits: Sequence[Commit]) -> tuple[tuple[LogPart, ...], list[Combined]]:
    """Return the parts of an entry that has all these commits, and what was combined on the way."""
    if len(commits) == 1:
        commit = commits[0]
        return tuple([_part_of_one(part, commit.txn) for part in commit.parts]), []
    gathered: dict[tuple[str, str, int, int], list[StagedPart]] = defaultdict(list)
    newest: dict[tuple[str, str, int, int], int] = {}
    for commit in commits:
        for part in commit.parts:
            key = part.table, part.tablet, part.epoch, part.schema_version
            gathered[key].append(part)
            newest[key] = commit.txn
    combined: list[Combined] = []
    parts = [_log_part(several, _blocks_of(several, combined), newest[key]) for key, several in gathered.items()]
    return tuple(parts), combined


def _blocks_of(several: Sequence[StagedPart], combined: list[Combined]) -> list[LogBlock]:
    """Return the blocks of one tablet for the log, small ones combined, which is added to `combined`."""
    blocks: list[LogBlock] = []
    small: dict[int, list[StagedBlock]] = defaultdict(list)
    for part in several:
        for staged in part.blocks:
            if len(staged.block) <= SMALL_BLOCK_ROWS:
                small[staged.group.id].append(staged)
            else:
                blocks.append(_log_block(staged))
    for group_id, own in small.items():
        one = own[0]
        if len(own) > 1:
            old = tuple([staged.block for staged in own])
            new = combine(old, is_cells=one.group.is_cells)
            combined.append(Combined(several[0].table, several[0].tablet, group_id, old, new))
            one = StagedBlock(one.group, new, schema_bytes(new.records.schema))
        blocks.append(_log_block(one))
    return blocks


def _part_of_one(part: StagedPart, txn: int) -> LogPart:
    """Return what `_log_part` returns of a part alone."""
    return LogPart(
        part.table,
        part.tablet,
        part.epoch,
        part.schema_version,
        part.index if part.takes_index else part.index + 1,
        part.index,
        txn,
        tuple([_log_block(staged) for staged in part.blocks]),
        tuple([LogErasure(one.first, one.last, one.txn, one.index) for one in part.erasures]) if part.erasures else (),
        tuple(part.replies),
    )


def _log_part(several: Sequence[StagedPart], blocks: Sequence[LogBlock], txn: int) -> LogPart:
    first = several[0]
    erasures = [LogErasure(one.first, one.last, one.txn, one.index) for part in several for one in part.erasures]
    last = several[-1].index
    return LogPart(
        first.table,
        first.tablet,
        first.epoch,
        first.schema_version,
        next((part.index for part in several if part.takes_index), last + 1),
        last,
        txn,
        tuple(blocks),
        tuple(erasures),
        tuple([reply for part in several for reply in part.replies]),
    )


def _log_block(staged: StagedBlock) -> LogBlock:
    block = staged.block
    body = block.message if isinstance(block, (RowBlock, CellBlock)) else None
    return LogBlock(
        staged.group.id,
        block.index,
        block.txn_max,
        block.txn_min,
        staged.schema_bytes,
        block.records if body is None else None,
        body,
        staged.whole,
        staged.begin,
        len(block),
    )
