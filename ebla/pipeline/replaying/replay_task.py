"""What one task of a replay does: some segments of a log in, fragments out, and one line about them.

    segments, mapped --> tablet.log_sort: opening's own replay --> files
    SortedPortion <------------------------------------------------'

A task may run several times, after a failure or at once when Spark speculates. Every attempt writes files of its own
and names them in its result; what others wrote is never named. The log itself is only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.schema import decode_hook, encode_hook
from ebla.pipeline.spark.failures import plain_errors
from ebla.pipeline.spark.worker import acknowledge, settle_worker
from ebla.service.job_files import new_file
from ebla.storage.files.direct_files import DirectFiles
from ebla.tablet.recovery.log_sort import LogSorter, SortedPortion, map_segment, open_table

__all__ = ["ReplayTable", "ReplayTask", "decode_result", "pack_metadata"]


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

    def attempt(self, numbers: Iterable[int]) -> Iterator[bytes]:
        """Sort the portions whose numbers Spark brings."""
        acknowledge()
        for number in numbers:
            with plain_errors():
                packed = msgspec.msgpack.encode(self.run(number))
            yield packed
        settle_worker()

    def run(self, number: int) -> SortedPortion:
        """Sort one portion."""
        files = DirectFiles(self.root)
        jobs = {}
        tables = {}
        for one in self.tables:
            metadata = msgspec.msgpack.decode(one.metadata, type=TableMetadata, dec_hook=decode_hook)
            tables[metadata.table_id] = open_table(one.name, metadata, files)
            jobs[metadata.table_id] = one.job
        last = self.portions[-1][-1]
        segments = ((path, map_segment(self.root, path), path == last) for path in self.portions[number])
        sorter = LogSorter(
            files, self.server, tables, lambda table_id: new_file(table_id, jobs[table_id]), self.flush_bytes
        )
        return sorter.sort(number, segments)


def pack_metadata(metadata: TableMetadata) -> bytes:
    """Return METADATA as bytes: a task takes nothing along that was worked out from it."""
    return msgspec.msgpack.encode(metadata, enc_hook=encode_hook)


def decode_result(packed: bytes) -> SortedPortion:
    """Return what a task sent."""
    return msgspec.msgpack.decode(packed, type=SortedPortion)
