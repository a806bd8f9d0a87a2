"""What one task of a replay does: some segments of a log in, fragments out, and one line about them.

    segments, mapped --> tablet.recovery.log_sort: opening's own replay --> files
    SortedPortion <----------------------------------------------------------'

A task may run several times, after a failure or at once when Spark speculates. Every attempt writes files of its own
and names them in its result; what others wrote is never named. The log itself is only read.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebla.metadata.values.restoring import unpack_metadata
from ebla.service.job_files import new_file
from ebla.storage.files.direct_files import DirectFiles
from ebla.tablet.recovery.log_sort import LogSorter, SortedPortion, map_segment, open_table

__all__ = ["ReplayTable", "ReplayTask", "SortedPortion"]


@dataclass(frozen=True)
class ReplayTable:
    """A table to be replayed: its METADATA, packed, and the job that its files belong to."""

    name: str
    metadata: bytes
    job: str


@dataclass(frozen=True)
class ReplayTask:
    """The work of every task of a replay: plain values, sent to wherever it runs."""

    root: str
    server: str
    tables: tuple[ReplayTable, ...]
    portions: tuple[tuple[str, ...], ...]
    flush_bytes: int

    def run(self, number: int) -> SortedPortion:
        """Sort one portion."""
        files = DirectFiles(self.root)
        jobs = {}
        tables = {}
        for one in self.tables:
            metadata = unpack_metadata(one.metadata, one.name)
            tables[metadata.table_id] = open_table(one.name, metadata, files)
            jobs[metadata.table_id] = one.job
        last = self.portions[-1][-1]
        segments = ((path, map_segment(self.root, path), path == last) for path in self.portions[number])
        sorter = LogSorter(
            files, self.server, tables, lambda table_id: new_file(table_id, jobs[table_id]), self.flush_bytes
        )
        return sorter.sort(number, segments)
