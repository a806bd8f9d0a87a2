"""The numbers that a store keeps of itself, each under the name by which it is told everywhere.

    TabletStore.counters() --> db.metrics()            Prometheus text, with the prefix ``ebla_``
                           --> STATUS in the root      for `ebla status` and `ebla stats` of other processes

Names end in their unit; what ends in ``_total`` counts from the opening on and never falls, all else is what it is now.
Reading them takes no lock that a request could hold for long, and asks neither METADATA nor the coordination service.
"""

from __future__ import annotations

from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

__all__ = ["Counters", "described"]


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a store that this process has open."""

    commits_total: Annotated[int, Meta(description="Commits that were given a txn.")] = 0
    commit_timestamp_seconds: Annotated[float, Meta(description="When the newest visible commit was made.")] = 0.0
    put_bytes_total: Annotated[int, Meta(description="Bytes that commits took in memory.")] = 0
    bulk_commits_total: Annotated[int, Meta(description="Bulk jobs whose files were made part of a table.")] = 0
    throttled_writes_total: Annotated[int, Meta(description="Writes that had to wait for room in memory.")] = 0
    throttled_seconds_total: Annotated[float, Meta(description="Time that writes waited for room in memory.")] = 0.0
    writers_held_total: Annotated[int, Meta(description="Pauses of a table's writers: split, join, alter.")] = 0
    writers_held_seconds_total: Annotated[float, Meta(description="Time that writers of a table were paused.")] = 0.0

    log_writes_total: Annotated[int, Meta(description="Entries written and synced to the log.")] = 0
    log_write_seconds_total: Annotated[float, Meta(description="Time to write and sync the log.")] = 0.0
    log_bytes: Annotated[int, Meta(description="Size of the log.")] = 0
    log_segments: Annotated[int, Meta(description="Files of the log.")] = 0
    log_queued_bytes: Annotated[int, Meta(description="Bytes committed and not in the log yet.")] = 0
    log_failed: Annotated[int, Meta(description="1 if the log takes no more writes.")] = 0
    metadata_commits_total: Annotated[int, Meta(description="METADATA transactions.")] = 0
    metadata_commit_seconds_total: Annotated[float, Meta(description="Time of METADATA transactions.")] = 0.0

    memory_bytes: Annotated[int, Meta(description="Bytes in memory that are not in fragments yet.")] = 0
    memory_limit_bytes: Annotated[int, Meta(description="From so many bytes in memory on writes wait.")] = 0
    flushes_total: Annotated[int, Meta(description="Flushes of memory to fragments.")] = 0
    flush_seconds_total: Annotated[float, Meta(description="Time of flushes.")] = 0.0
    flush_written_bytes_total: Annotated[int, Meta(description="Bytes of fragments that flushes wrote.")] = 0
    flush_failing: Annotated[int, Meta(description="1 if the last flush failed and is tried again.")] = 0
    folds_total: Annotated[int, Meta(description="Many small blocks in memory made few.")] = 0

    compactions_total: Annotated[int, Meta(description="Compactions that were carried out.")] = 0
    compaction_seconds_total: Annotated[float, Meta(description="Time of compactions.")] = 0.0
    compaction_read_bytes_total: Annotated[int, Meta(description="Bytes of fragments that were merged.")] = 0
    compaction_written_bytes_total: Annotated[int, Meta(description="Bytes of fragments that merges wrote.")] = 0
    compaction_failing: Annotated[int, Meta(description="1 if a compaction was given up and waits.")] = 0
    splits_total: Annotated[int, Meta(description="Tablets that were split.")] = 0
    joins_total: Annotated[int, Meta(description="Pairs of tablets that were joined.")] = 0
    garbage_removed_files_total: Annotated[int, Meta(description="Files removed that no table named.")] = 0
    garbage_removed_bytes_total: Annotated[int, Meta(description="Bytes of the files that were removed.")] = 0

    block_cache_bytes: Annotated[int, Meta(description="Bytes in the block cache.")] = 0
    block_cache_limit_bytes: Annotated[int, Meta(description="Size of the block cache.")] = 0
    block_cache_hits_total: Annotated[int, Meta(description="Blocks found in the block cache.")] = 0
    block_cache_misses_total: Annotated[int, Meta(description="Blocks that had to be read.")] = 0
    lookup_files: Annotated[int, Meta(description="Lookup files, by which single rows are found.")] = 0
    lookup_bytes: Annotated[int, Meta(description="Disk that lookup files take.")] = 0
    lookup_limit_bytes: Annotated[int, Meta(description="Disk that lookup files may take.")] = 0
    lookup_made_total: Annotated[int, Meta(description="Lookup files that were made.")] = 0
    lookup_failed_total: Annotated[int, Meta(description="Lookup files that could not be made.")] = 0
    lookup_damaged_total: Annotated[int, Meta(description="Lookup files found damaged, and removed.")] = 0
    lookup_finds_total: Annotated[int, Meta(description="Rows looked for in lookup files.")] = 0
    scans_open: Annotated[int, Meta(description="Scans under way.")] = 0
    scans_expired_total: Annotated[int, Meta(description="Scans let go because nobody went on with them.")] = 0
    scans_evicted_total: Annotated[int, Meta(description="Scans let go because there were too many.")] = 0
    tables: Annotated[int, Meta(description="Tables that are served.")] = 0
    tables_damaged: Annotated[int, Meta(description="Tables that are refused or served in part.")] = 0


def described() -> dict[str, str]:
    """Return what each number means, by its name."""
    hints = get_type_hints(Counters, include_extras=True)
    return {name: hint.__metadata__[0].description for name, hint in hints.items()}
