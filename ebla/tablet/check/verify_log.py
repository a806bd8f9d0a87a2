"""Verifying the log of a store: it must hold what is on record of it (server_record.py), and not be ahead of METADATA.

Every tablet that it names must be known to METADATA, at that epoch or later. A log that is ahead of METADATA tells that
METADATA has gone back: an older copy was restored, or a disk came back as it was. Whatever the log has beyond it could
not be replayed rightly. The log is read before METADATA, so that a tablet that comes about meanwhile is not taken
for an unknown one.

Of a log that was not closed, the last that was acknowledged is told by a file beside it alone (log_reach.py). Nothing
is lost with that file, and the store opens without it; but an end of the log that went with it would not be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from ebla.errors import Corruption, MissingFile
from ebla.metadata.values.check import Finding
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.retry import RACES
from ebla.storage.files.files import Files
from ebla.storage.log.log_extent import NOTHING, LogExtent
from ebla.storage.log.log_format import SEGMENT_HEADER_BYTES
from ebla.storage.log.log_reach import find_reach_problem
from ebla.storage.log.log_reader import RESTORE, LogRecovery, recover, server_of

__all__ = ["LogPosition", "Positions", "examine_log", "read_positions"]


class LogPosition(NamedTuple):
    """How far the log goes for one tablet."""

    epoch: int
    txn: int


Positions: TypeAlias = dict[tuple[str, str], LogPosition]

# Whoever writes segments of this version, or a later one, tells how far they reach. Of those before, some did not.
_REACH_IS_TOLD_SINCE = 3


def read_positions(
    files: Files, directory: str, read_extent: Callable[[], LogExtent] = lambda: NOTHING
) -> tuple[Positions, list[Finding]]:
    """Read a whole log; return the newest position of every tablet in it, by table and tablet, and what is wrong.

    `read_extent` tells what it must hold; its owner may be at work.
    """
    positions: Positions = {}
    for _ in RACES:
        positions = {}
        extent = read_extent()
        try:
            recovery = recover(files, directory, extent)
            for found in recovery:
                for part in found.entry.parts:
                    if part.blocks or part.erasures:
                        _note(positions, (part.table, part.tablet), part.epoch, part.txn)
            return positions, [*_examine_reach(files, server_of(directory), extent, recovery)]
        except FileNotFoundError:
            continue  # a segment went while it was read: all of it is in fragments
        except (Corruption, MissingFile) as error:
            if read_extent() == extent:
                told = str(error) if RESTORE in str(error) else f"{error}: restore the log from a backup"
                return positions, [Finding("log", "", told)]
            continue  # its owner has gone on, and may have removed what was looked for
    return positions, []


def _examine_reach(files: Files, server: str, extent: LogExtent, recovery: LogRecovery) -> Iterator[Finding]:
    """Tell that the file which says how far the log reaches is not there, or damaged, where it should be and counts."""
    if extent == NOTHING or recovery.version < _REACH_IS_TOLD_SINCE or not recovery.segments:
        return
    last = recovery.segments[-1]
    if last.bytes <= SEGMENT_HEADER_BYTES and extent.last < last.sequence:
        return  # it was just made: nothing in it was acknowledged, nor was anything told of it yet
    # Closing leaves nothing behind the last entry, not even room, and has its exact end on record.
    is_closed = extent.last == last.sequence and extent.synced == last.bytes == files.size(last.path)
    problem = "" if is_closed else find_reach_problem(files, server)
    if problem:
        text = f"{problem}, and the log was not closed: commits of its last seconds could be cut off it unnoticed"
        yield Finding("log reach", "", text, repair="the first commit after the store is opened writes it anew")


def _note(positions: Positions, key: tuple[str, str], epoch: int, txn: int) -> None:
    known = positions.get(key, LogPosition(0, 0))
    positions[key] = LogPosition(max(known.epoch, epoch), max(known.txn, txn))


def examine_log(name: str, metadata: TableMetadata, positions: Positions) -> Iterator[Finding]:
    """Compare METADATA of a table called `name` with what the log has of it."""
    retired = {one.tablet: one.txn for one in metadata.retired}
    for (table_id, tablet_id), position in positions.items():
        if table_id != metadata.table_id:
            continue
        tablet = metadata.by_id(tablet_id)
        if tablet is None and position.txn > retired.get(tablet_id, -1):
            text = f"the log has writes of tablet {tablet_id} up to txn {position.txn}, which METADATA does not know"
        elif tablet is not None and position.epoch > tablet.epoch:
            text = f"the log has writes of {tablet_id} at epoch {position.epoch}, and METADATA is at {tablet.epoch}"
        else:
            continue
        yield Finding("epoch", name, f"{text}: restore the newer METADATA", tablet_id)
